//! Once-only work: several servers try to send a mail for each order, and then a follow-up; one
//! server sends each.
//!
//! ```text
//! cargo run -p perennial-examples --bin once
//! ```
//!
//! Ten workers, as ten servers would be, all want to send the same mails.

use std::{
    error::Error,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use clap::Parser;
use example_common::{self as common, say};
use perennial::Perennial;
use perennial_jobs::{Once, OnceOutcome};
use sqlx::SqlitePool;

const WORKERS: usize = 10;

static SENT: AtomicUsize = AtomicUsize::new(0);

async fn send(mail: &str) {
    SENT.fetch_add(1, Relaxed);
    say!("  sent: {mail}");
}

/// Once-only work: a mail for each order, and then its follow-up.
#[derive(Parser)]
struct Options {}

#[tokio::main]
async fn main() -> ExitCode {
    let Options {} = Options::parse();
    common::exit("once", run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/site.db?mode=rwc", folder.path().display());
    let pool = SqlitePool::connect(&url).await?;
    let site = Perennial::with_pool(pool.clone()).await?;
    sqlx::raw_sql(
        "CREATE TABLE outbox (mail TEXT NOT NULL); CREATE TABLE parcel (id INTEGER PRIMARY KEY, packed_by TEXT); INSERT INTO parcel VALUES (42, NULL);",
    )
    .execute(&pool)
    .await?;

    say!("At most once: noted before it is sent.");
    for worker in 0..WORKERS {
        let thanks = Once::new(&site.locks(), ["mail", "42", "thanks"]);
        match thanks.run(|| send("thank you for order 42")).await? {
            OnceOutcome::Ran(()) => say!("  by worker {worker}"),
            OnceOutcome::AlreadyDone { since, .. } => {
                say!("  worker {worker} is told that it was done {since:.1?} ago");
            }
            other => say!("  worker {worker} is told: {other:?}"),
        }
    }

    say!("Until it succeeds, one at a time: the first two fail.");
    for worker in 0..4 {
        let invoice = Once::new(&site.locks(), ["mail", "42", "invoice"]);
        let outcome = invoice.run_until_done(|_| async {
            if worker < 2 {
                return Err("the mail server is away");
            }
            send("the invoice of order 42").await;
            Ok(())
        });
        say!("  worker {worker}: {:?}", outcome.await?);
    }

    say!("A chain: the reminder goes out when the invoice has, and its row with the transaction.");
    for (commits, words) in [
        (false, "is rolled back"),
        (true, "is committed"),
        (true, "is late"),
    ] {
        let mut transaction = pool.begin().await?;
        let reminder = Once::new(&site.locks(), ["mail", "42", "reminder"]);
        let reminder = reminder.after(["mail", "42", "invoice"]);
        let outcome = reminder.mark_in(&mut transaction).await?;
        if outcome == OnceOutcome::Ran(()) {
            let row = "INSERT INTO outbox VALUES ('pay order 42')";
            sqlx::query(row).execute(&mut *transaction).await?;
        }
        if commits {
            transaction.commit().await?;
        }
        say!("  {outcome:?}, which {words}");
    }
    let reminders: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox")
        .fetch_one(&pool)
        .await?;
    say!("  {reminders} in the outbox");

    say!("A guard in the application's own row: who packs the parcel?");
    for worker in 0..3 {
        let guarded = "UPDATE parcel SET packed_by = ? WHERE id = 42 AND packed_by IS NULL";
        let update = sqlx::query(guarded).bind(format!("worker {worker}"));
        let mine = update.execute(&pool).await?.rows_affected() == 1;
        say!("  worker {worker}: {mine}");
    }
    say!("{} mails were sent.", SENT.load(Relaxed));
    Ok(())
}
