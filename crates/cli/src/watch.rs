//! The live view.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use perennial::{
    Perennial,
    entries::{EntryFilter, EntryState},
};

use crate::{Result, look, print};

/// Clears a terminal and moves to its upper left corner.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Looks again and again, until ctrl-c.
pub(crate) async fn watch(site: &Perennial, every: Duration) -> Result {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(100)));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        if io::stdout().is_terminal() {
            print::line(CLEAR);
            look::status(site, false).await?;
            print::line("");
            look::locks(site, false).await?;
            print::line("");
            look::latest(site).await?;
        } else {
            one_line(site).await?;
        }
    }
}

async fn one_line(site: &Perennial) -> Result {
    let page = site.entries(&EntryFilter::new().limit(1000)).await?;
    let counts = EntryState::all().map(|state| {
        let count = page.entries.iter().filter(|it| it.state == state).count();
        format!("{count} {state}")
    });
    let counts: Vec<_> = counts.collect();
    let held = site.locks().list().await?;
    let held = held.iter().filter(|lock| lock.holder.is_some()).count();
    let more = if page.next.is_some() {
        " (of the first 1000)"
    } else {
        ""
    };
    print::line(&format!("{}{more}, {held} locks held", counts.join(", ")));
    Ok(())
}
