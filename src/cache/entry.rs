//! The knowledge of a process about a key, and the decisions of a request.

use std::{fmt, sync::Arc, time::Duration};

use perennial_store::{Awaited, Epoch, Fence};
use serde::{Deserialize, Serialize};

use crate::{
    cache::{Failure, Meta},
    clock::Tick,
    event::Bypass,
    http::terms::Terms,
    policy::Refresh,
};

/// The invalidation list, as far as decisions need to know.
pub(crate) trait InvalidationView: fmt::Debug + Sync {
    /// The latest epoch that this process knows.
    fn latest(&self) -> Epoch;
    /// The revision of this process's code.
    fn revision(&self) -> Revised;
    /// The number of times that this process has seen new rows of the outbox, which have no epoch yet. See
    /// `invalidation.rs`.
    fn sightings(&self) -> Sighting;
    /// Returns the effect of the invalidations on a version with these metadata.
    fn judge(&self, meta: &Meta) -> Validity;
}

/// The number of a sighting of rows of the outbox without an epoch, in one process. See `invalidation.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sighting(pub(crate) i64);

/// When the revision of a process's code was seen first, or again after another one. Code of a later revision
/// regenerates what code of an earlier one has generated.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(from = "i64", into = "i64")]
pub(crate) enum Revised {
    /// The site has no revision.
    #[default]
    Never,
    /// In this epoch.
    In(Epoch),
    /// The process has yet to store its revision: later than each epoch so far. A version of this process
    /// is stale once the revision has an epoch.
    Unannounced,
}

/// How a stored version's metadata write [`Revised::Unannounced`].
const UNANNOUNCED: i64 = i64::MAX;

impl From<i64> for Revised {
    fn from(number: i64) -> Self {
        match number {
            UNANNOUNCED => Self::Unannounced,
            ..=0 => Self::Never,
            epoch => Self::In(Epoch(epoch)),
        }
    }
}

impl From<Revised> for i64 {
    fn from(revised: Revised) -> Self {
        match revised {
            Revised::Never => 0,
            Revised::In(epoch) => epoch.0,
            Revised::Unannounced => UNANNOUNCED,
        }
    }
}

/// The epoch and the revision that a process knew before a generator began. Content stores these
/// two and nothing later, as the generator may have read data from before a later invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AsOf {
    pub(crate) epoch: Epoch,
    pub(crate) revision: Revised,
}

/// The effect of the invalidations on a version. Of two verdicts on a version, the greater one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Validity {
    /// None applies.
    Valid,
    /// The version is stale, and served while a regeneration runs.
    Invalidated,
    /// The version is not served.
    Purged,
}

impl From<Validity> for Freshness {
    /// Returns the freshness of a version that is young enough.
    fn from(verdict: Validity) -> Self {
        match verdict {
            Validity::Valid => Self::Fresh,
            Validity::Invalidated => Self::Stale,
            Validity::Purged => Self::Purged,
        }
    }
}

/// The freshness of a version, by its age and by the invalidations. Where the two differ, the greater one
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Freshness {
    /// Younger than the interval.
    Fresh,
    /// Served while a regeneration runs.
    Stale,
    /// Beyond `stale_while_revalidate`: not served.
    Expired,
    /// Not served, and the next generator has to begin after the purge.
    Purged,
}

impl Freshness {
    pub(crate) fn is_servable(self) -> bool {
        self <= Self::Stale
    }

    pub(crate) fn by_age(age: Duration, terms: &Terms) -> Self {
        match (
            age.checked_sub(terms.interval),
            terms.stale_while_revalidate,
        ) {
            (None, _) => Self::Fresh,
            (Some(over), Some(limit)) if over > limit => Self::Expired,
            _ => Self::Stale,
        }
    }
}

/// The surroundings of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionContext<'a> {
    pub(crate) now: Tick,
    pub(crate) key: &'a str,
    pub(crate) policy: &'a Refresh,
    pub(crate) list: &'a dyn InvalidationView,
    /// The time that a request waits for the database although there is a version.
    pub(crate) patience: Duration,
    /// The time that a statement may take.
    pub(crate) statement: Duration,
    /// The process shuts down.
    pub(crate) closing: bool,
    /// The task, or the page that a visitor generates, has a permit, which bounds the regenerations of a
    /// process.
    pub(crate) permit: bool,
    /// By the latest sync, another process still holds the lease that the flight waits for.
    pub(crate) held: bool,
    /// The visitor does not accept an invalidated version from before this epoch.
    /// [`Epoch::NONE`]: it accepts any.
    pub(crate) min_epoch: Epoch,
}

impl DecisionContext<'_> {
    /// Returns the context for a visitor who accepts any servable version.
    fn for_everybody(&self) -> Self {
        Self {
            min_epoch: Epoch::NONE,
            ..*self
        }
    }
}

/// The origin of a version in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The store.
    Stored,
    /// This process has published the version. `latest`: since then this process has neither tried the
    /// page's lock nor seen another fence of it.
    Published { latest: bool },
    /// This process has generated the version and could not publish the version.
    Unsaved,
}

/// Generated content with its metadata. `B`: the content.
#[derive(Debug)]
pub(crate) struct Page<B> {
    pub(crate) meta: Meta,
    pub(crate) body: B,
}

/// A version in memory. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Version<B> {
    pub(crate) page: Arc<Page<B>>,
    /// The fence of the publish; of an unsaved version, the fence of the version before.
    pub(crate) fence: Fence,
    /// The time of the publish.
    pub(crate) born: Tick,
    pub(crate) origin: Origin,
    /// The age is unknown, as the database's clock was set back.
    pub(crate) undated: bool,
    /// The version replaced a servable version.
    pub(crate) replaces: bool,
    /// The time before which this process asks the store nothing about the version.
    pub(crate) ask_again_at: Tick,
    /// The expired version may be served until this time, as a regeneration has failed.
    pub(crate) error_grace_until: Tick,
    /// The error of the last regeneration of this process, if that failed, for explanations.
    pub(crate) failure: Option<Arc<str>>,
}

impl<B> Version<B> {
    pub(crate) fn new(page: Arc<Page<B>>, fence: Fence, born: Tick, origin: Origin) -> Self {
        Self {
            page,
            fence,
            born,
            origin,
            undated: false,
            replaces: false,
            ask_again_at: Tick(i64::MIN),
            error_grace_until: Tick(i64::MIN),
            failure: None,
        }
    }

    pub(crate) fn age(&self, now: Tick) -> Duration {
        now - self.born
    }

    /// Returns true if this process has generated the version since `then`.
    pub(crate) fn is_made_since(&self, then: Tick) -> bool {
        self.origin != Origin::Stored && self.born >= then
    }

    /// Returns true if this process could not publish the version.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.origin == Origin::Unsaved
    }

    /// Returns the effect of the invalidations on the version.
    pub(crate) fn invalidated(&self, list: &dyn InvalidationView) -> Validity {
        let undated = if self.undated {
            Validity::Invalidated
        } else {
            Validity::Valid
        };
        list.judge(&self.page.meta).max(undated)
    }

    pub(crate) fn freshness(&self, context: &DecisionContext<'_>) -> Freshness {
        let terms = self.page.meta.terms(context.policy);
        let age = self.age(context.now);
        let by_age = match Freshness::by_age(age, &terms) {
            Freshness::Fresh if self.is_unsaved() && age >= context.policy.cooldown_time() => {
                Freshness::Stale
            }
            Freshness::Expired if context.now < self.error_grace_until => Freshness::Stale,
            by_age => by_age,
        };
        let invalidated = match self.invalidated(context.list) {
            Validity::Invalidated if self.page.meta.stored.epoch < context.min_epoch => {
                Freshness::Expired
            }
            verdict => verdict.into(),
        };
        by_age.max(invalidated)
    }

    /// Returns the seconds until the interval of the version ends, negative after that. Of an
    /// invalidated version, the time of the invalidation is unknown, and the result is at most −1.
    pub(crate) fn ttl(&self, now: Tick, policy: &Refresh, list: &dyn InvalidationView) -> i64 {
        let stale = self.born + self.page.meta.terms(policy).interval;
        let ttl = (stale.0 - now.0).div_euclid(1_000_000);
        match self.invalidated(list) {
            Validity::Valid => ttl,
            _ => ttl.min(-1),
        }
    }

    /// Lets an expired version be served for `cooldown` after a failed regeneration, within
    /// `stale-if-error` of the response or of the policy (RFC 5861 §4).
    pub(crate) fn grant_error_grace(&mut self, cooldown: Duration, context: &DecisionContext<'_>) {
        let terms = self.page.meta.terms(context.policy);
        if !terms.stale_if_error.is_zero()
            && self.age(context.now) < terms.interval.saturating_add(terms.stale_if_error)
        {
            self.error_grace_until = context.now + cooldown;
        }
    }
}

/// Everything that a process knows of a key between two regenerations. Cheap to clone.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum CacheEntry<B> {
    /// A version, servable or not.
    Version(Arc<Version<B>>),
    /// Hit-for-pass: the service itself answers each request before `until`, as the responses are
    /// not stored, unless an invalidation applies.
    HitForPass {
        until: Tick,
        why: Bypass,
        meta: Arc<Meta>,
    },
    /// Cooldown after a failure: no version can be served. No generator runs before `until`, unless
    /// the key is purged, or the store answers again and has no cooldown.
    Cooldown {
        until: Tick,
        /// The time before which this process asks the store nothing. Earlier than `until` if the
        /// store did not answer: the store may have a version.
        ask_again_at: Tick,
        /// The number of failures in a row.
        failures: u32,
        /// The error of the last one, if it was this process's, for explanations.
        failure: Option<Arc<str>>,
        meta: Arc<Meta>,
    },
}

/// Another process's lease on a key. While the lease lasts, this process asks the store nothing
/// about the key, and learns of the end by the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerLease {
    /// The fence of the newest stored version that this process knows.
    pub(crate) known: Fence,
    /// The end of the lease, as far as this process knows.
    pub(crate) until: Tick,
}

impl PeerLease {
    /// Takes the state of the page at `asked`. A newer version ends the wait for the lease.
    pub(crate) fn told(&mut self, page: Awaited, asked: Tick) {
        self.until = if page.fence > self.known {
            asked
        } else {
            asked + page.remaining
        };
    }
}

/// The answer to a visitor.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Answer<B> {
    Version(Arc<Version<B>>),
    /// The service itself answers the request, for the reason given.
    Pass(Bypass),
    /// The response of the failed generator, or the failure.
    Failed(Failure),
    /// No content yet. The visitor may try again after this time.
    Unavailable {
        retry_in: Duration,
    },
}

/// What memory has for a request. Without an answer, the request starts or joins a regeneration.
#[derive(Clone, Debug)]
pub(crate) enum Lookup<B> {
    /// The answer.
    Hit(Answer<B>),
    /// A version that is not served to this request, or whose state has to be asked for first.
    Stale,
    /// A version that was purged: the key is known, and there is nothing to serve.
    Purged,
    /// No version.
    Miss,
}

impl<B> CacheEntry<B> {
    /// Returns what memory has for a request that it does not answer.
    pub(crate) fn without_answer(&self, context: &DecisionContext<'_>) -> Lookup<B> {
        match self {
            Self::Version(version) if version.freshness(context) == Freshness::Purged => {
                Lookup::Purged
            }
            Self::Version(_) => Lookup::Stale,
            Self::HitForPass { .. } | Self::Cooldown { .. } => Lookup::Miss,
        }
    }

    /// Answers a request from memory.
    ///
    /// `is_busy`: this process already regenerates the key, or shuts down.
    #[inline]
    pub(crate) fn look(
        self,
        context: &DecisionContext<'_>,
        is_busy: impl FnOnce() -> bool,
    ) -> Lookup<B> {
        match self {
            // In a cooldown nobody regenerates the page, for its author neither. Where the permit was
            // missing, the visitor may bring one.
            Self::Version(version)
                if context.min_epoch > Epoch::NONE
                    && context.now < version.ask_again_at
                    && !context.permit
                    && version.freshness(&context.for_everybody()).is_servable() =>
            {
                Lookup::Hit(Answer::Version(version))
            }
            Self::Version(version) => match version.freshness(context) {
                Freshness::Fresh => Lookup::Hit(Answer::Version(version)),
                freshness
                    if freshness.is_servable()
                        && (context.now < version.ask_again_at || is_busy()) =>
                {
                    Lookup::Hit(Answer::Version(version))
                }
                Freshness::Purged => Lookup::Purged,
                Freshness::Stale | Freshness::Expired => Lookup::Stale,
            },
            Self::HitForPass { until, why, meta }
                if context.now < until && context.list.judge(&meta) == Validity::Valid =>
            {
                Lookup::Hit(Answer::Pass(why))
            }
            Self::Cooldown {
                until,
                ask_again_at,
                meta,
                ..
            } if context.now < ask_again_at && context.list.judge(&meta) != Validity::Purged => {
                let retry_in = until - context.now;
                Lookup::Hit(Answer::Unavailable { retry_in })
            }
            Self::HitForPass { .. } | Self::Cooldown { .. } => Lookup::Miss,
        }
    }
}
