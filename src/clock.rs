//! The monotonic clock of this process, which also counts the time for which the machine was suspended. Times
//! are relative to its creation, and may be negative: a version may be older than the process.

use std::{
    ops,
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

pub(crate) use perennial_store::clock::{YEAR, duration, micros};

/// The shortest suspension of the machine that [`Clock::resumed`] notices. The uptime and the
/// monotonic clock are read one after the other, and the time between the two reads looks like a
/// short suspension.
const SUSPENSION: Duration = Duration::from_secs(1);

/// The monotonic clock, together with the time for which the machine was suspended. The monotonic clock stands
/// still during a suspension, so that time is [added](Self::resumed) once per sync interval.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The machine's uptime when the clock was created.
    up: Option<Duration>,
    made: std::time::Instant,
    suspended: AtomicI64,
}

/// Microseconds since the clock was created; negative for earlier times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tick(pub(crate) i64);

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            up: uptime(),
            made: std::time::Instant::now(),
            suspended: AtomicI64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        Tick(micros(self.start.elapsed()) + self.suspended.load(Relaxed))
    }

    /// Returns the approximate time for which the machine was suspended since the clock was
    /// created. Zero where the uptime is unknown.
    pub(crate) fn suspended(&self) -> Duration {
        let up = uptime().zip(self.up);
        let up = up.map(|(now, then)| now.saturating_sub(then));
        up.unwrap_or_default().saturating_sub(self.made.elapsed())
    }

    /// Sets the total time of the suspensions since the clock was created, if it has grown by at
    /// least [`SUSPENSION`].
    pub(crate) fn resumed(&self, suspended: Duration) {
        let suspended = micros(suspended);
        if suspended - self.suspended.load(Relaxed) >= micros(SUSPENSION) {
            self.suspended.fetch_max(suspended, Relaxed);
        }
    }
}

/// Returns the time since the machine was started, suspensions included. This is implemented only
/// for Linux; on other systems the result is `None`.
#[cfg(target_os = "linux")]
fn uptime() -> Option<Duration> {
    let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    uptime.try_into().ok()
}

#[cfg(not(target_os = "linux"))]
fn uptime() -> Option<Duration> {
    None
}

impl ops::Add<Duration> for Tick {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

impl ops::Sub<Duration> for Tick {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

/// Returns the time since `earlier`; zero if `earlier` is later.
impl ops::Sub for Tick {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        duration(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_while_the_machine_is_suspended() {
        let clock = Clock::start();
        let hour = Duration::from_hours(1);
        let began = clock.now();
        clock.resumed(Duration::from_millis(900));
        assert!(
            clock.now() - began < hour / 2,
            "as long as two reads may take"
        );
        clock.resumed(hour);
        let resumed = clock.now();
        assert!(resumed - began >= hour);
        clock.resumed(hour);
        clock.resumed(Duration::ZERO);
        assert!(clock.now() - resumed < hour / 2, "each is added once");
        clock.resumed(2 * hour);
        assert!(clock.now() - began >= 2 * hour);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn running_machine_has_no_suspension() {
        let clock = Clock::start();
        assert!(clock.up.is_some_and(|up| !up.is_zero()));
        assert!(clock.suspended() < Duration::from_secs(60));
    }
}
