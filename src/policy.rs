//! The policy of a page, [`Refresh`]: its interval and the limits of each wait, as plain values. What follows
//! from them is decided in [`cache`](crate::cache); only the arithmetic of intervals, jitter and cooldowns is
//! here.

use std::{
    fmt,
    panic::{RefUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    clock::{YEAR, duration, micros},
    timing::{self, Pauses},
};

/// One day, for intervals: `Refresh::every(30 * DAY)`.
pub const DAY: Duration = Duration::from_hours(24);

/// The times at which content becomes stale, for [`Refresh::on_schedule`].
/// [perennial-calendar](https://docs.rs/perennial-calendar) implements the trait for days and times
/// of day.
pub trait Schedule: fmt::Debug + Send + Sync + RefUnwindSafe {
    /// Returns the usual time between two occurrences.
    fn period(&self) -> Duration;

    /// Returns the first occurrence after this time, or `None` if there is none.
    fn next(&self, after: SystemTime) -> Option<SystemTime>;
}

/// The policy of a page or of content: when it is stale, and how long each party waits.
///
/// A `Duration` is a policy as well, so that most layers need no more than `site.layer(DAY)`.
///
/// ```
/// use std::time::Duration;
/// use perennial::{DAY, Refresh};
///
/// const TOP_TEN: Refresh = Refresh::every(DAY)
///     .in_background()
///     .follower_wait(Duration::from_secs(10))
///     .generator_timeout(Duration::from_secs(20));
/// ```
///
/// # The waits
///
/// When a page is stale, the request of one visitor (the *leader*) starts a regeneration. The process
/// acquires a lock that expires by itself (the *lease*), and runs the handler (the *generator*). Requests
/// that come meanwhile are *followers*.
///
/// | setting | who waits, and for what | what follows when it is over | default |
/// |---|---|---|---|
/// | [`leader_wait`](Self::leader_wait) | the leader, for the new version | it gets the old version, and the generator goes on | 1 s |
/// | [`follower_wait`](Self::follower_wait) | followers, where no version may be served | 503 with `Retry-After` | 30 s |
/// | [`generator_timeout`](Self::generator_timeout) | the process, for its generator | it is cancelled, and counts as failed | 60 s |
/// | [`lease_duration`](Self::lease_duration) | other processes, for one that is silent | one of them takes the lock over | 15 s |
/// | [`Builder::statement_timeout`](crate::Builder::statement_timeout) | any task, for the database | the call fails | 5 s |
/// | [`Builder::database_patience`](crate::Builder::database_patience) | a visitor, for the database, where there is an answer without it | the visitor gets that answer | 0.5 s |
#[derive(Clone, Debug)]
#[must_use = "a policy does nothing until a layer or a call is given it"]
pub struct Refresh {
    pub(crate) interval: Duration,
    pub(crate) leader_wait: Duration,
    pub(crate) follower_wait: Duration,
    pub(crate) generator_timeout: Duration,
    pub(crate) lease_duration: Duration,
    cooldown: Option<Duration>,
    pub(crate) stale_while_revalidate: Option<Duration>,
    pub(crate) jitter: f64,
    pub(crate) stale_if_error: Duration,
    pub(crate) outlives_parts: bool,
    verify: f64,
    schedule: Option<Arc<dyn Schedule>>,
    pub(crate) browser_cache: Duration,
    pub(crate) cdn_cache: Option<Duration>,
    /// The response's own freshness headers decide how long it is fresh.
    pub(crate) by_headers: bool,
    /// Visitors get the failure of a generator even where there is an old version. Only the development mode
    /// sets this.
    pub(crate) shows_failures: bool,
}

impl Refresh {
    /// Creates the policy of most pages: a version is stale when it is as old as the interval.
    ///
    /// The age counts from the moment at which the version was published, by the database's clock. A 404, 405, 410 or
    /// 414 is stale after a minute at most, unless the response has a [`RefreshAfter`](crate::RefreshAfter). With an
    /// interval of zero, a version is always stale, and one request at a time regenerates the page.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(30 * DAY);
    /// ```
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            leader_wait: timing::LEADER_WAIT,
            follower_wait: timing::FOLLOWER_WAIT,
            generator_timeout: timing::GENERATION_TIMEOUT,
            lease_duration: timing::DEFAULT_LEASE,
            cooldown: None,
            stale_while_revalidate: None,
            jitter: 0.0,
            stale_if_error: Duration::ZERO,
            outlives_parts: false,
            verify: 0.0,
            schedule: None,
            browser_cache: Duration::ZERO,
            cdn_cache: None,
            by_headers: false,
            shows_failures: false,
        }
    }

    /// Creates a policy for pages that change at known times, such as each morning at six: a version is stale as soon
    /// as such a time has passed since its generation began.
    ///
    /// Nothing runs at that time. The first request after it regenerates the page, and visitors get the old
    /// version meanwhile. Times are compared with the database's clock. As with [`every`](Self::every), a 404,
    /// 405, 410 or 414 is stale after a minute at most.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use perennial::{DAY, Refresh, Schedule};
    ///
    /// #[derive(Debug)]
    /// struct Midnight; // of UTC; perennial-calendar has time zones
    ///
    /// impl Schedule for Midnight {
    ///     fn period(&self) -> Duration { DAY }
    ///
    ///     fn next(&self, after: SystemTime) -> Option<SystemTime> {
    ///         let since = after.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    ///         let days = since.as_secs() / DAY.as_secs() + 1;
    ///         SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(days * DAY.as_secs()))
    ///     }
    /// }
    ///
    /// let policy = Refresh::on_schedule(Midnight);
    /// ```
    pub fn on_schedule(schedule: impl Schedule + 'static) -> Self {
        let mut policy = Self::every(schedule.period());
        policy.schedule = Some(Arc::new(schedule));
        policy
    }

    /// Creates a policy under which the headers of each response decide when it is stale, as in an HTTP cache.
    /// If a response has no header that sets a lifetime, it is stale after `default`.
    ///
    /// - The lifetime is `s-maxage`, `max-age` or `Expires` (RFC 9111 §4.2), minus the response's `Age`. `jitter`,
    ///   `stale_while_revalidate` and `stale_if_error` of the policy have no effect on such a response.
    /// - A valid `CDN-Cache-Control` replaces `Cache-Control` and `Expires`, also in deciding whether the
    ///   response may be stored (RFC 9213 §2.2).
    /// - When the lifetime is over, the old version is served only for as long as the directive
    ///   `stale-while-revalidate` or `stale-if-error` says (RFC 5861). Without these directives, visitors wait for
    ///   the new version.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::by_headers(Duration::from_secs(60));
    /// ```
    pub const fn by_headers(default: Duration) -> Self {
        let mut policy = Self::every(default);
        policy.by_headers = true;
        policy
    }

    /// Sets how long the visitor whose request started a regeneration waits for the new version. After that time, the
    /// visitor gets the old one, and the regeneration goes on. Default: 1 s.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).leader_wait(Duration::from_millis(300));
    /// ```
    pub const fn leader_wait(mut self, limit: Duration) -> Self {
        self.leader_wait = limit;
        self
    }

    /// Makes no visitor wait for a regeneration while there is an old version: sets
    /// [`leader_wait`](Self::leader_wait) to zero. This is `stale-while-revalidate` as RFC 5861 §3 has it.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).in_background();
    /// ```
    pub const fn in_background(self) -> Self {
        self.leader_wait(Duration::ZERO)
    }

    /// Sets how long visitors wait for a page that another visitor's request is generating, while no version may be
    /// served: there is none yet, or the old one is [too old](Self::stale_while_revalidate). After that time they get
    /// a 503 with `Retry-After`. Default: 30 s.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).follower_wait(Duration::from_secs(10));
    /// ```
    pub const fn follower_wait(mut self, limit: Duration) -> Self {
        self.follower_wait = limit;
        self
    }

    /// Sets how long a generator may run. After that time it is cancelled at its next `await`, and counts as failed.
    /// Default: 60 s.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).generator_timeout(Duration::from_secs(20));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics at zero.
    pub const fn generator_timeout(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a generator takes time");
        self.generator_timeout = limit;
        self
    }

    /// Sets how long a process that has crashed keeps the lock of the page. Default: 15 s.
    ///
    /// While a generator runs, its process extends the lease whenever a third of it has passed. So a process
    /// can stand still for two thirds of the lease. After that, another process considers it crashed and
    /// generates the page as well, and the late result of the first one is refused. Choose a longer lease for
    /// processes that may be paused for a long time, and a shorter one to recover sooner from a crash.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).lease_duration(Duration::from_secs(60));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of 10 ms – 1 year.
    pub const fn lease_duration(mut self, length: Duration) -> Self {
        assert!(
            perennial_store::is_lease(length),
            "a lease lasts from 10 ms to a year"
        );
        self.lease_duration = length;
        self
    }

    /// Sets how long all processes wait after a failure before one tries again. Default: the interval, but at
    /// least 3 s and at most 30 s.
    ///
    /// If there is no version that may be served, the pause is a second, and doubles with each failure until it is as
    /// long as the cooldown.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).cooldown(Duration::from_secs(5));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics above 1 year.
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        assert!(
            cooldown.as_nanos() <= YEAR.as_nanos(),
            "a cooldown lasts a year at most"
        );
        self.cooldown = Some(cooldown);
        self
    }

    /// Sets how long a stale version may still be served after its interval has ended, while one request
    /// regenerates the page (RFC 5861 §3). After that time visitors wait for the new version, as they wait for
    /// a first one. Default: no limit.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(Duration::from_secs(60)).stale_while_revalidate(DAY);
    /// ```
    pub const fn stale_while_revalidate(mut self, limit: Duration) -> Self {
        self.stale_while_revalidate = Some(limit);
        self
    }

    /// Sets for how long after the end of the interval a stale version may be served if the regeneration has
    /// failed (RFC 5861 §4). The limit matters only if it is longer than the time that
    /// [`stale_while_revalidate`](Self::stale_while_revalidate) allows. The failure may have happened in any
    /// process. Default: zero. It has no effect without `stale_while_revalidate`.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let policy = Refresh::every(minute).stale_while_revalidate(minute).stale_if_error(DAY);
    /// ```
    pub const fn stale_if_error(mut self, limit: Duration) -> Self {
        self.stale_if_error = limit;
        self
    }

    /// Keeps a page fresh for its own interval, even if one of its [parts](crate::Perennial::content) becomes
    /// stale because of its age. Default: the page is stale as soon as one of its parts is.
    ///
    /// An invalidation of a part always makes the page stale, and a page that was generated with a stale part is
    /// stale after 3 s.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).outlives_parts();
    /// ```
    pub const fn outlives_parts(mut self) -> Self {
        self.outlives_parts = true;
        self
    }

    /// Spreads the regenerations of pages that were generated at the same time: the interval of each key is
    /// shortened by up to this fraction. The fraction for a given key is always the same. Default: 0.
    ///
    /// With a [schedule](Self::on_schedule), each page becomes stale later instead, by up to this fraction of
    /// the time until the next occurrence.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).jitter(0.1); // after 21.6 to 24 hours
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the fraction is not between 0 and 1.
    pub const fn jitter(mut self, fraction: f64) -> Self {
        assert!(is_fraction(fraction), "a jitter is a fraction from 0 to 1");
        self.jitter = fraction;
        self
    }

    /// Looks for [missed invalidations](crate::event::Event::MissedInvalidation) before the interval is over: every
    /// hour, this share of the fresh pages is regenerated in the background, and the new content is compared with the
    /// old. Default: 0, so that a page is compared only when its interval is over.
    ///
    /// With an interval of a month, a tag that somebody forgot would go unnoticed for a month. With 0.01, about one
    /// page in a hundred is compared each hour, as long as visitors ask for it. Pages without a tag, and those with a
    /// [`RefreshAfter`](crate::RefreshAfter), are left out. No visitor waits for it.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(30 * DAY).verify(0.001);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the fraction is not between 0 and 1.
    pub const fn verify(mut self, fraction: f64) -> Self {
        assert!(
            is_fraction(fraction),
            "the share of the pages that are verified is a fraction from 0 to 1"
        );
        self.verify = fraction;
        self
    }

    /// Lets browsers and other caches use a page for this time without revalidating it (`max-age`), but never beyond
    /// the time at which it becomes stale. Default: zero, so that a client asks before each use (`no-cache`) and gets
    /// a 304 if nothing has changed.
    ///
    /// A handler that sets `Cache-Control` or `Expires` decides instead. An invalidation does not reach a browser, so
    /// keep this time short.
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).browser_cache(Duration::from_secs(60));
    /// ```
    pub const fn browser_cache(mut self, limit: Duration) -> Self {
        self.browser_cache = limit;
        self
    }

    /// Lets a content delivery network use a page for this time without revalidating it, but never beyond the time at
    /// which it becomes stale. Default: zero.
    ///
    /// The page gets the header `CDN-Cache-Control` (RFC 9213), unless the handler has set one. An invalidation does
    /// not reach the network by itself: see [`RefreshLayer::cdn_tags`](crate::layer::RefreshLayer::cdn_tags).
    ///
    /// ```
    /// # use perennial::{DAY, Refresh};
    /// # use std::time::Duration;
    /// let policy = Refresh::every(DAY).cdn_cache(Duration::from_hours(1));
    /// ```
    pub const fn cdn_cache(mut self, limit: Duration) -> Self {
        self.cdn_cache = Some(limit);
        self
    }

    /// Returns the policy for [`Mode::Development`](crate::Mode::Development).
    pub(crate) fn in_development(mut self) -> Self {
        self.leader_wait = self.generator_timeout;
        self.cooldown = Some(Duration::ZERO);
        self.shows_failures = true;
        self
    }

    pub(crate) fn cooldown_time(&self) -> Duration {
        let default = || {
            self.interval
                .clamp(timing::SHORTEST_COOLDOWN, timing::LONGEST_COOLDOWN)
        };
        self.cooldown.unwrap_or_else(default)
    }

    /// Returns the cooldown after a failure if no version may be served: one second, doubled with each previous
    /// failure, and at most the policy's cooldown.
    pub(crate) fn cooldown_after(&self, failures: u32) -> Duration {
        let longest = self.cooldown_time();
        Pauses::growing(timing::FIRST_COOLDOWN, longest).after(failures)
    }

    /// Returns the interval of a key whose place in the spread is `unit` (0 to 1).
    pub(crate) fn interval_at(&self, unit: f64) -> Duration {
        if self.jitter == 0.0 {
            return self.interval;
        }
        part(self.interval, 1.0 - self.jitter * unit)
    }

    /// Returns the age at which a version is verified, or `None` if none is. `unit` is the place of the version
    /// among all, from 0 to 1.
    pub(crate) fn verified_after(&self, unit: impl FnOnce() -> f64) -> Option<Duration> {
        (self.verify > 0.0).then(|| verified_after(self.verify, unit()))
    }

    /// Returns the interval of a version that was generated at these times, counted from the time at which it
    /// was published, or `None` if no schedule decides. `unit` is that of [`interval_at`](Self::interval_at).
    /// If the schedule panics, which is logged as an error, the version is stale after the cooldown.
    pub(crate) fn scheduled(&self, times: GenerationTimes, unit: f64) -> Option<Duration> {
        let schedule = &**self.schedule.as_ref()?;
        let began = SystemTime::UNIX_EPOCH + duration(times.began);
        let spread = self.jitter * unit;
        let next = catch_unwind(|| {
            let first = schedule.next(began)?;
            let second = (spread > 0.0).then(|| schedule.next(first)).flatten();
            Some((first, second))
        });
        let (first, second) = match next {
            Ok(Some(next)) => next,
            Ok(None) => return Some(YEAR),
            Err(_) => {
                tracing::error!("the schedule of a policy panicked");
                return Some(self.cooldown_time());
            }
        };
        let between = second.and_then(|second| second.duration_since(first).ok());
        let stale_at = first + part(between.unwrap_or_default(), spread);
        let stale_at = stale_at.duration_since(SystemTime::UNIX_EPOCH);
        let stale_at = micros(stale_at.unwrap_or_default());
        Some(duration(stale_at.saturating_sub(times.published)))
    }
}

/// When a version was generated, in microseconds since 1970: by the database's clock or, without a lease, by
/// the process's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenerationTimes {
    /// The begin of the generator.
    pub(crate) began: i64,
    pub(crate) published: i64,
}

impl From<&Self> for Refresh {
    fn from(policy: &Self) -> Self {
        policy.clone()
    }
}

/// The policy [`every`](Refresh::every) such a time.
impl From<Duration> for Refresh {
    fn from(interval: Duration) -> Self {
        Self::every(interval)
    }
}

/// Returns the age at which a version is verified. In each hour, the share `fraction` of all versions is
/// verified. `unit` is a number from 0 to 1 that differs from version to version, so that not all of them are
/// verified at the same age.
fn verified_after(fraction: f64, unit: f64) -> Duration {
    const HOUR: f64 = 3600.0;
    // The time to the first event of a Poisson process.
    let hours = -unit.max(f64::MIN_POSITIVE).ln() / fraction;
    Duration::try_from_secs_f64(hours * HOUR).unwrap_or(Duration::MAX)
}

/// Returns this part of the time.
fn part(time: Duration, fraction: f64) -> Duration {
    // A conversion through `f64` may round the longest times up to more than a `Duration` can hold.
    Duration::try_from_secs_f64(time.as_secs_f64() * fraction).unwrap_or(time)
}

const fn is_fraction(fraction: f64) -> bool {
    0.0 <= fraction && fraction <= 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_cooldown_follows_the_interval_within_limits() {
        assert_eq!(Refresh::every(Duration::ZERO).cooldown_time(), 3 * S);
        assert_eq!(Refresh::every(10 * S).cooldown_time(), 10 * S);
        assert_eq!(Refresh::every(DAY).cooldown_time(), 30 * S);
        assert_eq!(Refresh::every(DAY).cooldown(S).cooldown_time(), S);
    }

    #[test]
    fn share_of_the_versions_is_verified_in_each_hour() {
        const VERSIONS: u32 = 100_000;
        let unit = |number: u32| (f64::from(number) + 0.5) / f64::from(VERSIONS);
        let after = |number| verified_after(0.01, unit(number));
        let within = |hours: u64| {
            let limit = Duration::from_hours(hours);
            let count = (0..VERSIONS)
                .filter(|number| after(*number) <= limit)
                .count();
            count as f64 / f64::from(VERSIONS)
        };
        // 1 - e^(-0.01 * hours).
        assert!((within(1) - 0.00995).abs() < 0.0001, "{}", within(1));
        assert!((within(100) - 0.632).abs() < 0.001, "{}", within(100));
        assert!(verified_after(1.0, 0.0) > Duration::from_hours(24));
    }

    #[test]
    fn jitter_shortens_by_its_fraction_at_most() {
        let policy = Refresh::every(100 * S).jitter(0.1);
        assert_eq!(policy.interval_at(0.0), 100 * S);
        assert_eq!(policy.interval_at(1.0), 90 * S);
        assert_eq!(Refresh::every(100 * S).interval_at(1.0), 100 * S);
        assert_eq!(
            Refresh::every(Duration::MAX).jitter(1e-9).interval_at(0.0),
            Duration::MAX
        );
    }

    #[test]
    fn value_out_of_range_panics() {
        let policy = Refresh::every(S)
            .lease_duration(YEAR)
            .cooldown(YEAR)
            .jitter(1.0);
        let wrong: [&(dyn Fn() -> Refresh + std::panic::RefUnwindSafe); 6] = [
            &|| policy.clone().lease_duration(Duration::from_millis(9)),
            &|| policy.clone().lease_duration(YEAR + S),
            &|| policy.clone().cooldown(YEAR + S),
            &|| policy.clone().verify(1.5),
            &|| policy.clone().jitter(7.0),
            &|| policy.clone().jitter(f64::NAN),
        ];
        for (number, wrong) in wrong.iter().enumerate() {
            assert!(std::panic::catch_unwind(wrong).is_err(), "{number}");
        }
    }

    /// Six o'clock each day, since 1970.
    #[derive(Debug)]
    struct AtSix;

    impl Schedule for AtSix {
        fn period(&self) -> Duration {
            DAY
        }

        fn next(&self, after: SystemTime) -> Option<SystemTime> {
            let six = SystemTime::UNIX_EPOCH + 6 * HOUR;
            let days = after.duration_since(six).ok()?.as_secs() / DAY.as_secs() + 1;
            Some(six + u32::try_from(days).ok()? * DAY)
        }
    }

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn scheduled_pages_are_spread_after_the_occurrence() {
        let (began, published) = (micros(10 * DAY), micros(10 * DAY + HOUR));
        let interval = |spread, unit| {
            let policy = Refresh::on_schedule(AtSix).jitter(spread);
            let times = GenerationTimes { began, published };
            policy.scheduled(times, unit)
        };
        assert_eq!(interval(0.0, 1.0), Some(5 * HOUR));
        assert_eq!(interval(0.5, 0.0), Some(5 * HOUR));
        assert_eq!(interval(0.5, 1.0), Some(5 * HOUR + DAY / 2));
        // The scheduled time passed while the page was being generated.
        let late = GenerationTimes {
            began,
            published: micros(10 * DAY + 7 * HOUR),
        };
        let late = Refresh::on_schedule(AtSix).scheduled(late, 0.0);
        assert_eq!(late, Some(Duration::ZERO));
        let times = GenerationTimes { began, published };
        assert_eq!(Refresh::every(DAY).scheduled(times, 0.0), None);
    }
}
