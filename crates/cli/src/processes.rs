//! All processes that a command has started, directly or not, and how they are ended.
//!
//! On Linux these are the living descendants of a process that adopts orphans (a subreaper), so that no
//! process escapes, whatever session or group it has made for itself. Elsewhere they are the members of a
//! process group.

use std::time::Duration;

use rustix::process::{Pid, Signal};
#[cfg(target_os = "linux")]
use rustix::process::{getpid, kill_process};
use tokio::time::{Instant, sleep};

/// The time between two looks at the processes that are left.
const LOOK: Duration = Duration::from_millis(50);

/// The processes of a command.
pub(crate) struct Processes {
    /// Linux: the process that keeps the others for this program, which is none of them. Elsewhere: the
    /// process group.
    pub(crate) keeper: Pid,
}

impl Processes {
    /// Returns the processes of the command, each as its number and its name.
    #[cfg(target_os = "linux")]
    pub(crate) fn living(&self) -> Vec<(Pid, String)> {
        let Ok(folder) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let stats = folder.filter_map(|entry| {
            let number: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
            parse(&stat)
        });
        let stats: Vec<_> = stats.collect();
        let mut found = vec![getpid()];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            let children = stats.iter().filter(|stat| stat.parent == parent);
            // Numbers that are used again meanwhile may look like a circle.
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
        let lives = rustix::process::test_kill_process_group(self.keeper).is_ok();
        lives
            .then(|| (self.keeper, "process group".to_owned()))
            .into_iter()
            .collect()
    }

    /// Sends a signal to each of the processes.
    pub(crate) fn signal(&self, signal: Signal) {
        // A process may have ended meanwhile.
        #[cfg(target_os = "linux")]
        for (pid, _) in self.living() {
            let _ = kill_process(pid, signal);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = rustix::process::kill_process_group(self.keeper, signal);
    }

    /// Ends the processes: by TERM, and by KILL those that are left after the time `grace`.
    pub(crate) async fn end(&self, grace: Duration) {
        self.signal(Signal::TERM);
        if !self.have_ended(grace).await {
            // A process that starts others meanwhile is met again.
            while !self.living().is_empty() {
                self.signal(Signal::KILL);
                sleep(LOOK).await;
            }
        }
    }

    /// Waits until all have ended, for no longer than this. Returns true if they have.
    pub(crate) async fn have_ended(&self, limit: Duration) -> bool {
        let since = Instant::now();
        while !self.living().is_empty() {
            if since.elapsed() >= limit {
                return false;
            }
            sleep(LOOK.min(limit)).await;
        }
        true
    }
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

/// Reads `PID (NAME) STATE PARENT …`. A name may have parentheses and spaces. `None`: the process has no
/// parent here.
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
