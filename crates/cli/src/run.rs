//! `perennial run`: a command under a lock. The lock is held for as long as the command, or anything that
//! it has started, runs; and at least for the time of `--hold`.

use std::{path::Path, process::ExitStatus, time::Duration};

use clap::Args;
use humantime::parse_duration;
#[cfg(unix)]
use rustix::process::{Pid, Signal};
use sqlx::Connection;
use tokio::process::{Child, Command};

#[cfg(unix)]
use crate::processes::Processes;
use crate::{Failure, Result, open::Source, print};

/// The exit status if the lock is taken. It is EX_TEMPFAIL in `sysexits.h`.
const EXIT_BUSY: u8 = 75;
/// The time after which a signal is sent again to a command that has not started yet.
#[cfg(unix)]
const START_POLL: Duration = Duration::from_millis(10);
/// The exit status if the lease was lost.
const EXIT_LOST: u8 = 74;

#[derive(Args)]
pub(crate) struct RunOptions {
    /// The name of the lock.
    name: String,
    /// Wait for a lock that is taken: without a limit, or for this time. Default: do not wait, and
    /// run nothing.
    #[arg(long, short, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_duration)]
    wait: Option<Option<Duration>>,
    /// The exit status if the lock is taken.
    #[arg(long, short = 'E', default_value_t = EXIT_BUSY)]
    conflict_exit_code: u8,
    /// The length of the lease, which is extended while the command runs: the time after which the
    /// lock of a machine that has died is free.
    #[arg(long, default_value = "15s", value_parser = parse_lease)]
    lease: Duration,
    /// Keep the lock for at least this time, even if the command takes less: the clocks of machines that start
    /// the same job differ, by less than this. The default is half of cron's shortest interval, so that the
    /// next run finds the lock free, however late this one began. With 0s, the lock is released when the
    /// command ends.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    hold: Duration,
    /// The time between TERM and KILL for a command whose lease was lost.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    grace: Duration,
    /// The time for which processes that the command has left behind may run on, under the lock. Then
    /// they are ended, as after a lost lease.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    linger: Duration,
    /// Give the lock back when the command has ended, and leave the processes that it started.
    #[arg(long, conflicts_with = "linger")]
    leave_children: bool,
    /// The command. It finds the lock's name in PERENNIAL_LOCK and the fence in PERENNIAL_FENCE.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn parse_lease(text: &str) -> std::result::Result<Duration, String> {
    let length = parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(10)..=Duration::from_hours(365 * 24);
    let is_allowed = allowed.contains(&length).then_some(length);
    is_allowed.ok_or_else(|| "a lease lasts from 10ms to a year".to_owned())
}

impl RunOptions {
    pub(crate) async fn run(&self, source: &Source) -> Result {
        if let Some(why) = self.cannot_start() {
            return Err(why);
        }
        // This fails if the SQLite file is missing. The next line would make a file, whose locks
        // nobody shares.
        let _ = source.within(source.connect().await?.close()).await;
        let site = source.site_with_tables().await?;
        let locks = site.locks().lease_duration(self.lease);
        let wait = match self.wait {
            None => Duration::ZERO,
            Some(Some(wait)) => wait,
            Some(None) => Duration::from_secs(365 * 24 * 3600),
        };
        // The arguments of the command are left out. They may hold secrets, and everybody who can read the
        // database sees the action.
        let program = Path::new(&self.command[0]).file_name();
        let program = program.unwrap_or_default().to_string_lossy();
        let attempt = locks.lock(&*self.name).wait(wait).action(&*program);
        let lease = match attempt.await {
            Ok(lease) => lease,
            Err(error) if error.kind() == perennial::ErrorKind::Taken => {
                return Err(Failure::Status(
                    self.conflict_exit_code,
                    Some(error.to_string()),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let since = std::time::Instant::now();
        let mut command = self.command();
        command
            .env("PERENNIAL_LOCK", &self.name)
            .env("PERENNIAL_FENCE", lease.fence().to_string());
        let mut signals = Signals::listen()?;
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                // If the lease were only dropped, this program would exit before the lease is released.
                lease.release().await?;
                let why = format!("cannot run {:?}: {error}", self.command[0]);
                return Err(Failure::Status(126, Some(why)));
            }
        };
        let started = Started::of(&child);
        let ended = tokio::select! {
            biased;
            ended = signals.wait_for(&mut child, &started) => Some(ended),
            () = lease.lost() => None,
        };
        match ended {
            Some(status) => {
                // `perennial keep` has waited for all processes of the command, unless it was killed or is
                // still running.
                let has_waited = status
                    .as_ref()
                    .is_ok_and(|status| !is_killed_keeper(status));
                if !self.leave_children || !has_waited {
                    started.end(self.grace).await;
                }
                let status = status.map(code);
                // After a command that could not be run, another machine may try at once.
                let has_run = !matches!(status, Ok(126 | 127));
                let hold = if has_run { self.hold } else { Duration::ZERO };
                let left = hold.saturating_sub(since.elapsed());
                // The command has ended, so the exit status is that of the command even if the release fails.
                // An unreleased lock becomes free at the end of its lease.
                if let Err(error) = lease.release_after(left).await {
                    eprintln!(
                        "perennial: the lock is not released: {}",
                        print::text(&error.to_string())
                    );
                }
                match status? {
                    0 => Ok(()),
                    code => Err(Failure::Status(code, None)),
                }
            }
            None => {
                started.end(self.grace).await;
                if tokio::time::timeout(self.grace, child.wait())
                    .await
                    .is_err()
                {
                    let _ = child.kill().await;
                    // `perennial keep`, the helper process, may have started the command between the last
                    // check and its own end, so the command is looked for once more.
                    started.end(self.grace).await;
                }
                let why = format!(
                    "the lock {:?} was lost, and the command was ended",
                    self.name
                );
                Err(Failure::Status(EXIT_LOST, Some(why)))
            }
        }
    }

    /// Returns the reason why the command cannot be started on this machine. This is checked first, so that
    /// this machine does not take the lock while another one could run the command.
    fn cannot_start(&self) -> Option<Failure> {
        let program = Path::new(&self.command[0]);
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found = if self.command[0].contains('/') {
            program.exists()
        } else {
            std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
        };
        let why = format!("cannot run {:?}: there is no such program", self.command[0]);
        if !found && cfg!(unix) {
            return Some(Failure::Status(127, Some(why)));
        }
        #[cfg(unix)]
        if self.command[0].contains('/')
            && let Err(error) = rustix::fs::access(program, rustix::fs::Access::EXEC_OK)
        {
            let why = format!("cannot run {:?}: {error}", self.command[0]);
            return Some(Failure::Status(126, Some(why)));
        }
        None
    }

    /// Returns the command, wrapped in `perennial keep`.
    #[cfg(target_os = "linux")]
    fn command(&self) -> Command {
        let time = |time| humantime::format_duration(time).to_string();
        // This is the running program itself, even if its file has been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["keep", "--parent", &std::process::id().to_string()])
            .args(["--grace", &time(self.grace), "--linger", &time(self.linger)])
            // The lease is extended after each third of its length. When the extensions stop, at
            // least two thirds are left, so the grace of half a lease ends before the lease does.
            .args(["--orphaned-grace", &time(self.grace.min(self.lease / 2))])
            .args(self.leave_children.then_some("--leave-children"))
            .arg("--")
            .args(&self.command);
        command
    }

    #[cfg(not(target_os = "linux"))]
    fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).kill_on_drop(true);
        // On a terminal, the command stays in the process group of this job, so that the terminal can stop and
        // end it.
        #[cfg(unix)]
        if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            command.process_group(0);
        }
        command
    }
}

/// The command's processes.
#[cfg(unix)]
struct Started(Option<Processes>);

#[cfg(not(unix))]
struct Started;

impl Started {
    fn of(child: &Child) -> Self {
        #[cfg(unix)]
        {
            // If `perennial keep` ends first, this process becomes the parent of what is left.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            let id = child.id().and_then(|id| i32::try_from(id).ok());
            Self(
                id.and_then(Pid::from_raw)
                    .map(|keeper| Processes { keeper }),
            )
        }
        #[cfg(not(unix))]
        {
            let _ = child;
            Self
        }
    }

    async fn end(&self, grace: Duration) {
        #[cfg(unix)]
        if let Some(processes) = &self.0 {
            processes.end(grace).await;
        }
        #[cfg(not(unix))]
        let _ = grace;
    }

    /// Sends a signal to the processes. Returns true if there is still a process.
    #[cfg(unix)]
    fn signal(&self, signal: Signal) -> bool {
        let processes = self.0.as_ref();
        processes.is_none_or(|processes| processes.signal(signal))
    }

    /// Collects the exit statuses of processes that were children of `perennial keep`. They became children
    /// of this program when `perennial keep` was killed.
    #[cfg(target_os = "linux")]
    fn reap(&self) {
        if let Some(processes) = &self.0 {
            processes.reap();
        }
    }
}

/// The signals that are meant for the command and would otherwise end this program, and SIGCHLD.
#[cfg(unix)]
struct Signals {
    passed_on: [OptionalSignal; 6],
    #[cfg(target_os = "linux")]
    child: OptionalSignal,
}

/// A signal that this program listens for. `None` means that the signal is ignored, because whoever started
/// this program wanted it so.
#[cfg(unix)]
struct OptionalSignal(Option<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl OptionalSignal {
    async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// A set of signals.
#[cfg(unix)]
pub(crate) struct SignalSet(u64);

#[cfg(unix)]
impl SignalSet {
    pub(crate) fn contains(&self, kind: tokio::signal::unix::SignalKind) -> bool {
        let bit = u32::try_from(kind.as_raw_value() - 1).ok();
        bit.and_then(|bit| self.0.checked_shr(bit))
            .is_some_and(|set| set & 1 == 1)
    }
}

/// Returns the signals that were ignored when this program was started, for example by `nohup`. The set is
/// empty if the system does not say.
#[cfg(unix)]
pub(crate) fn ignored_signals() -> SignalSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    SignalSet(set.unwrap_or(0))
}

#[cfg(not(unix))]
struct Signals;

impl Signals {
    /// Listens from now on: a signal no longer ends this program.
    fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let ignored = ignored_signals();
            let listen_for = |kind: SignalKind| -> Result<OptionalSignal> {
                if ignored.contains(kind) {
                    return Ok(OptionalSignal(None));
                }
                let stream = signal(kind).map_err(|error| Failure::Failed(error.to_string()));
                Ok(OptionalSignal(Some(stream?)))
            };
            Ok(Self {
                passed_on: [
                    listen_for(SignalKind::terminate())?,
                    listen_for(SignalKind::hangup())?,
                    listen_for(SignalKind::user_defined1())?,
                    listen_for(SignalKind::user_defined2())?,
                    listen_for(SignalKind::interrupt())?,
                    listen_for(SignalKind::quit())?,
                ],
                #[cfg(target_os = "linux")]
                child: listen_for(SignalKind::child())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self)
    }

    /// Waits for the command, and passes signals on to all that it has started.
    async fn wait_for(&mut self, child: &mut Child, started: &Started) -> Result<ExitStatus> {
        let failed = |error: std::io::Error| Failure::Failed(error.to_string());
        #[cfg(unix)]
        {
            // Signals that arrive before the command has been started.
            let mut early = Vec::new();
            loop {
                #[cfg(target_os = "linux")]
                let orphan_ended = self.child.recv();
                #[cfg(not(target_os = "linux"))]
                let orphan_ended = std::future::pending();
                let [term, hup, usr1, usr2, int, quit] = &mut self.passed_on;
                let (passed, by_terminal) = tokio::select! {
                    biased;
                    ended = child.wait() => return ended.map_err(failed),
                    () = orphan_ended => {
                        #[cfg(target_os = "linux")]
                        started.reap();
                        continue;
                    }
                    () = term.recv() => (Signal::TERM, false),
                    () = hup.recv() => (Signal::HUP, false),
                    () = usr1.recv() => (Signal::USR1, false),
                    () = usr2.recv() => (Signal::USR2, false),
                    () = int.recv() => (Signal::INT, true),
                    () = quit.recv() => (Signal::QUIT, true),
                    () = tokio::time::sleep(START_POLL), if !early.is_empty() => {
                        early.retain(|signal| !started.signal(*signal));
                        continue;
                    }
                };
                // A terminal sends these to the command itself.
                let is_sent = by_terminal && is_in_foreground();
                if !is_sent && !started.signal(passed) {
                    early.push(passed);
                }
            }
        }
        #[cfg(not(unix))]
        {
            let _ = started;
            child.wait().await.map_err(failed)
        }
    }
}

/// Returns true if this program is in the group of processes that a terminal sends its signals to.
#[cfg(unix)]
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let group = terminal
        .ok()
        .and_then(|it| rustix::termios::tcgetpgrp(it).ok());
    group == Some(rustix::process::getpgrp())
}

/// Returns true if `perennial keep` was itself killed by a signal. It normally exits with the command's status
/// as a number, even if the command was killed.
fn is_killed_keeper(status: &ExitStatus) -> bool {
    #[cfg(target_os = "linux")]
    return std::os::unix::process::ExitStatusExt::signal(status).is_some();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = status;
        false
    }
}

/// Returns the exit status as a shell does. For a process that was ended by a signal, that is 128 plus the
/// signal's number.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
}
