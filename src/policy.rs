//! The policy of a resource.

use std::time::Duration;

#[cfg(feature = "calendar")]
use crate::clock::duration;
use crate::{clock::YEAR, timing};

/// One day, for intervals: `Refresh::every(30 * DAY)`.
pub const DAY: Duration = Duration::from_hours(24);

/// The policy of a page or a piece of content: its interval, and the limits of each wait.
///
/// A value that a `const` can hold. By default, the visitor whose request starts a regeneration
/// waits for the new version for at most 1 s. All other visitors get the old version at once,
/// however old the version is.
///
/// # How timeouts nest
///
/// Each limit is shorter than the next one. With an old version in place, no visitor gets an error.
///
/// | limit | default | bounds |
/// |---|---|---|
/// | [`Builder::database_patience`](crate::Builder::database_patience) | 0.5 s | the wait for a database that does not answer |
/// | [`soft_timeout`](Self::soft_timeout) | 1 s | the wait of the visitor whose request regenerates |
/// | an outer timeout, such as tower-http's `TimeoutLayer` | – | one request; the regeneration goes on |
/// | [`timeout`](Self::timeout) | 60 s | one run of the generator |
///
/// Without an old version, the visitor whose request starts the generator waits for `timeout`, and
/// other visitors wait as [`on_miss`](Self::on_miss) says. A shorter outer timeout answers visitors
/// in its own way. The process extends [`lease`](Self::lease) while the generator runs, so `lease`
/// only has to be longer than a statement takes
/// ([`Builder::statement_timeout`](crate::Builder::statement_timeout), 5 s).
///
/// ```
/// use std::time::Duration;
/// use perennial::{DAY, OnMiss, Refresh};
///
/// const TOP_TEN: Refresh = Refresh::every(DAY)
///     .in_background()
///     .on_miss(OnMiss::Wait(Duration::from_secs(10)))
///     .timeout(Duration::from_secs(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a policy does nothing until a layer or a call is given it"]
pub struct Refresh {
    pub(crate) interval: Duration,
    pub(crate) soft_timeout: Duration,
    pub(crate) on_miss: OnMiss,
    pub(crate) timeout: Duration,
    pub(crate) lease: Duration,
    cooldown: Option<Duration>,
    pub(crate) max_stale: Option<Duration>,
    pub(crate) jitter: f64,
    /// The part of the interval after which a hit starts a regeneration; 1: none does.
    pub(crate) eager: f64,
    #[cfg(feature = "calendar")]
    pub(crate) schedule: Option<crate::calendar::Schedule>,
    pub(crate) browser_cache: BrowserCache,
    /// The response's own freshness headers decide.
    pub(crate) from_cache_control: bool,
    /// Visitors get the failure of a generator although there is an old version.
    pub(crate) shows_failures: bool,
}

/// The permission for browsers and other caches to store a response whose generator set neither
/// `Cache-Control` nor `Expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrowserCache {
    /// A client may store the response and asks before each use (`no-cache`, RFC 9111 §5.2.2.4).
    /// The answer is 304 if the content is unchanged.
    Revalidate,
    /// A client uses the response without asking until the version is stale (`max-age`, RFC 9111
    /// §5.2.2.1), and for this time afterwards while the client asks (`stale-while-revalidate`, RFC
    /// 5861 §3). Zero announces no `stale-while-revalidate`.
    ///
    /// The site cannot revoke this permission: if a version is regenerated earlier, a client still
    /// uses its old copy until the announced time is over.
    UntilStale(Duration),
}

/// The answer to other visitors while a page is generated for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMiss {
    /// Visitors wait for at most this time, then get 503 with `Retry-After`.
    Wait(Duration),
    /// Visitors get 503 with `Retry-After` at once.
    Unavailable,
}

impl OnMiss {
    pub(crate) fn limit(self) -> Duration {
        match self {
            Self::Wait(limit) => limit,
            Self::Unavailable => Duration::ZERO,
        }
    }
}

impl Refresh {
    /// Creates a policy under which a version is stale at this age. The age counts from the publish
    /// of the version by the database's clock.
    ///
    /// The interval of a 404, 405, 410 or 414 is at most one minute, unless the response has a
    /// [`RefreshAfter`](crate::RefreshAfter).
    ///
    /// With [`Duration::ZERO`] a version is always stale. Each request gets the stored version, and
    /// one request at a time regenerates the page; the visitor of that request waits up to the soft
    /// timeout.
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            soft_timeout: timing::SOFT_TIMEOUT,
            on_miss: OnMiss::Wait(timing::FIRST_WAIT),
            timeout: timing::GENERATION,
            lease: timing::LEASE,
            cooldown: None,
            max_stale: None,
            jitter: 0.0,
            eager: 1.0,
            #[cfg(feature = "calendar")]
            schedule: None,
            browser_cache: BrowserCache::Revalidate,
            from_cache_control: false,
            shows_failures: false,
        }
    }

    /// Creates a policy under which a version is stale as soon as an occurrence of the schedule lies
    /// between the begin of its generation and now, by the database's clock. There is no scheduler:
    /// the first request after the occurrence regenerates.
    ///
    /// ```
    /// # fn f() -> Result<(), perennial::Error> {
    /// use perennial::{DAY, Refresh, calendar::Schedule};
    ///
    /// let policy = Refresh::at(Schedule::monthly(1, "06:00", "Europe/Berlin")?).max_stale(DAY);
    /// # Ok(()) }
    /// # f().unwrap();
    /// ```
    ///
    /// The interval of each version is the time from its publish until the occurrence.
    /// [`max_stale`](Self::max_stale) and the headers for clients follow from it.
    /// [`jitter`](Self::jitter) delays the moment, as content that is generated earlier would be
    /// stale at the occurrence. For the same reason [`eager`](Self::eager) has no effect.
    ///
    /// While the database is away, the clock of the process decides.
    #[cfg(feature = "calendar")]
    pub fn at(schedule: crate::calendar::Schedule) -> Self {
        let mut policy = Self::every(schedule.period());
        policy.schedule = Some(schedule);
        policy
    }

    /// Creates a policy under which each response's own headers decide when the response is stale,
    /// and `default` decides for a response without such headers. For a gateway, and for handlers
    /// that know best.
    ///
    /// The lifetime is that for a shared cache (RFC 9111 §4.2):
    ///
    /// - The lifetime is `s-maxage`, `max-age` or `Expires`.
    /// - The response's `Age` is subtracted. The time since `Date` by this process's clock is
    ///   subtracted instead if that time is longer than `Age` and than 5 s.
    /// - A valid, non-empty `CDN-Cache-Control` replaces `Cache-Control` and `Expires`, also for
    ///   the question whether the response may be stored (RFC 9213 §2.2). An invalid
    ///   `CDN-Cache-Control` is ignored (§2.1), except for a `private` or `no-store` in it. The
    ///   layer passes the header on to clients, for further caches on the way (§3.1).
    /// - A stale version is served for as long as `stale-while-revalidate` allows, and after a
    ///   failed regeneration for as long as `stale-if-error` allows (RFC 5861).
    /// - With `no-cache`, `must-revalidate` or `proxy-revalidate` a stale version is not served:
    ///   visitors wait as for a first version.
    ///
    /// [`max_stale`](Self::max_stale) and [`jitter`](Self::jitter) apply to responses without such
    /// headers.
    pub const fn from_cache_control(default: Duration) -> Self {
        let mut policy = Self::every(default);
        policy.from_cache_control = true;
        policy
    }

    /// Sets the time that the visitor whose request started the regeneration waits for the new
    /// version. After that the visitor gets the old version. Default: 1 s, which is less than the
    /// usual timeouts around routes.
    ///
    /// Until the lock is taken, the visitor waits no longer than
    /// [`Builder::database_patience`](crate::Builder::database_patience) for a database that does
    /// not answer. The regeneration continues in each case, even if that visitor disconnects.
    pub const fn soft_timeout(mut self, limit: Duration) -> Self {
        self.soft_timeout = limit;
        self
    }

    /// Serves the old version at once to the visitor whose request starts the regeneration, too.
    /// The same as [`soft_timeout`](Self::soft_timeout) of zero.
    ///
    /// Corresponds to `stale-while-revalidate` of RFC 5861 §3.
    pub const fn in_background(self) -> Self {
        self.soft_timeout(Duration::ZERO)
    }

    /// Sets the answer to other visitors while a page is generated for the first time. Default:
    /// [`OnMiss::Wait`] of 30 s.
    ///
    /// The visitor whose request starts the generator waits for the result, at most for
    /// [`timeout`](Self::timeout). The same holds for a version that is too old for
    /// [`max_stale`](Self::max_stale).
    pub const fn on_miss(mut self, on_miss: OnMiss) -> Self {
        self.on_miss = on_miss;
        self
    }

    /// Sets the time after which a regeneration is cancelled and counts as failed. Default: 60 s.
    ///
    /// The generator's future is dropped at its next `await`. A generator that blocks its thread
    /// cannot be cancelled.
    pub const fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets the time for which a process holds the lock without extending the lease. Default: 15 s.
    /// Clamped to 10 ms – 1 year. A crash of the process delays the next regeneration by at most
    /// this time.
    ///
    /// The process extends the lease at a third of its length while the generator runs, so a lease
    /// may be shorter than the generator's time. Choose a lease well above the time that a database
    /// statement may take.
    pub const fn lease(mut self, length: Duration) -> Self {
        self.lease = bounded_lease(length);
        self
    }

    /// Sets the time after a failure in which no process tries again. Default: the interval within
    /// 3 s – 30 s. At most a year.
    ///
    /// Without a servable version, when visitors get 503, the time is a second after the first
    /// failure, and is doubled with each further one up to the cooldown. The database counts the
    /// failures, so that all processes together try no more often.
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = Some(cooldown);
        self
    }

    /// Sets the time after the interval for which an old version is served. Visitors of an older
    /// version wait as for a first version. Default: none, an old version is served at any age.
    ///
    /// The limit is one of age: an invalidated version whose interval has not ended is served while
    /// one request regenerates it. [`purge`](crate::Perennial::purge) in place of an invalidation
    /// ends that. Corresponds to `stale-if-error` of RFC 5861 §4, but needs no error.
    pub const fn max_stale(mut self, limit: Duration) -> Self {
        self.max_stale = Some(limit);
        self
    }

    /// Spreads expiry: each key's interval is shortened by a fixed part of up to this fraction, so
    /// that pages generated together do not expire together. Default: 0. Clamped to 0 – 1.
    ///
    /// The part is derived from the key, and is the same in every process and for every version of
    /// the key. With a [schedule](Self::at), the key's moment is later than the occurrence by this
    /// part of the time to the following occurrence: of a month, 0.001 is up to 45 minutes.
    pub const fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        self
    }

    /// Sets the part of the interval after which a hit starts a regeneration in the background, so
    /// that visitors of a busy page never see a stale version. Default: 1, no hit does. Clamped to
    /// 0 – 1.
    ///
    /// The visitor gets the stored version at once, whatever the [soft
    /// timeout](Self::soft_timeout). One process regenerates, by the same statements as for a stale
    /// version. Each process begins earlier than at this part of the interval, by a random time:
    /// the time that the version's generator took, times −ln of a random number (XFetch: Vattani,
    /// Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", 2015). The
    /// number is drawn once for each version and process.
    ///
    /// Has no effect on a [schedule](Self::at), whose times are exact.
    ///
    /// ```
    /// use perennial::{DAY, Refresh};
    ///
    /// // From the age of 27 days on, the next visitor starts a regeneration.
    /// let best_sellers = Refresh::every(30 * DAY).eager(0.9);
    /// ```
    pub const fn eager(mut self, fraction: f64) -> Self {
        #[cfg(feature = "calendar")]
        if self.schedule.is_some() {
            return self;
        }
        self.eager = if fraction.is_nan() {
            1.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        self
    }

    /// Sets the permission for browsers and other caches to store a response. Default:
    /// [`BrowserCache::Revalidate`].
    pub const fn browser_cache(mut self, browser_cache: BrowserCache) -> Self {
        self.browser_cache = browser_cache;
        self
    }

    /// Returns the policy for [`Mode::Development`](crate::Mode::Development).
    pub(crate) fn in_development(mut self) -> Self {
        self.soft_timeout = self.timeout;
        self.cooldown = Some(Duration::ZERO);
        self.shows_failures = true;
        self
    }

    pub(crate) fn cooldown_time(&self) -> Duration {
        let default = || {
            let [least, most] = timing::COOLDOWN;
            self.interval.clamp(least, most)
        };
        self.cooldown.unwrap_or_else(default).min(YEAR)
    }

    /// Returns the cooldown after a failure without a servable version: a second, doubled with each
    /// failure before, up to the cooldown.
    pub(crate) fn cooldown_after(&self, failures: u32) -> Duration {
        let doubled = timing::FIRST_COOLDOWN.saturating_mul(2_u32.saturating_pow(failures));
        self.cooldown_time().min(doubled)
    }

    /// Returns the interval of a key whose place in the spread is `unit` (0 to 1).
    pub(crate) fn interval_at(&self, unit: f64) -> Duration {
        if self.jitter == 0.0 {
            return self.interval;
        }
        part(self.interval, 1.0 - self.jitter * unit)
    }

    /// Returns the age after which a hit starts a regeneration. `lead`: the random time by which
    /// this process begins earlier, at most half of that age.
    #[inline]
    pub(crate) fn early_after(&self, interval: Duration, lead: Duration) -> Duration {
        if self.eager == 1.0 {
            return interval;
        }
        let early = part(interval, self.eager);
        early - lead.min(early / 2)
    }

    /// Returns the interval of a version, counted from `written`, whose generator began at `began`,
    /// in microseconds since 1970. `None`: no schedule decides. `unit`: as for
    /// [`interval_at`](Self::interval_at).
    #[cfg(feature = "calendar")]
    pub(crate) fn scheduled(&self, [began, written]: [i64; 2], unit: f64) -> Option<Duration> {
        let stale_at = self.schedule?.stale_at(began, self.jitter * unit);
        Some(stale_at.map_or(YEAR, |at| duration(at.saturating_sub(written))))
    }

    #[cfg(not(feature = "calendar"))]
    pub(crate) fn scheduled(&self, _: [i64; 2], _: f64) -> Option<Duration> {
        None
    }
}

impl From<&Self> for Refresh {
    fn from(policy: &Self) -> Self {
        *policy
    }
}

/// Returns the time by which a process regenerates early, by the rule of XFetch with β = 1. `took`:
/// the time of the generator. `luck`: a random number greater than 0, and at most 1.
pub(crate) fn lead(took: Duration, luck: f64) -> Duration {
    let lead = took.as_secs_f64() * -luck.ln();
    Duration::try_from_secs_f64(lead).unwrap_or(Duration::MAX)
}

/// Returns this part of the time.
fn part(time: Duration, fraction: f64) -> Duration {
    // A conversion by `f64` may round the longest times up to more than a `Duration` can hold.
    Duration::try_from_secs_f64(time.as_secs_f64() * fraction).unwrap_or(time)
}

/// Clamps the length of a lease to 10 ms – 1 year.
pub(crate) const fn bounded_lease(length: Duration) -> Duration {
    if length.as_millis() < 10 {
        Duration::from_millis(10)
    } else if length.as_secs() > YEAR.as_secs() {
        YEAR
    } else {
        length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn jitter_shortens_by_its_fraction_at_most() {
        let policy = Refresh::every(100 * S).jitter(0.1);
        assert_eq!(policy.interval_at(0.0), 100 * S);
        assert_eq!(policy.interval_at(1.0), 90 * S);
        assert_eq!(Refresh::every(100 * S).interval_at(1.0), 100 * S);
        assert_eq!(
            Refresh::every(100 * S).jitter(7.0).interval_at(1.0),
            Duration::ZERO
        );
        for none in [-1.0, f64::NAN] {
            assert_eq!(
                Refresh::every(100 * S).jitter(none).interval_at(1.0),
                100 * S
            );
        }
        assert_eq!(
            Refresh::every(Duration::MAX).jitter(1e-9).interval_at(0.0),
            Duration::MAX
        );
    }

    #[test]
    fn a_hit_is_early_after_its_part_of_the_interval() {
        let early = |fraction, lead| {
            let policy = Refresh::every(100 * S).eager(fraction);
            policy.early_after(100 * S, lead)
        };
        assert_eq!(early(0.9, Duration::ZERO), 90 * S);
        assert_eq!(early(0.9, 10 * S), 80 * S);
        // A slow generator cannot make each hit an early one.
        assert_eq!(early(0.9, 1000 * S), 45 * S);
        for off in [1.0, 7.0, f64::NAN] {
            assert_eq!(early(off, 10 * S), 100 * S);
        }
        let longest = Refresh::every(Duration::MAX).eager(0.999_999_999_999);
        assert!(longest.early_after(Duration::MAX, S) > Duration::MAX / 2);
    }

    proptest! {
        #[test]
        fn a_lead_is_within_the_time_before_the_end(
            interval in 0_u64..1 << 40, fraction in 0.0..1.0_f64, took in 0_u64..1 << 40, luck in 1e-9..=1.0_f64,
        ) {
            let [interval, took] = [interval, took].map(Duration::from_micros);
            let policy = Refresh::every(interval).eager(fraction);
            let latest = policy.early_after(interval, Duration::ZERO);
            let early = policy.early_after(interval, lead(took, luck));
            prop_assert!(latest <= interval);
            prop_assert!(early <= latest && early >= latest / 2);
            // The more luck, the later.
            prop_assert!(policy.early_after(interval, lead(took, luck / 2.0)) <= early);
        }
    }

    /// An exponential distribution whose mean is the generator's time.
    #[test]
    fn leads_are_spread_as_xfetch_says() {
        let leads = (0..100_000).map(|n| lead(S, (f64::from(n) + 0.5) / 1e5).as_secs_f64());
        let leads: Vec<_> = leads.collect();
        let mean = leads.iter().sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.001, "{mean}");
        let beyond_two = leads.iter().filter(|lead| **lead > 2.0).count() as f64 / 1e5;
        assert!(
            (beyond_two - (-2.0_f64).exp()).abs() < 0.001,
            "{beyond_two}"
        );
    }

    #[test]
    fn a_lease_can_be_held_and_ends() {
        let lease = |length| Refresh::every(S).lease(length).lease;
        assert_eq!(lease(Duration::ZERO), Duration::from_millis(10));
        assert_eq!(lease(Duration::MAX), YEAR);
        assert_eq!(
            Refresh::every(S).cooldown(Duration::MAX).cooldown_time(),
            YEAR
        );
    }
}
