//! Payments that are sent twice and made once: the example in two processes.

use rustix::process::Signal;

use perennial_testkit::{Db, get, on_each_database, pay, program::Program, until};

on_each_database! {
    a_payment_whose_process_is_killed_when_charged_is_not_made_again
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
            is_replay || reply.text().contains("nobody knows"),
            "{reply:?}"
        );
        assert_eq!(
            get(b.address, "/charges").await.text(),
            format!("{round}\n")
        );
    }
}
