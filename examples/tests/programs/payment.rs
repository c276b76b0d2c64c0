//! Payments that are sent twice and made once: the example in two processes.

use std::{net::SocketAddr, time::Duration};

use rustix::process::Signal;
use tokio::task::JoinSet;

use crate::{
    databases::Db,
    program::Program,
    support::{Reply, exchange, get, until},
};

on_each_database! {
    a_form_that_is_posted_fifty_times_on_two_processes_charges_once
    a_payment_whose_process_is_killed_when_charged_is_not_made_again
}

/// Two processes on one database.
fn two(db: &Db, options: &str) -> [Program; 2] {
    [(); 2].map(|()| Program::start("payment", db.url(), options))
}

async fn pay(address: SocketAddr, key: &str) -> Reply {
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    exchange(address, "POST", "/pay", &headers, "cents=1990").await
}

/// Repeats a request until it is done, as clients do.
async fn paid(address: SocketAddr, key: &str) -> Reply {
    loop {
        let reply = pay(address, key).await;
        if reply.status != 409 {
            return reply;
        }
        assert_eq!(reply.headers["retry-after"], "1", "{reply:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn a_form_that_is_posted_fifty_times_on_two_processes_charges_once(db: Db) {
    let programs = two(&db, "--bank 300ms");
    for round in 1..=3 {
        let key = format!("\"round-{round}\"");
        let mut posts = JoinSet::new();
        for post in 0..50 {
            let (address, key) = (programs[post % 2].address, key.clone());
            posts.spawn(async move { paid(address, &key).await });
        }
        let replies = posts.join_all().await;
        let receipt = replies[0].text().to_owned();
        assert!(receipt.starts_with("receipt "), "{receipt}");
        assert!(
            replies
                .iter()
                .all(|reply| reply.status == 200 && reply.text() == receipt)
        );
        let first = replies
            .iter()
            .filter(|reply| !reply.headers.contains_key("idempotency-replayed"));
        assert!(first.count() <= 1);
        let charges = get(programs[1].address, "/charges").await;
        assert_eq!(charges.text(), format!("{round}\n"));
    }
}

/// Waits until the database has this number of rows with such a condition.
async fn rows(db: &Db, number: i64, of: &str) {
    let count = format!("SELECT COUNT(*) FROM {of}");
    until(of, async || db.int(&count).await == Some(number)).await;
}

/// Kills each process between the charge and the answer, or right after the answer was stored.
async fn a_payment_whose_process_is_killed_when_charged_is_not_made_again(db: Db) {
    let b = Program::start("payment", db.url(), "--bank 1ms");
    for round in 1..=5 {
        let a = Program::start("payment", db.url(), "--bank 50ms");
        let (address, key) = (a.address, format!("k{round}"));
        let sent = key.clone();
        tokio::spawn(async move { pay(address, &sent).await });
        rows(&db, round, "charge").await;
        a.signal(Signal::KILL);
        db.execute("UPDATE perennial_request SET expires_at = 1")
            .await;
        let reply = pay(b.address, &key).await;
        let is_replay = reply.headers.contains_key("idempotency-replayed");
        assert!(
            is_replay || reply.text().contains("is unknown"),
            "{reply:?}"
        );
        assert_eq!(
            get(b.address, "/charges").await.text(),
            format!("{round}\n")
        );
    }
}
