//! A lock with waiting, and the fence that refuses a late writer.
//!
//! ```text
//! cargo run -p perennial-examples --bin locks
//! ```
//!
//! Two editors of one document stand for two servers. The first one is paused for longer than its
//! lease, the second one takes over, and the first one's late write changes nothing.

use std::{error::Error, process::ExitCode, time::Duration};

use clap::Parser;
use example_common::{self as common, say};
use perennial::locks::{Lease, Locks};
use sqlx::SqlitePool;

const LEASE: Duration = Duration::from_secs(1);

/// A lock with waiting, and the fence that refuses a late writer.
#[derive(Parser)]
struct Options {}

#[tokio::main]
async fn main() -> ExitCode {
    let Options {} = Options::parse();
    common::exit("locks", run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/site.db?mode=rwc", folder.path().display());
    let pool = SqlitePool::connect(&url).await?;
    // The fence of the last writer stands beside the text.
    sqlx::raw_sql(
        "CREATE TABLE document (id INTEGER PRIMARY KEY, text TEXT NOT NULL, fence INTEGER NOT NULL);
        INSERT INTO document VALUES (7, '', 0);",
    )
    .execute(&pool)
    .await?;

    let locks = Locks::with_pool(pool.clone()).await?.lease_duration(LEASE);
    let first = locks.clone().label("editor 1").manual_extension();
    let second = locks.label("editor 2");

    let held = first.lock(["document", "7"]).action("editing").await?;
    say!("editor 1 has the lock, with fence {}", held.fence());
    let attempt = second.lock(["document", "7"]).wait(LEASE / 4);
    if let Err(error) = attempt.action("editing").await {
        say!("editor 2 is told: {error}");
    }

    say!("editor 1 falls asleep, as a process does whose machine is suspended");
    let taken_over = second.lock(["document", "7"]).action("editing").await?;
    say!("editor 2 has the lock, with fence {}", taken_over.fence());
    write(&pool, "by editor 2", &taken_over).await?;
    say!("editor 2 has written");
    match write(&pool, "by editor 1", &held).await {
        Err(error) => say!("editor 1 wakes up, writes, and is told: {error}"),
        Ok(()) => say!("editor 1 wakes up, and overwrites it: that must not be"),
    }

    let text: String = sqlx::query_scalar("SELECT text FROM document WHERE id = 7")
        .fetch_one(&pool)
        .await?;
    say!("the document is {text:?}");
    taken_over.release().await?;
    Ok(())
}

/// Writes under the lock. Returns an error if a holder with a later fence has written before.
async fn write(pool: &SqlitePool, text: &str, lease: &Lease) -> Result<(), Box<dyn Error>> {
    let write =
        sqlx::query("UPDATE document SET text = ?, fence = ?2 WHERE id = 7 AND fence <= ?2");
    let done = write.bind(text).bind(lease.fence().0).execute(pool).await?;
    match done.rows_affected() {
        0 => Err("another editor with a later fence has written".into()),
        _ => Ok(()),
    }
}
