//! The monotonic clock of this process.
//!
//! Ages come from the database's clock; between two statements they are carried on by this one. A version may be older
//! than the process, which an [`Instant`] cannot express, so times are counted from a start and may be negative.

use std::{
    ops,
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// Of 365 days.
pub(crate) const YEAR: Duration = Duration::from_hours(365 * 24);

/// Longer than anything is kept; what is added to it still fits a column.
pub(crate) const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

/// A suspension of the machine that is shorter than this is not told from the time that it takes to read two clocks.
const SUSPENSION: Duration = Duration::from_secs(1);

/// The monotonic clock, which stands still while the machine is suspended, and the time of suspensions, which is
/// [added](Self::resumed) once in a sync interval.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// How long the machine had been up when the clock was made, and when that was.
    up: Option<Duration>,
    made: std::time::Instant,
    suspended: AtomicI64,
}

/// Microseconds since the clock was made; negative before.
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

    /// The time since the clock was made, suspensions included.
    pub(crate) fn elapsed(&self) -> Duration {
        self.resumed(self.suspended());
        self.now() - Tick(0)
    }

    /// The time for which the machine has been suspended since the clock was made, by and large; zero where that is not known.
    pub(crate) fn suspended(&self) -> Duration {
        let up = uptime().zip(self.up);
        let up = up.map(|(now, then)| now.saturating_sub(then));
        up.unwrap_or_default().saturating_sub(self.made.elapsed())
    }

    /// Adds the suspensions since the clock was made, if they have taken this time in all.
    pub(crate) fn resumed(&self, suspended: Duration) {
        let suspended = micros(suspended);
        if suspended - self.suspended.load(Relaxed) >= micros(SUSPENSION) {
            self.suspended.fetch_max(suspended, Relaxed);
        }
    }
}

/// The time since the machine was started, suspensions included: on Linux, the first number of `/proc/uptime`.
fn uptime() -> Option<Duration> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds = uptime.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
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

/// The time from `earlier` on; zero when `earlier` is later.
impl ops::Sub for Tick {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        duration(self.0.saturating_sub(earlier.0))
    }
}

/// Whole microseconds, as the database counts; saturates.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The inverse of [`micros`]; zero for what is negative.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
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
    fn machine_that_was_not_suspended_says_so() {
        let clock = Clock::start();
        assert!(clock.up.is_some_and(|up| !up.is_zero()));
        assert!(clock.suspended() < Duration::from_secs(60));
    }
}
