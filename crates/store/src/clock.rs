//! The unit of time that the database's columns use: whole microseconds. No clock is read here.

use std::time::Duration;

pub const YEAR: Duration = Duration::from_hours(365 * 24);

/// The longest retention. Longer ones are cut to it, so that the sum of a date and a retention fits into a
/// column.
pub const FOREVER: Duration = Duration::from_hours(1000 * 365 * 24);

/// Returns whole microseconds, the unit of the database; saturates.
pub fn micros(duration: Duration) -> i64 {
    let micros = duration.as_secs().saturating_mul(1_000_000);
    let micros = micros.saturating_add(duration.subsec_micros().into());
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// Converts a number of microseconds into a duration. A negative number becomes zero.
pub fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
