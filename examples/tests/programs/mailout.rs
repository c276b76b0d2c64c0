//! A mailing by several workers; one of them is killed.

use std::process::Command;

use perennial_testkit::{Db, on_each_database, program::example};

on_each_database! {
    a_mailing_outlives_a_killed_worker
}

async fn a_mailing_outlives_a_killed_worker(db: Db) {
    let output = Command::new(example("mailout"))
        .args(["--database", db.url()])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("worker 1 is killed"),
        "{output:?}"
    );
    // If the worker was killed after it had sent a row and before it had completed it, that row is
    // sent twice. No other row may be.
    let whole = ["0 not sent, 0 sent twice", "0 not sent, 1 sent twice"];
    assert!(whole.iter().any(|whole| said.contains(whole)), "{said}");
}
