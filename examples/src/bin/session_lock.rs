//! Long work in one process at a time, for as long as its connection to the database lives.
//!
//! ```text
//! cargo run -p perennial-examples --features postgres --bin session_lock -- postgres://user@host/database
//! ```
//!
//! Run two: the second one waits. Kill the first one (`kill -9`): the second one continues at once,
//! without a lease to wait for.

use std::{error::Error, process::ExitCode, time::Duration};

use clap::Parser;
use example_common::{self as common, say};
use perennial::sql::Database;
use perennial_jobs::SessionLock;

/// Long work in one process at a time, for as long as its connection to the database lives.
#[derive(Parser)]
struct Options {
    /// The database, on a server: postgres://user:password@host/database, or mysql://…
    url: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Options { url } = Options::parse();
    common::exit("session_lock", run(&url).await)
}

async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let (process, opened) = (std::process::id(), Database::open(url).await);
    let database = opened.map_err(|error| format!("{error:#}{}", hint(url)))?;
    say!("process {process} waits for its turn, a minute at most");
    let locked = SessionLock::lock(database, "import", Duration::from_secs(60)).await;
    let lock = locked.map_err(|error| format!("{error:#}{}", hint(url)))?;
    say!("process {process} has the lock; `kill -9 {process}` gives it to the next one");
    // The work is stopped as soon as the connection is lost, because another process may then have begun
    // the same work.
    lock.guard(import()).await?;
    lock.release().await?;
    say!("process {process} is done");
    Ok(())
}

async fn import() {
    for file in 1..=10 {
        say!("  imports file {file} of 10");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A hint for a build without the database's feature.
fn hint(url: &str) -> String {
    let (feature, built, url) = match url.split(':').next() {
        Some("postgres" | "postgresql") => ("postgres", cfg!(feature = "postgres"), "URL"),
        Some("mysql" | "mariadb") => ("mysql", cfg!(feature = "mysql"), "URL"),
        _ => ("postgres", false, "postgres://user:password@host/database"),
    };
    if built {
        String::new()
    } else {
        format!(
            "\n(of this example: cargo run -p perennial-examples --features {feature} --bin session_lock -- {url})"
        )
    }
}
