//! All processes that a command has started, directly or not, and how they are ended.
//!
//! On Linux these are the living descendants of a process that adopts orphans (a subreaper), so that no
//! process escapes, whatever session or group it has made for itself. Elsewhere they are the members of a
//! process group.

use std::{io::Write, time::Duration};

use rustix::process::{Pid, Signal};
#[cfg(target_os = "linux")]
use rustix::process::{getpid, kill_process};
use tokio::time::{Instant, sleep};

/// The time between two checks for processes that are still running.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time after which a process that KILL has not ended will not end.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The processes of a command.
pub(crate) struct Processes {
    /// On Linux, this is `perennial keep`, which has started the other processes, and is not one of them
    /// itself. Elsewhere, it is the process group.
    pub(crate) keeper: Pid,
}

impl Processes {
    /// Returns the processes of the command, each as its number and its name.
    #[cfg(target_os = "linux")]
    pub(crate) fn living(&self) -> Vec<(Pid, String)> {
        let stats = stats();
        let mut found = vec![getpid()];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            let children = stats.iter().filter(|stat| stat.parent == parent);
            // A process ID may be reused between two reads, and then the process tree seems to contain a
            // cycle.
            let new: Vec<_> = children
                .map(|stat| stat.pid)
                .filter(|pid| !found.contains(pid))
                .collect();
            found.extend(new);
            next += 1;
        }
        let is_of_command =
            |stat: &Stat| stat.lives && found[1..].contains(&stat.pid) && stat.pid != self.keeper;
        let living = stats.into_iter().filter(is_of_command);
        living.map(|stat| (stat.pid, stat.name)).collect()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn living(&self) -> Vec<(Pid, String)> {
        let lives = rustix::process::test_kill_process_group(self.keeper)
            .or_else(|_| rustix::process::test_kill_process(self.keeper));
        lives
            .is_ok()
            .then(|| (self.keeper, "process group".to_owned()))
            .into_iter()
            .collect()
    }

    /// Sends a signal to each of the processes. Returns true if there is still a process.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let living = self.living();
        // A process may have ended meanwhile.
        #[cfg(target_os = "linux")]
        for (pid, _) in &living {
            let _ = kill_process(*pid, signal);
        }
        // If the command runs in the process group of a terminal's job, it has no group of its own.
        #[cfg(not(target_os = "linux"))]
        if rustix::process::kill_process_group(self.keeper, signal).is_err() {
            let _ = rustix::process::kill_process(self.keeper, signal);
        }
        !living.is_empty()
    }

    /// Ends the processes: TERM first, and after the time `grace` KILL for those that are left. Reports
    /// processes that cannot be ended because they belong to another user by now.
    pub(crate) async fn end(&self, grace: Duration) {
        self.signal(Signal::TERM);
        if self.have_ended(grace).await {
            return;
        }
        let since = Instant::now();
        // Each round also finds the processes that were started since the previous round.
        while self.signal(Signal::KILL) {
            if since.elapsed() >= KILL_WAIT {
                print_line(format_args!(
                    "cannot end {}, which this user may not kill",
                    named(&self.living())
                ));
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Takes the statuses of processes that this program has adopted and that have ended.
    #[cfg(target_os = "linux")]
    pub(crate) fn reap(&self) {
        let ended = stats()
            .into_iter()
            .filter(|stat| !stat.lives && stat.parent == getpid() && stat.pid != self.keeper);
        for stat in ended {
            let _ = rustix::process::waitpid(Some(stat.pid), rustix::process::WaitOptions::NOHANG);
        }
    }

    /// Waits until all have ended, for no longer than this. Returns true if they have.
    pub(crate) async fn have_ended(&self, limit: Duration) -> bool {
        let since = Instant::now();
        while !self.living().is_empty() {
            if since.elapsed() >= limit {
                return false;
            }
            sleep(POLL_INTERVAL.min(limit)).await;
        }
        true
    }
}

/// Returns the numbers and names of processes.
pub(crate) fn named(processes: &[(Pid, String)]) -> String {
    let processes = processes.iter();
    let processes = processes.map(|(pid, name)| format!("{} ({name})", pid.as_raw_pid()));
    crate::print::text(&processes.collect::<Vec<_>>().join(", ")).to_string()
}

/// Writes a line to standard error. It is no failure if nobody reads it any more.
pub(crate) fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "perennial: {line}");
}

/// Returns all processes that this program may see.
#[cfg(target_os = "linux")]
fn stats() -> Vec<Stat> {
    let folder = std::fs::read_dir("/proc").into_iter().flatten();
    let stats = folder.filter_map(|entry| {
        let number: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        parse(&stat)
    });
    stats.collect()
}

/// A line of `/proc/PID/stat`.
#[cfg(target_os = "linux")]
struct Stat {
    pid: Pid,
    name: String,
    /// The process has not ended.
    lives: bool,
    parent: Pid,
}

/// Reads `PID (NAME) STATE PARENT …`. A name may contain parentheses and spaces. `None` means that the parent
/// of the process is not visible here, for example in a container.
#[cfg(target_os = "linux")]
fn parse(stat: &str) -> Option<Stat> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut rest = rest.split(' ');
    let state = rest.next()?;
    Some(Stat {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        name: name.to_owned(),
        lives: !["Z", "X"].contains(&state),
        parent: Pid::from_raw(rest.next()?.parse().ok()?)?,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_is_read() {
        let stat = parse("12 (a) (b c) Z 3 12 12 0").expect("is a line");
        assert_eq!((stat.pid.as_raw_pid(), &*stat.name), (12, "a) (b c"));
        assert_eq!((stat.lives, stat.parent.as_raw_pid()), (false, 3));
    }
}
