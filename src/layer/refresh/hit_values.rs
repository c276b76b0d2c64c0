//! The values of the headers that Perennial adds to a stored response.

use std::{
    cell::RefCell,
    fmt::{Display, Write},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use http::HeaderValue;
use httpdate::HttpDate;

use crate::http::cache_status::Handling;

/// The number of values that a thread caches, each in the place given by its age and its date: at
/// one time, versions of one age have two dates.
const RECENT: usize = 128;

thread_local! {
    /// All versions of one age and time to live have the same values, and a thread makes these once.
    static CACHED: RefCell<[Option<HitValues>; RECENT]> = const { RefCell::new([const { None }; RECENT]) };
}

/// The facts of a hit that change each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HitFacts {
    /// In seconds.
    pub(super) age: u64,
    pub(super) ttl: i64,
    pub(super) browser_cache: Duration,
}

pub(super) struct HitValues {
    of: (HitFacts, Option<u64>),
    pub(super) age: HeaderValue,
    /// The time of the generation (RFC 9110 §6.6.1), not of the hit. A recipient takes the greater of
    /// `Age` and the time since `Date` (RFC 9111 §4.2.3), and here the two are equal. `None`: the
    /// process's clock is before 1970.
    pub(super) date: Option<HeaderValue>,
    pub(super) cache_control: HeaderValue,
    pub(super) cache_status: HeaderValue,
}

impl HitValues {
    /// Returns `take` of the values. `age`: the exact age of the version.
    pub(super) fn with<T>(hit: HitFacts, age: Duration, take: impl Fn(&Self) -> T) -> T {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok();
        let made = now.and_then(|now| now.checked_sub(age));
        let of = (hit, made.map(|made| made.as_secs()));
        let cached = CACHED.try_with(|cached| {
            let mut cached = cached.borrow_mut();
            let date = of.1.unwrap_or_default();
            let place = hit.age.wrapping_mul(2).wrapping_add(date % 2) as usize % RECENT;
            let place = &mut cached[place];
            match place {
                Some(values) if values.of == of => take(values),
                _ => take(place.insert(Self::new(of))),
            }
        });
        // The thread is ending.
        cached.unwrap_or_else(|_| take(&Self::new(of)))
    }

    /// Makes the values in one buffer, so that they take two allocations.
    fn new(of: (HitFacts, Option<u64>)) -> Self {
        // The values of a hit take some 100 bytes.
        let mut buffer = BytesMut::with_capacity(160);
        let mut value = |text: &dyn Display| {
            write!(buffer, "{text}").expect("a buffer grows");
            HeaderValue::from_maybe_shared(buffer.split().freeze()).expect("is visible ASCII")
        };
        let (hit, made) = of;
        let date = |made| HttpDate::from(SystemTime::UNIX_EPOCH + Duration::from_secs(made));
        Self {
            of,
            age: value(&hit.age),
            date: made.map(|made| value(&date(made))),
            cache_control: match hit.browser_cache.as_secs() {
                0 => HeaderValue::from_static("no-cache"),
                limit => {
                    let fresh = hit.ttl.max(0).unsigned_abs().min(limit);
                    // `max-age` counts from the generation, as `Age` does.
                    let fresh = hit.age.saturating_add(fresh);
                    value(&format_args!("max-age={fresh}"))
                }
            },
            cache_status: value(&Handling::Hit { ttl: hit.ttl }),
        }
    }
}
