//! The policy of a resource.

use std::time::Duration;

use crate::{clock::YEAR, timing};

/// One day, for intervals: `Refresh::every(30 * DAY)`.
pub const DAY: Duration = Duration::from_hours(24);

/// When a resource becomes stale, and who waits for what: the policy of a layer or of a piece of content.
///
/// A `const`-buildable value. Without any further method the one request that regenerates waits for the new version, at most
/// 1 s, and everyone else gets the old one at once, of any age.
///
/// # How timeouts nest
///
/// Each limit is shorter than the next: then no visitor gets an error while there is an old version.
///
/// | limit | default | bounds |
/// |---|---|---|
/// | [`Builder::database_patience`](crate::Builder::database_patience) | 0.5 s | the wait for a database that does not answer |
/// | [`wait`](Self::wait), the soft timeout | 1 s | the wait of the visitor whose request regenerates |
/// | an outer timeout, such as tower-http's `TimeoutLayer` | – | one request; the regeneration goes on |
/// | [`timeout`](Self::timeout) | 60 s | one run of the generator |
///
/// Without an old version, the visitor whose request generates waits for `timeout`, and the others for
/// [`first`](Self::first); a shorter outer timeout answers them in its own way. The process extends [`lease`](Self::lease)
/// while the generator runs: `lease` only has to be longer than a statement takes
/// ([`Builder::statement_limit`](crate::Builder::statement_limit), 5 s).
///
/// ```
/// use std::time::Duration;
/// use perennial::{DAY, First, Refresh};
///
/// const TOP_TEN: Refresh = Refresh::every(DAY)
///     .in_background()
///     .first(First::Wait(Duration::from_secs(10)))
///     .timeout(Duration::from_secs(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a policy does nothing until a layer or a call is given it"]
pub struct Refresh {
    pub(crate) interval: Duration,
    pub(crate) wait: Duration,
    pub(crate) first: First,
    pub(crate) timeout: Duration,
    pub(crate) lease: Duration,
    retry_after: Option<Duration>,
    pub(crate) max_stale: Option<Duration>,
    pub(crate) jitter: f64,
    pub(crate) client: Client,
    /// What a response says of its own freshness counts.
    pub(crate) honours: bool,
}

/// What browsers and other caches on the way may do with a response, where the generator doesn't say it itself by `Cache-Control` or
/// `Expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Client {
    /// Keep it, but ask each time whether it still holds (`no-cache`, RFC 9111 §5.2.2.4): a 304 if it does.
    Revalidate,
    /// Use it without asking until it is stale here (`max-age`, RFC 9111 §5.2.2.1), and for so long afterwards while asking
    /// (`stale-while-revalidate`, RFC 5861 §3; zero: not announced).
    ///
    /// It can't be taken back: what is regenerated sooner is not seen before that.
    UntilStale(Duration),
}

/// What visitors get while the first version ever is made by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum First {
    /// Wait for it, at most so long; then 503 with `Retry-After`.
    Wait(Duration),
    /// 503 with `Retry-After` at once.
    Unavailable,
}

impl First {
    pub(crate) fn limit(self) -> Duration {
        match self {
            Self::Wait(limit) => limit,
            Self::Unavailable => Duration::ZERO,
        }
    }
}

impl Refresh {
    /// Stale at this age, counted from the publish of the version by the database's clock.
    /// The interval of a 404, 405, 410 or 414 is one minute at most, unless the response has a
    /// [`RefreshAfter`](crate::RefreshAfter).
    ///
    /// With [`Duration::ZERO`] a version is stale as soon as it stands: every request gets it, and one at a time
    /// regenerates.
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            wait: timing::SOFT_TIMEOUT,
            first: First::Wait(timing::FIRST_WAIT),
            timeout: timing::GENERATION,
            lease: timing::LEASE,
            retry_after: None,
            max_stale: None,
            jitter: 0.0,
            client: Client::Revalidate,
            honours: false,
        }
    }

    /// Stale as each response says itself, and `default` where it says nothing: for a gateway, or handlers that know best.
    ///
    /// What counts is what counts for a shared cache (RFC 9111 §4.2, RFC 5861): `s-maxage`, `max-age` or `Expires`, less `Age` or, if that is more (and than 5 s), the
    /// time since `Date` by this process's clock.
    /// A valid, non-empty `CDN-Cache-Control` decides in place of `Cache-Control` and `Expires`, also on whether the response may be stored
    /// (RFC 9213 §2.2). An invalid one is ignored (§2.1). The layer passes the field on to clients, for further caches on the way (§3.1). Served stale it is only for
    /// as long as `stale-while-revalidate` says, or `stale-if-error` when regenerating it fails, and not at all with `no-cache`,
    /// `must-revalidate` or `proxy-revalidate`: then visitors wait as for a first version. [`max_stale`](Self::max_stale) and [`jitter`](Self::jitter)
    /// count where the response says nothing.
    pub const fn from_generator(default: Duration) -> Self {
        let mut policy = Self::every(default);
        policy.honours = true;
        policy
    }

    /// How long the one regenerating request waits for the new version before it, too, gets the old. Default: 1 s, which is less than the
    /// timeouts that sites usually have around their routes; until the lock
    /// is taken, no longer than [`Builder::database_patience`](crate::Builder::database_patience), so that a database that doesn't answer holds nobody up.
    ///
    /// The regeneration goes on in any case, also when that visitor disconnects.
    pub const fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// The regenerating request, too, gets the old version at once: [`wait`](Self::wait) of zero.
    ///
    /// The `stale-while-revalidate` of RFC 5861 §3.
    pub const fn in_background(self) -> Self {
        self.wait(Duration::ZERO)
    }

    /// What others get while the first version ever is made. Default: [`First::Wait`] of 30 s.
    ///
    /// The request that makes it waits until it is made, at most [`timeout`](Self::timeout). The same holds for a version
    /// that [`max_stale`](Self::max_stale) forbids to serve.
    pub const fn first(mut self, first: First) -> Self {
        self.first = first;
        self
    }

    /// A regeneration that runs longer is cancelled and counts as failed. Default: 60 s.
    ///
    /// Cancelled means that the generator's future is dropped at its next `await`; a generator that blocks its thread
    /// can't be cancelled.
    pub const fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// How long a silent regenerator keeps the lock, which bounds how much a crash delays the next one. Default: 15 s.
    ///
    /// It is extended at a third of its length for as long as the regeneration runs, so that it need not cover
    /// the generator's time. It should be well above the time that a database statement may take. Taken into 10 ms to a
    /// year.
    pub const fn lease(mut self, length: Duration) -> Self {
        self.lease = bounded_lease(length);
        self
    }

    /// The cooldown: after a failure no process tries again for so long. Default: the interval, but at least 3 s and at most
    /// 30 s. At most a year.
    pub const fn retry_after(mut self, cooldown: Duration) -> Self {
        self.retry_after = Some(cooldown);
        self
    }

    /// An entry older than the interval and this is not served: its visitors wait as for a first version. Default: none,
    /// an old version is served however old it is.
    ///
    /// The `stale-if-error` of RFC 5861 §4, for every reason to be stale.
    pub const fn max_stale(mut self, limit: Duration) -> Self {
        self.max_stale = Some(limit);
        self
    }

    /// Shortens each key's interval by a part of its own, up to this fraction of it, so that what was made together doesn't
    /// become stale together. Default: 0; taken into 0 to 1.
    ///
    /// The part is derived from the key: every process, and every version of a key, has the same.
    pub const fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = if fraction.is_nan() {
            0.0
        } else {
            fraction.clamp(0.0, 1.0)
        };
        self
    }

    /// What browsers and other caches may do with a response. Default: [`Client::Revalidate`].
    pub const fn client(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    pub(crate) fn cooldown(&self) -> Duration {
        let default = || {
            let [least, most] = timing::COOLDOWN;
            self.interval.clamp(least, most)
        };
        self.retry_after.unwrap_or_else(default).min(YEAR)
    }

    /// The interval of a key whose place in the spread is `unit` (0 to 1).
    pub(crate) fn interval_at(&self, unit: f64) -> Duration {
        if self.jitter == 0.0 {
            return self.interval;
        }
        let seconds = self.interval.as_secs_f64() * (1.0 - self.jitter * unit);
        // The longest intervals are rounded up beyond what a duration holds.
        Duration::try_from_secs_f64(seconds).unwrap_or(self.interval)
    }
}

/// A lease that can be held and will end: of a year at most.
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
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_cooldown_follows_the_interval_within_limits() {
        assert_eq!(Refresh::every(Duration::ZERO).cooldown(), 3 * S);
        assert_eq!(Refresh::every(10 * S).cooldown(), 10 * S);
        assert_eq!(Refresh::every(DAY).cooldown(), 30 * S);
        assert_eq!(Refresh::every(DAY).retry_after(S).cooldown(), S);
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
    fn a_lease_can_be_held_and_ends() {
        let lease = |length| Refresh::every(S).lease(length).lease;
        assert_eq!(lease(Duration::ZERO), Duration::from_millis(10));
        assert_eq!(lease(Duration::MAX), YEAR);
        assert_eq!(
            Refresh::every(S).retry_after(Duration::MAX).cooldown(),
            YEAR
        );
    }
}
