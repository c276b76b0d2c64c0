//! The monotonic clock of this process.
//!
//! Ages come from the database's clock; between two statements they are carried on by this one. A version may be older
//! than the process, which an [`Instant`] cannot express, so times are counted from a start and may be negative.

use std::{ops, time::Duration};

use tokio::time::Instant;

/// Of 365 days.
pub(crate) const YEAR: Duration = Duration::from_hours(365 * 24);

/// Longer than anything is kept; what is added to it still fits a column.
pub(crate) const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

/// Microseconds since the clock was made; negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) i64);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Tick {
        Tick(micros(self.0.elapsed()))
    }
}

/// A random length between the two, so that those who have met once do not meet at each try.
pub(crate) fn random(shortest: Duration, longest: Duration) -> Duration {
    let [random, ..] = uuid::Uuid::new_v4().into_bytes();
    shortest + longest.saturating_sub(shortest) * u32::from(random) / 255
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
