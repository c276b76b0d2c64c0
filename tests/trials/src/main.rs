//! Trials of Perennial on clusters of databases: `scripts/cluster trial` and `scripts/cluster rounds`.

mod bank;
mod client;
mod faults;
mod history;
mod load;
mod process;
mod record;
mod report;
mod rounds;
mod serve;
mod soak;
mod trial;
mod watch;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Tries Perennial on a cluster of databases.
#[derive(Parser)]
#[command(name = "scripts/cluster")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a site of three processes under load, with faults of the cluster. Exits with status 1 if
    /// a promise is broken.
    Trial(trial::Options),
    /// Locks, publishes, idempotent requests and invalidations from several nodes at once.
    Rounds(rounds::Options),
    /// Sites on SQLite, PostgreSQL and MariaDB for hours, with deploys, and with faults of processes,
    /// servers, disks, networks and clocks.
    Soak(soak::Options),
    /// Judges the record of a trial once more.
    Check { folder: PathBuf },
    #[command(hide = true)]
    Serve(serve::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    sqlx::any::install_default_drivers();
    let done = match Options::parse().command {
        Command::Trial(options) => trial::run(options).await,
        Command::Rounds(options) => rounds::run(options).await,
        Command::Soak(options) => soak::run(options).await,
        Command::Check { folder } => check(&folder),
        Command::Serve(options) => {
            tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
                .with_writer(std::io::stderr)
                .with_ansi(false)
                .init();
            serve::serve(options).await.map(|()| true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn check(folder: &std::path::Path) -> Result<bool> {
    let history = record::read(folder)?;
    let breaches = history::judge(&history);
    report::breaches(&history, &breaches);
    Ok(breaches.is_empty())
}
