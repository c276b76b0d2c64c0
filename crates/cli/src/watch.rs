//! The live view.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use perennial::Perennial;
use perennial_admin::Report;

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
    let report = Report::of(site).await;
    print::line(&format!(
        "{} pages, {} stale, {} in cooldown, {} locks held",
        report.pages,
        report.stale,
        report.failing.len(),
        report.held.len()
    ));
    Ok(())
}
