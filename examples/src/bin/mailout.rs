//! A mailing by several workers. The example kills a worker in the middle of its work.
//!
//! ```text
//! cargo run -p perennial-examples --bin mailout
//! ```
//!
//! Three workers, each in a process of its own, claim 25 mails at a time. One is killed after a
//! while: its mails become available again when its claim expires, and the other workers send them.
//! One mail may go out twice: the mail that the killed worker had sent and not yet completed.

use std::{
    collections::HashMap,
    error::Error,
    process::{Child, Command, ExitCode},
    time::Duration,
};

use clap::Parser;
use example_common::{self as common, say};
use perennial::sql::Database;
use perennial_jobs::Claims;
use sqlx::{AnyPool, AssertSqlSafe};

const MAILS: usize = 300;
const WORKERS: usize = 3;
const CLAIM: Duration = Duration::from_secs(3);

/// A mailing by several workers. The example kills a worker in the middle of its work.
#[derive(Parser)]
struct Options {
    /// The database, as in postgres://user:password@host/database. Default: a temporary file.
    #[arg(long)]
    database: Option<String>,
    /// The name of a worker on an existing mailing; used by the program itself.
    #[arg(long)]
    worker: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit("mailout", run(Options::parse()).await)
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    sqlx::any::install_default_drivers();
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite://{}/mail.db?mode=rwc", folder.path().display());
    let url = options.database.unwrap_or(file);
    // Opens the file in WAL mode, for several writing processes.
    let database = Database::open(&url).await?;
    let pool = AnyPool::connect(&url).await?;
    match options.worker {
        Some(name) => work(&name, database, &pool).await,
        None => mailing(&url, &pool).await,
    }
}

/// Prepares the mails, starts the workers, kills one, and counts the sent mails.
async fn mailing(url: &str, pool: &AnyPool) -> Result<(), Box<dyn Error>> {
    for statement in [
        "CREATE TABLE mail (id BIGINT PRIMARY KEY, recipient VARCHAR(80) NOT NULL, lock_id VARCHAR(36), locked_until BIGINT)",
        "CREATE INDEX mail_lock_id ON mail (lock_id)",
        "CREATE INDEX mail_locked_until ON mail (locked_until)",
        "CREATE TABLE sent (mail BIGINT NOT NULL, worker VARCHAR(20) NOT NULL)",
    ] {
        sqlx::query(statement).execute(pool).await?;
    }
    let rows: Vec<_> = (0..MAILS)
        .map(|id| format!("({id}, 'reader-{id}@example.org', NULL, NULL)"))
        .collect();
    let insert = format!("INSERT INTO mail VALUES {}", rows.join(", "));
    sqlx::query(AssertSqlSafe(insert)).execute(pool).await?;

    say!("{MAILS} mails, {WORKERS} workers");
    let mut workers = Vec::new();
    for number in 1..=WORKERS {
        workers.push(worker(url, number)?);
    }
    // Waits until the worker is in the middle of its work.
    let first = "SELECT COUNT(*) FROM sent WHERE worker = '1'";
    while sqlx::query_scalar::<_, i64>(first).fetch_one(pool).await? < 30 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    workers[0].kill()?;
    say!("worker 1 is killed");
    for worker in &mut workers {
        worker.wait()?;
    }

    let sent = sqlx::query_as::<_, (i64, String)>("SELECT mail, worker FROM sent");
    let mut times = HashMap::new();
    let mut shares = HashMap::new();
    for (mail, worker) in sent.fetch_all(pool).await? {
        *times.entry(mail).or_insert(0) += 1;
        *shares.entry(worker).or_insert(0) += 1;
    }
    for number in 1..=WORKERS {
        let share = shares.get(&number.to_string()).unwrap_or(&0);
        say!("worker {number} has sent {share}");
    }
    let twice = times.values().filter(|times| **times > 1).count();
    say!("{} not sent, {twice} sent twice", MAILS - times.len());
    Ok(())
}

fn worker(url: &str, number: usize) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--database", url, "--worker", &number.to_string()]);
    Ok(command.spawn()?)
}

/// Sends mails until none is left.
async fn work(name: &str, database: Database, pool: &AnyPool) -> Result<(), Box<dyn Error>> {
    let mails = Claims::with_pool(database, "mail")
        .expires("locked_until", CLAIM)
        .order("id");
    loop {
        let mut claim = mails.claim(25).await?;
        if claim.ids().is_empty() {
            // Another worker may hold the last rows and crash, so this worker stays until all of
            // them are sent.
            let left =
                "SELECT COUNT(*) FROM mail WHERE lock_id IS NULL OR locked_until IS NOT NULL";
            if sqlx::query_scalar::<_, i64>(left).fetch_one(pool).await? == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let rows = format!(
            "SELECT id, recipient FROM mail WHERE lock_id = '{}' ORDER BY id",
            claim.lock_id()
        );
        let rows = sqlx::query_as::<_, (i64, String)>(AssertSqlSafe(rows));
        let rows = rows.fetch_all(pool).await?;
        for (number, (id, recipient)) in rows.iter().enumerate() {
            // If a worker was paused for longer than its claim, others may have claimed its rows.
            // It stops here, and claims again.
            let runs_out = claim.remaining().is_some_and(|left| left < CLAIM / 2);
            if runs_out && claim.extend().await? < (rows.len() - number) as u64 {
                break;
            }
            send(*id, recipient, name, pool).await?;
            claim.complete_by_row(&id.to_string()).await?;
        }
        claim.release().await?;
    }
}

/// Stands for the mail server, which stores each mail.
async fn send(id: i64, _recipient: &str, worker: &str, pool: &AnyPool) -> Result<(), sqlx::Error> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let row = format!("INSERT INTO sent VALUES ({id}, '{worker}')");
    sqlx::query(AssertSqlSafe(row)).execute(pool).await?;
    Ok(())
}
