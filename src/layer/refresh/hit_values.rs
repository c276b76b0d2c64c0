//! The values of the headers that Perennial adds to a stored response. Within one second, many pages have the
//! same `Age`, so each thread keeps the values that it has made, and most hits find theirs there.

use std::{
    cell::RefCell,
    fmt::{Display, Write},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use http::HeaderValue;
use httpdate::HttpDate;

use crate::{clock::Tick, http::cache_status::Handling};

/// The number of values that a thread caches. The slot of a value follows from the version's age in whole
/// seconds, and from whether the version was generated in an even or an odd second. At any time, versions of
/// the same age were generated in one of two adjacent seconds, so the two do not displace each other.
const CACHED_VALUES: usize = 128;

thread_local! {
    /// The values of the latest hits: many versions have the same [`HitTimes`], and a thread builds
    /// their values once.
    static CACHED: RefCell<[Option<HitValues>; CACHED_VALUES]> = const { RefCell::new([const { None }; CACHED_VALUES]) };
}

/// The facts of a hit that change each second, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HitTimes {
    pub(super) age: u64,
    pub(super) ttl: i64,
    pub(super) browser_cache: u64,
    /// The time of the generation, by the clock of the process.
    made: i64,
}

impl HitTimes {
    pub(super) fn new(made: Tick, now: Tick, ttl: i64, browser_cache: Duration) -> Self {
        Self {
            age: (now - made).as_secs(),
            ttl,
            browser_cache: browser_cache.as_secs(),
            made: made.0.div_euclid(1_000_000),
        }
    }
}

pub(super) struct HitValues {
    of: HitTimes,
    pub(super) age: HeaderValue,
    /// The time of the generation (RFC 9110 §6.6.1), not of the hit. A recipient takes the greater of `Age`
    /// and the time since `Date` (RFC 9111 §4.2.3), and here the two are equal. `None` means that the
    /// process's clock is before 1970.
    pub(super) date: Option<HeaderValue>,
    /// The date in seconds since 1970; zero without one.
    pub(super) date_seconds: i64,
    /// `None` stands for `no-cache`.
    pub(super) cache_control: Option<HeaderValue>,
    pub(super) cache_status: HeaderValue,
}

impl HitValues {
    /// Applies a function to the values. `age` returns the exact age of the version.
    pub(super) fn with<T>(
        hit: HitTimes,
        age: impl Fn() -> Duration,
        mut take: impl FnMut(&Self) -> T,
    ) -> T {
        let cached = CACHED.try_with(|cached| {
            let mut cached = cached.borrow_mut();
            let place = hit.age.wrapping_mul(2).wrapping_add((hit.made & 1) as u64);
            let place = &mut cached[place as usize % CACHED_VALUES];
            match place {
                Some(values) if values.of == hit => take(values),
                _ => take(place.insert(Self::new(hit, age()))),
            }
        });
        // If the thread is ending, its values are gone.
        cached.unwrap_or_else(|_| take(&Self::new(hit, age())))
    }

    /// Makes the values in one buffer, so that all of them together take only two allocations.
    fn new(of: HitTimes, age: Duration) -> Self {
        // The values of a hit take some 100 bytes.
        let mut buffer = BytesMut::with_capacity(160);
        let mut value = |text: &dyn Display| {
            write!(buffer, "{text}").expect("a buffer grows");
            HeaderValue::from_maybe_shared(buffer.split().freeze()).expect("is visible ASCII")
        };
        let made = SystemTime::now()
            .checked_sub(age)
            .filter(|made| *made >= SystemTime::UNIX_EPOCH);
        let since = made.and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok());
        let since = since.unwrap_or_default().as_secs();
        Self {
            of,
            age: value(&of.age),
            date_seconds: since.try_into().unwrap_or(i64::MAX),
            date: made.map(|made| value(&HttpDate::from(made))),
            cache_control: match of.browser_cache {
                0 => None,
                limit => {
                    let fresh = of.ttl.max(0).unsigned_abs().min(limit);
                    // `max-age` counts from the generation, as `Age` does.
                    let fresh = of.age.saturating_add(fresh);
                    Some(value(&format_args!("max-age={fresh}")))
                }
            },
            cache_status: value(&Handling::Hit { ttl: of.ttl }),
        }
    }
}
