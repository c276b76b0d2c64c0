//! A new process, whose database fails soon after.

use std::time::Duration;

use axum::{Router, http::StatusCode, routing::get};
use perennial::{Perennial, Refresh};
use perennial_testing::{Database, advance};
use tokio::time::Instant;

use crate::support;

const PAGES: usize = 100;

fn process(database: &Database) -> Router {
    let site = database.open(Perennial::builder()).expect("opens");
    let hour = Refresh::every(Duration::from_hours(1));
    Router::new().route("/{n}", get(async || "page").layer(site.layer(hour)))
}

#[tokio::test(start_paused = true)]
async fn outage_after_a_restart_finds_the_latest_pages_in_memory() {
    let database = Database::new();
    let visit = async |app: &Router, n: usize| support::get(app, &format!("/{n}")).await.status;
    let first = process(&database);
    for n in 0..PAGES {
        visit(&first, n).await;
    }
    for (age, hangs) in [(0, false), (0, true), (2, true)] {
        advance(Duration::from_hours(age)).await;
        database.recover();
        let restarted = process(&database);
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

/// The latest pages are read when the database is back.
#[tokio::test(start_paused = true)]
async fn process_that_begins_in_an_outage_has_the_latest_pages_before_the_next_one() {
    let database = Database::new();
    for path in ["/1", "/2"] {
        support::get(&process(&database), path).await;
    }
    database.fail();
    let began = process(&database);
    support::get(&began, "/1").await;
    database.recover();
    for _ in 0..3 {
        advance(Duration::from_secs(2)).await;
        support::get(&began, "/1").await;
    }
    database.fail();
    let reply = support::get(&began, "/2").await;
    assert!(reply.header("cache-status").contains("hit"), "{reply:?}");
}
