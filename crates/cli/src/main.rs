//! The command line of Perennial. It works beside running sites on the site's database.

mod change;
mod claims;
mod doctor;
mod explain;
mod init;
#[cfg(target_os = "linux")]
mod keep;
mod open;
mod print;
#[cfg(unix)]
mod processes;
mod run;
mod show;
mod triggers;
mod watch;

use std::{process::ExitCode, time::Duration};

use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use humantime::parse_duration;
use perennial::{
    Error, Perennial,
    entries::EntryState,
    locks::{Fence, LockKind},
};

use open::Source;

/// Shows and changes the pages that Perennial stores, and runs commands under its locks.
#[derive(Parser)]
#[command(
    name = "perennial",
    version,
    after_help = "Exit status: 0 done; 1 failed; 2 wrong use; 3 no such key or lock; 4 refused, as it was not confirmed or has \
                  changed; 5 doctor found something. `run` ends as its command does; with 75 if the lock is taken, 74 if it \
                  was lost, 126 and 127 if the command cannot be run or found."
)]
struct Options {
    #[command(flatten)]
    source: Source,
    /// Print JSON with the number of its schema, for commands that show something.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks, numbers of stored pages and locks, and processes.
    Status,
    /// The list of the stored entries.
    Entries(EntriesOptions),
    /// One entry.
    Show {
        key: String,
        /// Write the stored body to stdout, in place of the entry.
        #[arg(long)]
        body: bool,
    },
    /// The latest generations of an entry.
    History { key: String },
    /// Make entries stale: visitors get the old version while the next request regenerates it.
    Invalidate {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        consent: Consent,
    },
    /// Remove entries now, a key with its variants.
    Purge {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        consent: Consent,
    },
    /// The locks that are held or in cooldown.
    Locks {
        /// The kind of the locks. Default: every kind.
        #[arg(long, value_parser = words::<LockKind>(LockKind::all().map(LockKind::as_str)))]
        kind: Option<LockKind>,
    },
    /// Take a lock from its holder. The holder may still be at work.
    Unlock {
        name: String,
        /// The kind of the lock.
        #[arg(long, default_value = "lock", value_parser = words::<LockKind>(LockKind::all().map(LockKind::as_str)))]
        kind: LockKind,
        /// The fence that `locks` shows: another holder's lock is left alone.
        #[arg(long)]
        fence: Fence,
        /// The name once more, in place of the question.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
    /// The claims on the rows of a table of jobs.
    Claims {
        table: String,
        /// The column with the lock id.
        #[arg(long, default_value = "lock_id")]
        lock: String,
        /// The column with the end of the claim, if the table has one.
        #[arg(long)]
        expires: Option<String>,
    },
    /// Remove locks that nobody has held for long.
    Prune {
        /// The time since they were used.
        #[arg(long, default_value = "90d", value_parser = parse_duration)]
        unused: Duration,
    },
    /// Print what a new site needs, to be copied: the lines of Cargo.toml for the database, a first layer, and the next
    /// commands. Connects to nothing.
    Init,
    /// Print the statements that make the tables, for an administrator. Connects to nothing.
    Ddl,
    /// Print the triggers by which the database makes pages stale when rows of a table change, or check them. Installs
    /// nothing.
    Triggers(triggers::TriggerOptions),
    /// Check the database and its settings. Each finding has a remedy.
    Doctor {
        /// The checks to run; default: all of them.
        checks: Vec<String>,
        /// Print the names of the checks.
        #[arg(long)]
        list: bool,
        /// End with 5 for warnings, too.
        #[arg(long)]
        strict: bool,
    },
    /// Ask a running site whether a page is cached, why, and what to do. Needs no database.
    ///
    /// The site answers if it was built with `Builder::explain_token`. It generates and stores nothing.
    Explain(explain::ExplainOptions),
    /// A live view of the status, locks and latest generations. Without a terminal, one line each
    /// time.
    Watch {
        /// The time between two views.
        #[arg(long, default_value = "1s", value_parser = parse_duration)]
        every: Duration,
    },
    /// Run a command on one machine at a time, under a lock that all machines on the database share.
    ///
    /// Several machines may start the same job by cron. One runs it; the others find the lock taken,
    /// run nothing and exit with 75:
    ///
    ///     0 3 * * * DATABASE_URL=postgres://… perennial run nightly -- ./import || [ $? = 75 ]
    ///
    /// The lock is held until the last process that the command has started has ended, and all of them are
    /// ended with the lock: on Linux wherever they are, elsewhere those in the command's process group.
    /// HUP, INT, QUIT, TERM, USR1 and USR2 reach all of them, but for INT and QUIT while `perennial run` is in
    /// the foreground of a terminal, which sends them itself. Signals that are ignored at the start (`nohup`)
    /// stay ignored.
    ///
    /// If the machine dies, the lock is free after the lease. A command that must not overlap in any case
    /// checks PERENNIAL_FENCE where it writes.
    Run(run::RunOptions),
    /// What `run` starts on Linux in place of the command.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Keep(keep::KeepOptions),
    /// Print a script of completions for a shell.
    Completions { shell: Shell },
}

#[derive(Args)]
pub(crate) struct EntriesOptions {
    /// The beginning of the keys.
    #[arg(long, default_value = "")]
    prefix: String,
    /// A tag of the entries.
    #[arg(long)]
    tag: Option<String>,
    /// The state of the entries.
    #[arg(long, value_parser = words::<EntryState>(EntryState::all().map(EntryState::as_str)))]
    state: Option<EntryState>,
    /// The largest number of entries, at most 1000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// The place at which the page before ended.
    #[arg(long)]
    from: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Target {
    /// The key, as in /books/1.
    key: Option<String>,
    /// All entries with this tag.
    #[arg(long)]
    tag: Option<String>,
    /// All entries that have a tag which begins with this.
    #[arg(long)]
    tag_prefix: Option<String>,
    /// All entries whose keys begin with this; an empty text means everything.
    #[arg(long)]
    prefix: Option<String>,
}

#[derive(Args)]
pub(crate) struct Consent {
    /// Do it without a question.
    #[arg(long, short)]
    yes: bool,
    /// Show the effect, and do nothing.
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// How a command has ended that has not succeeded.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database or the command failed.
    Failed(String),
    /// There is no such key or lock.
    Missing(String),
    /// The action was not confirmed, or its target has changed.
    Refused(String),
    /// `doctor` found something.
    Findings,
    /// The status of the command of `run`.
    Status(u8, Option<String>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(format!("the database fails: {error}"))
    }
}

/// Returns a parser that lists the words in `--help` and for completions.
fn words<T>(words: impl Iterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse())
}

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let (code, message) = match carry_out(options).await {
        Ok(()) => (0, None),
        Err(Failure::Failed(why)) => (1, Some(why)),
        Err(Failure::Missing(what)) => (3, Some(what)),
        Err(Failure::Refused(why)) => (4, Some(why)),
        Err(Failure::Findings) => (5, None),
        Err(Failure::Status(code, why)) => (code, why),
    };
    if let Some(message) = message {
        eprintln!("perennial: {}", print::text(&message));
    }
    code.into()
}

async fn carry_out(options: Options) -> Result {
    let (source, json) = (&options.source, options.json);
    match options.command {
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Options::command(),
                "perennial",
                &mut std::io::stdout(),
            );
            Ok(())
        }
        Command::Ddl => {
            let ddl = source.builder().ddl(source.url()?)?;
            print::line(ddl.trim_end());
            Ok(())
        }
        Command::Init => init::print(source),
        Command::Triggers(options) => options.run(source).await,
        Command::Run(run) => run.run(source).await,
        #[cfg(target_os = "linux")]
        Command::Keep(keep) => keep.run().await,
        Command::Explain(options) => options.explain(source.timeout(), json).await,
        Command::Doctor {
            checks,
            list,
            strict,
        } => doctor::run(source, &checks, list, strict, json).await,
        Command::Claims {
            table,
            lock,
            expires,
        } => claims::show(source, &table, &lock, expires.as_deref(), json).await,
        command => {
            let site = source.site().await?;
            on_site(&site, command, json).await
        }
    }
}

async fn on_site(site: &Perennial, command: Command, json: bool) -> Result {
    match command {
        Command::Status => show::status(site, json).await,
        Command::Entries(options) => show::entries(site, &options, json).await,
        Command::Show { key, body: true } => show::body(site, &key).await,
        Command::Show { key, body: false } => show::show(site, &key, json).await,
        Command::History { key } => show::history(site, &key, json).await,
        Command::Locks { kind } => show::locks(site, kind, json).await,
        Command::Invalidate { target, consent } => {
            change::invalidate(site, &target, &consent).await
        }
        Command::Purge { target, consent } => change::purge(site, &target, &consent).await,
        Command::Unlock {
            name,
            kind,
            fence,
            confirm,
        } => change::unlock(site, &name, kind, fence, confirm.as_deref()).await,
        Command::Prune { unused } => {
            site.locks().prune(unused).await?;
            print::line(
                "Locks that were unused for so long are removed. Pages are pruned by the sites.",
            );
            Ok(())
        }
        Command::Watch { every } => watch::watch(site, every).await,
        // The commands without a site.
        _ => Ok(()),
    }
}
