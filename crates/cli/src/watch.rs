//! `perennial watch`: the summary, the locks and the latest generations, shown again and again until
//! Ctrl-C is pressed.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use perennial::Perennial;
use perennial_admin::Report;

use crate::{Result, print, show};

/// Clears a terminal and moves to its upper left corner.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Shows the site again and again, until an error or ctrl-c, which also works while the database is slow to
/// answer.
pub(crate) async fn watch(site: &Perennial, every: Duration) -> Result {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Ok(()),
        failed = refresh_until_stopped(site, every) => failed,
    }
}

async fn refresh_until_stopped(site: &Perennial, every: Duration) -> Result {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(100)));
    loop {
        ticks.tick().await;
        let report = Report::read(site).await?;
        if io::stdout().is_terminal() {
            print::line(CLEAR);
            show::summary(report);
        } else {
            print::line(&format!(
                "{} pages, {} stale, {} in cooldown, {} locks held",
                report.pages,
                report.stale,
                report.failing.len(),
                report.held.len()
            ));
        }
    }
}
