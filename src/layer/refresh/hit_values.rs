//! The values of the headers that Perennial adds to a stored response.

use std::{
    cell::RefCell,
    fmt::{Display, Write},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, header};
use httpdate::HttpDate;

use crate::{http::cache_status::Handling, policy::BrowserCache, resource::HitHeaders};

/// The number of values that a thread caches, each in the place given by its age and its date: at
/// one time, versions of one age have two dates.
const RECENT: usize = 128;

thread_local! {
    /// All versions of one age and time to live have the same values, and a thread makes these once.
    static CACHED: RefCell<[Option<HitValues>; RECENT]> = const { RefCell::new([const { None }; RECENT]) };
}

pub(super) struct HitValues {
    of: (HitHeaders, Option<u64>),
    age: HeaderValue,
    /// `None`: the process's clock is before 1970.
    date: Option<HeaderValue>,
    cache_control: HeaderValue,
    pub(super) cache_status: HeaderValue,
}

impl HitValues {
    /// Calls `take` with the values. `age`: the exact age of the version.
    pub(super) fn with(hit: HitHeaders, age: Duration, mut take: impl FnMut(&Self)) {
        let made = SystemTime::now().checked_sub(age);
        let made = made.and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok());
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
        if cached.is_err() {
            // The thread is ending.
            take(&Self::new(of));
        }
    }

    /// Makes the values in one buffer, so that they take two allocations.
    fn new(of: (HitHeaders, Option<u64>)) -> Self {
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
            cache_control: match hit.browser_cache {
                BrowserCache::UntilStale(revalidating) => {
                    // `max-age` counts from the generation, as `Age` does.
                    let fresh = hit.age.saturating_add_signed(hit.ttl.max(0));
                    match revalidating.as_secs() {
                        0 => value(&format_args!("max-age={fresh}")),
                        seconds => value(&format_args!(
                            "max-age={fresh}, stale-while-revalidate={seconds}"
                        )),
                    }
                }
                BrowserCache::Revalidate => HeaderValue::from_static("no-cache"),
            },
            cache_status: value(&Handling::Hit { ttl: hit.ttl }),
        }
    }

    /// Sets `Age`. Sets `Date` unless the response has one, and `Cache-Control` unless the response
    /// has `Cache-Control` or `Expires`.
    ///
    /// `Date` is the time of the generation (RFC 9110 §6.6.1), not of the hit. A recipient takes
    /// the greater of `Age` and the time since `Date` (RFC 9111 §4.2.3), and here the two are equal.
    pub(super) fn set(&self, headers: &mut HeaderMap) {
        headers.insert(header::AGE, self.age.clone());
        if let Some(date) = &self.date
            && !headers.contains_key(header::DATE)
        {
            headers.insert(header::DATE, date.clone());
        }
        if !headers.contains_key(header::CACHE_CONTROL) && !headers.contains_key(header::EXPIRES) {
            headers.insert(header::CACHE_CONTROL, self.cache_control.clone());
        }
    }
}
