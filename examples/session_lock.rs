//! Long work that one process at a time does, for as long as its connection to the database lives.
//!
//! ```text
//! cargo run --features postgres --example session_lock -- postgres://user@host/database
//! ```
//!
//! Run two: the second one waits. Kill the first (`kill -9`): the second one goes on at once, without a lease to wait for.

use std::{process::ExitCode, time::Duration};

use perennial::{Error, SessionLock, store::Database};

#[tokio::main]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("say which database: session_lock postgres://user@host/database");
        return ExitCode::FAILURE;
    };
    match run(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(url: &str) -> Result<(), Error> {
    let (process, database) = (std::process::id(), Database::open(url).await?);
    println!("process {process} waits for its turn, a minute at most");
    let lock = SessionLock::lock(database, "import", Duration::from_secs(60)).await?;
    println!("process {process} has the lock; `kill -9 {process}` gives it to the next one");
    // Stops where the connection is lost: another process may have begun.
    lock.guard(import()).await?;
    lock.release().await?;
    println!("process {process} is done");
    Ok(())
}

async fn import() {
    for file in 1..=10 {
        println!("  imports file {file} of 10");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
