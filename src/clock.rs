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
    suspended_before: Duration,
    suspended: AtomicI64,
}

/// Microseconds since the clock was made; negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) i64);

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            suspended_before: suspended(),
            suspended: AtomicI64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        Tick(micros(self.start.elapsed()) + self.suspended.load(Relaxed))
    }

    /// Adds the suspensions since the clock was made, if the machine has been suspended for `total` since its own start.
    pub(crate) fn resumed(&self, total: Duration) {
        let since = micros(total.saturating_sub(self.suspended_before));
        if since - self.suspended.load(Relaxed) >= micros(SUSPENSION) {
            self.suspended.fetch_max(since, Relaxed);
        }
    }
}

/// The time for which this machine has been suspended since it was started, by and large.
#[cfg(target_os = "linux")]
pub(crate) fn suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let [all, running] = [ClockId::Boottime, ClockId::Monotonic]
        .map(|clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default());
    all.saturating_sub(running)
}

/// Zero: what counts suspensions is not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn suspended() -> Duration {
    Duration::ZERO
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
        let before = clock.suspended_before;
        let hour = Duration::from_hours(1);
        let began = clock.now();
        clock.resumed(before + Duration::from_millis(900));
        assert!(
            clock.now() - began < hour / 2,
            "as long as two reads may take"
        );
        clock.resumed(before + hour);
        let resumed = clock.now();
        assert!(resumed - began >= hour);
        clock.resumed(before + hour);
        clock.resumed(before);
        assert!(clock.now() - resumed < hour / 2, "each is added once");
        clock.resumed(before + 2 * hour);
        assert!(clock.now() - began >= 2 * hour);
    }
}
