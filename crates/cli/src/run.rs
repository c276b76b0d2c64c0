//! `perennial run`: a command under a lock.

use std::{path::Path, process::ExitStatus, time::Duration};

use clap::Args;
use humantime::parse_duration;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::{Failure, Result, open::Source, print};

/// The exit status if the lock is taken, as EX_TEMPFAIL of sysexits.
const BUSY: u8 = 75;
/// The exit status if the lease was lost.
const LOST: u8 = 74;

#[derive(Args)]
pub(crate) struct RunOptions {
    /// The name of the lock.
    name: String,
    /// Wait for a lock that is taken: without a limit, or for this time. Default: do not wait, and
    /// run nothing.
    #[arg(long, short, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_duration)]
    wait: Option<Option<Duration>>,
    /// The exit status if the lock is taken.
    #[arg(long, short = 'E', default_value_t = BUSY)]
    conflict_exit_code: u8,
    /// The length of the lease, which is extended while the command runs: the time after which the
    /// lock of a machine that has died is free.
    #[arg(long, default_value = "15s", value_parser = parse_lease)]
    lease: Duration,
    /// Keep the lock taken for at least this time, also after a shorter command: the clocks of
    /// machines that start the same job differ. 0s gives the lock back with the end of the command.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    hold: Duration,
    /// The time between TERM and KILL for a command whose lease was lost.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    grace: Duration,
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
        let site = source.site_with_tables().await?;
        let locks = site.locks().lease(self.lease);
        let wait = match self.wait {
            None => Duration::ZERO,
            Some(Some(wait)) => wait,
            Some(None) => Duration::from_secs(365 * 24 * 3600),
        };
        // Without the arguments, which may hold secrets: everybody on the database sees the action.
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
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env("PERENNIAL_LOCK", &self.name)
            .env("PERENNIAL_FENCE", lease.fence().to_string())
            .kill_on_drop(true);
        let mut signals = Signals::listen()?;
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                // This program ends before a lease that is only dropped is released.
                lease.release().await?;
                let code = match error.kind() {
                    std::io::ErrorKind::NotFound => 127,
                    _ => 126,
                };
                let why = format!("cannot run {:?}: {error}", self.command[0]);
                return Err(Failure::Status(code, Some(why)));
            }
        };
        let ended = tokio::select! {
            biased;
            ended = signals.wait_for(&mut child) => Some(ended),
            () = lease.lost() => None,
        };
        match ended {
            Some(status) => {
                let left = self.hold.saturating_sub(since.elapsed());
                // The command has ended, and its status counts. An unreleased lock is free after its
                // lease.
                if let Err(error) = lease.release_after(left).await {
                    eprintln!(
                        "perennial: the lock is not released: {}",
                        print::text(&error.to_string())
                    );
                }
                match code(status?) {
                    0 => Ok(()),
                    code => Err(Failure::Status(code, None)),
                }
            }
            None => {
                #[cfg(unix)]
                signal(&child, Signal::TERM);
                if tokio::time::timeout(self.grace, child.wait())
                    .await
                    .is_err()
                {
                    let _ = child.kill().await;
                }
                let why = format!(
                    "the lock {:?} was lost, and the command was ended",
                    self.name
                );
                Err(Failure::Status(LOST, Some(why)))
            }
        }
    }
}

/// The signals that would end this program in place of the command.
#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 3]);

#[cfg(not(unix))]
struct Signals;

impl Signals {
    /// Listens from now on: a signal no longer ends this program.
    fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let heard = |kind| signal(kind).map_err(|error| Failure::Failed(error.to_string()));
            Ok(Self([
                heard(SignalKind::terminate())?,
                heard(SignalKind::hangup())?,
                heard(SignalKind::interrupt())?,
            ]))
        }
        #[cfg(not(unix))]
        Ok(Self)
    }

    /// Waits for the command, and passes TERM and HUP on.
    async fn wait_for(&mut self, child: &mut Child) -> Result<ExitStatus> {
        let failed = |error: std::io::Error| Failure::Failed(error.to_string());
        #[cfg(unix)]
        loop {
            let [term, hup, int] = &mut self.0;
            let passed = tokio::select! {
                biased;
                ended = child.wait() => return ended.map_err(failed),
                _ = term.recv() => Signal::TERM,
                _ = hup.recv() => Signal::HUP,
                // The terminal sends this one to the command itself.
                _ = int.recv() => continue,
            };
            signal(child, passed);
        }
        #[cfg(not(unix))]
        child.wait().await.map_err(failed)
    }
}

#[cfg(unix)]
fn signal(child: &Child, signal: Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(id) = id.and_then(Pid::from_raw) {
        // The command may have ended meanwhile.
        let _ = kill_process(id, signal);
    }
}

/// Returns the status as a shell does: 128 and the number of the signal.
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
