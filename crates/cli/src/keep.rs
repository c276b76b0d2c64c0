//! `perennial keep`, an internal command on Linux. `perennial run` starts it instead of the user's command: it
//! starts the command, and stays until the last process that the command has started has ended.
//!
//! It is a process of its own because `perennial run` may be killed. The kernel then sends a signal to
//! `perennial keep`, which ends the command and everything that the command has started. No other process could
//! do that.

use std::{io::ErrorKind, process::Command, time::Duration};

use clap::Args;
use humantime::parse_duration;
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, set_child_subreaper,
        set_parent_process_death_signal, wait,
    },
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use crate::{
    Failure, Result,
    processes::{Processes, named, print_line},
    run::ignored_signals,
};

#[derive(Args)]
pub(crate) struct KeepOptions {
    /// The process ID of `perennial run`.
    #[arg(long)]
    parent: i32,
    /// The time between TERM and KILL.
    #[arg(long, value_parser = parse_duration)]
    grace: Duration,
    /// The time between TERM and KILL if `perennial run` has ended, so that nobody extends the lease any more.
    #[arg(long, value_parser = parse_duration)]
    orphaned_grace: Duration,
    /// How long processes may go on that the command has left running.
    #[arg(long, value_parser = parse_duration)]
    linger: Duration,
    #[arg(long)]
    leave_children: bool,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl KeepOptions {
    pub(crate) async fn run(&self) -> Result {
        let failed = |error: std::io::Error| Failure::Failed(error.to_string());
        // A signal from the terminal, or one that is sent to the command's process group, does not end this
        // process, because it has to end last. `perennial run` passes on the signals that it receives.
        let mut others = Vec::new();
        let ignored = ignored_signals();
        for kind in PASSED_ON {
            // Signals that were ignored when `perennial run` was started are ignored by the command, too, so
            // they are not passed on.
            if !ignored.contains(kind()) {
                others.push(signal(kind()).map_err(failed)?);
            }
        }
        let mut child_ended = signal(SignalKind::child()).map_err(failed)?;
        let mut parent_ended = signal(SignalKind::terminate()).map_err(failed)?;
        set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|error| failed(error.into()))?;
        if !self.leave_children {
            set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
        }
        if self.parent_has_ended() {
            return Err(Failure::Failed("`perennial run` has ended".to_owned()));
        }

        let mut command = Command::new(&self.command[0]);
        let main = match command.args(&self.command[1..]).spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = format!("cannot run {:?}: {error}", self.command[0]);
                return Err(Failure::Status(not_run(error.kind()), Some(why)));
            }
        };
        let main = i32::try_from(main.id()).ok().and_then(Pid::from_raw);
        let processes = Processes { keeper: getpid() };
        let status = loop {
            if self.parent_has_ended() {
                processes.end(self.orphaned_grace).await;
                return Ok(());
            }
            // This also reaps the orphans that this process has adopted.
            if let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if Some(pid) == main {
                    break status;
                }
                continue;
            }
            tokio::select! {
                biased;
                _ = child_ended.recv() => {}
                _ = parent_ended.recv() => {}
            }
        };
        if !self.leave_children {
            self.wait_for_the_rest(&processes).await;
        }
        match code(status) {
            0 => Ok(()),
            code => Err(Failure::Status(code, None)),
        }
    }

    fn parent_has_ended(&self) -> bool {
        getppid().map(Pid::as_raw_pid) != Some(self.parent)
    }

    /// Waits for the processes that the command has left running, and ends those that stay.
    async fn wait_for_the_rest(&self, processes: &Processes) {
        let since = Instant::now();
        let mut is_told = false;
        while !all_have_ended() {
            // The other programs of a pipeline may end a moment after the last one, so the message waits for
            // 0.2 s.
            if !is_told && since.elapsed() >= Duration::from_millis(200) {
                is_told = true;
                print_line(format_args!(
                    "the command has ended, and processes that it started have not: {}; they hold the lock, and are ended after {} \
                     (--linger, --leave-children)",
                    named(&processes.living()),
                    humantime::format_duration(self.linger),
                ));
            }
            let is_orphaned = self.parent_has_ended();
            if since.elapsed() >= self.linger || is_orphaned {
                print_line(format_args!("ending {}", named(&processes.living())));
                let grace = if is_orphaned {
                    self.orphaned_grace
                } else {
                    self.grace
                };
                processes.end(grace).await;
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns true if this process, which adopts all that the command has started, has no children left. The list
/// in `/proc` does not suffice: it may hide other users' processes, and is not a consistent snapshot.
fn all_have_ended() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => return error == Errno::CHILD,
        }
    }
}

/// The signals that `perennial run` passes on to the command, except TERM.
const PASSED_ON: [fn() -> SignalKind; 5] = [
    SignalKind::hangup,
    SignalKind::interrupt,
    SignalKind::quit,
    SignalKind::user_defined1,
    SignalKind::user_defined2,
];

/// Returns the exit status for a command that could not be started, as a shell does.
pub(crate) fn not_run(error: ErrorKind) -> u8 {
    match error {
        ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// Returns the exit status as a shell does. For a process that was ended by a signal, that is 128 plus the
/// signal's number.
fn code(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = signal.or(status.exit_status()).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
