//! The command line of Perennial. It works on a site's database, even while the processes of the site are
//! running.

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

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

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

/// The meaning of the program's exit status.
const EXIT_STATUS: &str = "\
Exit status:
  0   done
  1   the database, the site or the command failed
  2   wrong use, such as an unknown option or no database
  3   there is no such key or lock
  4   refused: not confirmed, or the target has changed since
  5   doctor or `triggers --check` found a fault; with `doctor --strict`, also a warning
`perennial run` exits as its command does, and with
  74  if the lock was lost while the command ran
  75  if the lock is taken
  126 if the command cannot be run
  127 if the command was not found";

/// Shows and changes the pages that Perennial has stored in a site's database, and runs commands under its locks.
#[derive(Parser)]
#[command(
    name = "perennial",
    version,
    max_term_width = 100,
    after_help = EXIT_STATUS,
)]
struct Options {
    #[command(flatten)]
    source: Source,
    /// Print JSON for programs. It has a field `schema`, whose number changes when a field is renamed or removed.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how the site is doing: checks, figures of the last hour, locks, latest generations and processes.
    Status,
    /// List the stored pages and values.
    Entries(EntriesOptions),
    /// Show what is known about one page.
    Show {
        /// The key, as `perennial entries` shows it.
        key: String,
        /// Write the stored body to stdout instead.
        #[arg(long)]
        body: bool,
    },
    /// Show when and why a page was generated, and how long that took.
    History {
        /// The key, as `perennial entries` shows it.
        key: String,
    },
    /// Make pages stale. Visitors get the old version while the next request regenerates the page.
    Invalidate {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        consent: Consent,
    },
    /// Remove pages, so that no visitor gets them any more. The next visitor waits for a new version.
    Purge {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        consent: Consent,
    },
    /// List the locks that are held, and the pages that wait after a failure.
    Locks {
        /// List locks of this kind only.
        #[arg(long, value_parser = words::<LockKind>(LockKind::all().map(LockKind::as_str)))]
        kind: Option<LockKind>,
    },
    /// Take a lock away from its holder, who may still be at work.
    Unlock {
        /// The name of the lock, as `perennial locks` shows it.
        name: String,
        /// The kind of the lock, as `perennial locks` shows it.
        #[arg(long, default_value = "lock", value_parser = words::<LockKind>(LockKind::all().map(LockKind::as_str)))]
        kind: LockKind,
        /// The fence that `perennial locks` shows. If somebody else holds the lock by now, nothing is done.
        #[arg(long)]
        fence: Fence,
        /// Repeat the name here instead of typing it when asked.
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
    },
    /// Show which workers have claimed rows of a table of jobs, and how many.
    Claims {
        /// The application's table, with its schema if it has one.
        table: String,
        /// The column with the id of the claim.
        #[arg(long, default_value = "lock_id")]
        lock: String,
        /// The column with the time at which the claim ends, if the table has one.
        #[arg(long)]
        expires: Option<String>,
    },
    /// Remove the rows of locks that nobody has used for a long time.
    Prune {
        /// How long they must have been unused.
        #[arg(long, default_value = "90d", value_parser = parse_duration)]
        unused: Duration,
    },
    /// Print what a new site needs: lines for Cargo.toml, a first layer, and the next commands. Needs no connection.
    Init,
    /// Print the SQL that creates Perennial's tables, for a migration or an administrator. Needs no connection.
    Ddl,
    /// Print the SQL of triggers that make pages stale when rows of a table change, or check installed ones.
    Triggers(triggers::TriggerOptions),
    /// Check the database and its settings. Each finding says what to do about it.
    Doctor {
        /// Run these checks only.
        checks: Vec<String>,
        /// List the checks.
        #[arg(long)]
        list: bool,
        /// Exit with 5 on warnings as well.
        #[arg(long)]
        strict: bool,
    },
    /// Ask a running site why a page is or is not cached, and what to change. Needs no database.
    ///
    /// The site answers if it was built with `Builder::explain_token`. It generates and stores nothing.
    Explain(explain::ExplainOptions),
    /// Show the status, the locks and the latest generations again and again, until ctrl-c.
    ///
    /// Where the output is not a terminal, it is one line each time.
    Watch {
        /// How often.
        #[arg(long, default_value = "1s", value_parser = parse_duration)]
        every: Duration,
    },
    /// Run a command on one machine at a time, under a lock in the database.
    ///
    /// cron on several machines may start the same job. One machine runs it; the others find the lock taken,
    /// run nothing and exit with 75:
    ///
    ///     0 3 * * * DATABASE_URL=postgres://… perennial run nightly -- ./import || [ $? = 75 ]
    ///
    /// The lock is held until the last process that the command has started has ended. If the lock is lost,
    /// all of these processes are ended: on Linux wherever they are, elsewhere those in the command's process
    /// group. HUP, INT, QUIT, TERM, USR1 and USR2 are passed on to all of them. In the foreground of a
    /// terminal, INT and QUIT are not passed on, because the terminal itself sends them to the command.
    /// Signals that are ignored at the start (`nohup`) stay ignored.
    ///
    /// If the machine dies, the lock is free after the lease. A machine that is only paused may go on
    /// later, while another one runs the command. If that would do harm, the command has to check
    /// PERENNIAL_FENCE in each of its writes.
    Run(run::RunOptions),
    /// An internal command: on Linux, `run` starts it, and it starts the user's command and ends it together with
    /// everything that the command has started.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Keep(keep::KeepOptions),
    /// Print a completion script for a shell.
    Completions { shell: Shell },
    /// Write the manual pages of all commands into a folder.
    Man {
        /// The folder, such as ~/.local/share/man/man1. It is created if it is missing.
        folder: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct EntriesOptions {
    /// List keys that begin with this.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// List pages that have this tag.
    #[arg(long)]
    tag: Option<String>,
    /// List pages in this state.
    #[arg(long, value_parser = words::<EntryState>(EntryState::all().map(EntryState::as_str)))]
    state: Option<EntryState>,
    /// How many to list, at most 1000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Continue a previous list from here. Where to continue is said at the end of its output.
    #[arg(long)]
    from: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Target {
    /// The key of a page, such as /books/1, with all its variants.
    key: Option<String>,
    /// All pages that have this tag.
    #[arg(long)]
    tag: Option<String>,
    /// All pages that have a tag which begins with this.
    #[arg(long)]
    tag_prefix: Option<String>,
    /// All pages whose keys begin with this. An empty string stands for all pages.
    #[arg(long)]
    prefix: Option<String>,
}

#[derive(Args)]
pub(crate) struct Consent {
    /// Don't ask for confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Say what would be done, and do nothing.
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// How a command that was not successful has ended.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database or the command failed.
    Failed(String),
    /// The command line cannot be used, for example because it names no database.
    Usage(String),
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
        Err(Failure::Usage(why)) => (2, Some(why)),
        Err(Failure::Missing(what)) => (3, Some(what)),
        Err(Failure::Refused(why)) => (4, Some(why)),
        Err(Failure::Findings) => (5, None),
        Err(Failure::Status(code, why)) => (code, why),
    };
    if let Some(message) = message {
        print::error(&message);
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
        Command::Man { folder } => manual(&folder),
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

/// Writes `perennial.1`, and `perennial-status.1` and so on.
fn manual(folder: &Path) -> Result {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Options::command(), folder));
    written.map_err(|error| {
        Failure::Failed(format!(
            "cannot write the manual pages into {}: {error}",
            folder.display()
        ))
    })?;
    print::line(&format!(
        "The manual pages are in {}: try `man {}/perennial.1`.",
        folder.display(),
        folder.display()
    ));
    Ok(())
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
