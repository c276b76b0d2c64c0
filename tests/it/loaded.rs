//! A new process, whose database fails soon after.

use std::time::Duration;

use axum::{Router, http::StatusCode, routing::get};
use perennial::{Perennial, Refresh};
use perennial_testing::{Database, advance};
use tokio::time::Instant;

use crate::support;

const PAGES: usize = 100;

#[tokio::test(start_paused = true)]
async fn outage_after_a_restart_finds_the_latest_pages_in_memory() {
    let database = Database::new();
    let process = || {
        let site = database.open(Perennial::builder()).expect("opens");
        let hour = Refresh::every(Duration::from_hours(1));
        Router::new().route("/{n}", get(async || "page").layer(site.layer(hour)))
    };
    let visit = async |app: &Router, n: usize| support::get(app, &format!("/{n}")).await.status;
    let first = process();
    for n in 0..PAGES {
        visit(&first, n).await;
    }
    for (age, hangs) in [(0, false), (0, true), (2, true)] {
        advance(Duration::from_hours(age)).await;
        database.recover();
        let restarted = process();
        assert_eq!(visit(&restarted, 0).await, StatusCode::OK);
        advance(Duration::from_secs(5)).await;
        match hangs {
            true => database.hang(),
            false => database.fail(),
        }
        let begun = Instant::now();
        for n in 0..PAGES {
            assert_eq!(visit(&restarted, n).await, StatusCode::OK, "{n}");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
        // Nothing was generated, but for the first page.
        let generated: u64 = (1..PAGES)
            .map(|n| database.generations(&format!("/{n}")))
            .sum();
        assert_eq!(generated, PAGES as u64 - 1);
    }
}
