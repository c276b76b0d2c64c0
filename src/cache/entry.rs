//! What a process knows about a key, and what memory answers to a request: [`CacheEntry::lookup`].
//!
//! A [`Version`] has a [`Freshness`], which follows from its age ([`Freshness::by_age`]) and from the
//! invalidations ([`Validity`]). Everything here is a pure function; the clock is in the [`DecisionContext`].

use std::{fmt, sync::Arc, time::Duration};

use perennial_store::{Epoch, Fence, PeerLeaseState};

use crate::{
    cache::{
        Failure, Meta,
        epochs::{RevisionEpoch, Sighting, Validity},
    },
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
    fn revision(&self) -> RevisionEpoch;
    /// The number of times that this process has seen new rows of the outbox, which have no epoch yet. See
    /// `invalidation_list`.
    fn sightings(&self) -> Sighting;
    /// Returns the effect of the invalidations on a version with these metadata.
    fn validity(&self, meta: &Meta) -> Validity;
}

impl From<Validity> for Freshness {
    /// Returns the freshness of a version whose age alone would make it fresh.
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

/// Everything that a decision depends on beside the entry and the visitor: the time, the policy, the
/// invalidation list and the limits. It is passed by reference, so that a decision reads no clock and no
/// setting of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionContext<'a> {
    pub(crate) now: Tick,
    pub(crate) key: &'a str,
    pub(crate) policy: &'a Refresh,
    pub(crate) list: &'a dyn InvalidationView,
    /// How long a request waits for the store although there is a version that could be served.
    pub(crate) store_patience: Duration,
    /// How long a statement may take before it counts as failed.
    pub(crate) statement_timeout: Duration,
    /// For how long the site keeps rows after their interval is over.
    pub(crate) retention: Duration,
    pub(crate) is_shutting_down: bool,
}

/// A visitor, as decisions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Visitor {
    pub(crate) arrived: Tick,
    /// The visitor is the leader, whose request started the regeneration.
    pub(crate) leads: bool,
    /// The visitor has something to show in place of a version. So where no version is servable, it waits
    /// only until the store has said whether there is one, and never for a generator.
    pub(crate) has_placeholder: bool,
    /// The application demands a regeneration: it is tried even where this process knows of a cooldown.
    pub(crate) demands: bool,
    /// The visitor brings a permit for a regeneration.
    pub(crate) has_permit: bool,
    /// An *invalidated* version whose epoch is below `min_epoch` counts as expired for this visitor. A version
    /// that no invalidation applies to is served whatever its epoch is.
    ///
    /// It is [`Epoch::NONE`] for most visitors, who accept any version that the policy allows. For the author
    /// of a change it is the epoch of the change (read-your-writes), and for a visitor who demands a
    /// regeneration it is the epoch of the demand. [`Epoch::MAX`] means that no invalidated version is accepted
    /// at all. That is so if other content is made from this version, and for the author of a change that has
    /// no epoch yet.
    pub(crate) min_epoch: Epoch,
    /// The latest epoch that this process knew when the visitor came. A version with a later one began to be
    /// generated after that; one with the same epoch may have begun before.
    pub(crate) known_epoch: Epoch,
}

impl Visitor {
    /// A visitor without wishes of its own.
    pub(crate) fn arriving_at(arrived: Tick) -> Self {
        Self {
            arrived,
            leads: false,
            has_placeholder: false,
            demands: false,
            has_permit: false,
            min_epoch: Epoch::NONE,
            known_epoch: Epoch::NONE,
        }
    }
}

/// The origin of a version in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The version was read from the store.
    Stored,
    /// This process has published the version. If `lock_untouched` is true, nobody has acquired the page's
    /// lock since then, as far as this process knows. Then the next regeneration can skip the probe: the
    /// attempt to acquire the lease names the fence of this version, and simply fails if the guess is wrong.
    Published { lock_untouched: bool },
    /// This process has generated the version, and could not publish it.
    Unsaved,
    /// This process has generated the version, and has not published it, because the stored version is fresh
    /// and was generated by another revision of the code.
    KeptApart,
}

/// The one question that decisions ask about content. It is a trait so that the model checker can run the same
/// decisions on content of a few bits.
pub(crate) trait SameContent: Clone {
    /// Returns true if `new` has the same content. The store then only renews the age of the stored
    /// version, and does not write the content again.
    fn is_same(&self, new: &Self) -> bool;
}

/// Generated content with its metadata. `B`: the content.
#[derive(Debug)]
pub(crate) struct Page<B> {
    pub(crate) meta: Meta,
    pub(crate) body: B,
}

/// Why a process asks the store nothing about a version for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pause {
    /// The process had as many regenerations under way as its settings allow.
    Busy,
    /// Another process holds the lease, or has published a version in the meantime.
    Peer,
    /// A regeneration has failed, or the store has.
    Cooldown,
}

impl Pause {
    /// Returns true if this pause also applies to a visitor who does not accept the old version. Such a
    /// visitor starts no regeneration either before the pause is over.
    fn holds_for(self, visitor: &Visitor) -> bool {
        match self {
            Self::Busy => !visitor.has_permit,
            Self::Peer => false,
            Self::Cooldown => !visitor.demands,
        }
    }
}

/// A version in memory. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Version<B> {
    pub(crate) page: Arc<Page<B>>,
    /// The fence under which the version was published. An unsaved version has the fence of the version
    /// before it, so that any published version replaces it.
    pub(crate) fence: Fence,
    /// The time at which it was published, by the clock of this process.
    pub(crate) published_at: Tick,
    /// The time at which the generator began, if it ran in this process. For a version from the store this is
    /// a time in the distant past.
    pub(crate) began: Tick,
    pub(crate) origin: Origin,
    /// The row is dated in the future, because the database's clock was set back, so its age cannot be
    /// computed. The version counts as stale whatever the time is.
    pub(crate) age_unknown: bool,
    /// The version took the place of one that was not purged.
    pub(crate) replaced_version: bool,
    /// The time before which this process asks the store nothing about the version.
    pub(crate) recheck_at: Tick,
    /// The reason for [`recheck_at`](Self::recheck_at).
    pub(crate) pause: Pause,
    /// Until this time the version may be served although it has expired, because a regeneration has failed
    /// in this process or in another one (`stale-if-error`).
    pub(crate) error_grace_until: Tick,
    /// The error of the last regeneration, if this process ran it and it failed. Explanations show it.
    pub(crate) failure: Option<Arc<str>>,
}

impl<B> Version<B> {
    pub(crate) fn new(
        page: Arc<Page<B>>,
        fence: Fence,
        published_at: Tick,
        origin: Origin,
    ) -> Self {
        Self {
            page,
            fence,
            published_at,
            began: Tick(i64::MIN),
            origin,
            age_unknown: false,
            replaced_version: false,
            recheck_at: Tick(i64::MIN),
            pause: Pause::Peer,
            error_grace_until: Tick(i64::MIN),
            failure: None,
        }
    }

    pub(crate) fn age(&self, now: Tick) -> Duration {
        now - self.published_at
    }

    /// Returns true if this process has generated the version, and has done so since `then`.
    pub(crate) fn is_made_since(&self, then: Tick) -> bool {
        self.origin != Origin::Stored && self.published_at >= then
    }

    /// Returns true if the version exists only in the memory of this process, which has generated it.
    pub(crate) fn is_unsaved(&self) -> bool {
        matches!(self.origin, Origin::Unsaved | Origin::KeptApart)
    }

    /// Returns the effect of the invalidations on the version.
    pub(crate) fn validity(&self, list: &dyn InvalidationView) -> Validity {
        let age_unknown = if self.age_unknown || self.page.meta.stored.is_damaged {
            Validity::Invalidated
        } else {
            Validity::Valid
        };
        list.validity(&self.page.meta).max(age_unknown)
    }

    /// Returns the freshness for visitors without wishes of their own.
    pub(crate) fn freshness(&self, context: &DecisionContext<'_>) -> Freshness {
        self.freshness_for(context, Epoch::NONE)
    }

    /// Returns the freshness for visitors with this [`Visitor::min_epoch`].
    pub(crate) fn freshness_for(
        &self,
        context: &DecisionContext<'_>,
        min_epoch: Epoch,
    ) -> Freshness {
        let terms = self.page.meta.terms(context.policy);
        let age = self.age(context.now);
        let by_age = match Freshness::by_age(age, &terms) {
            _ if self.has_ended(age) => Freshness::Expired,
            // The store may answer again by then.
            Freshness::Fresh
                if self.origin == Origin::Unsaved && age >= context.policy.cooldown_time() =>
            {
                Freshness::Stale
            }
            Freshness::Expired if context.now < self.error_grace_until => Freshness::Stale,
            by_age => by_age,
        };
        let invalidated = match self.validity(context.list) {
            Validity::Invalidated if self.page.meta.stored.epoch < min_epoch => Freshness::Expired,
            verdict => verdict.into(),
        };
        by_age.max(invalidated)
    }

    /// Returns true if the version has reached the age at which it expires. From then on it is not served, even
    /// if no new version can be generated.
    fn has_ended(&self, age: Duration) -> bool {
        let end = self.page.meta.stored.expire_after;
        end.is_some_and(|end| age >= end)
    }

    /// Returns true if the version is stale only because of its [verification](crate::Refresh::verify).
    pub(crate) fn is_only_verified(&self, context: &DecisionContext<'_>) -> bool {
        let terms = self.page.meta.terms_without_verification(context.policy);
        let age = self.age(context.now);
        Freshness::by_age(age, &terms) == Freshness::Fresh
            && self.validity(context.list) == Validity::Valid
            && self.freshness(context) == Freshness::Stale
            && !self.is_unsaved()
    }

    /// Returns true if the version is invalidated and its epoch is before this one.
    pub(crate) fn is_invalidated_before(&self, epoch: Epoch, list: &dyn InvalidationView) -> bool {
        self.page.meta.stored.epoch < epoch && self.validity(list) == Validity::Invalidated
    }

    /// Returns true if the version's generator is known to have begun after the visitor had come: by the clock,
    /// if this process has generated it, and otherwise if its epoch is later than what this process knew then.
    pub(crate) fn began_after_arrival_of(&self, visitor: &Visitor) -> bool {
        self.began > visitor.arrived || self.page.meta.stored.epoch > visitor.known_epoch
    }

    /// Returns the seconds until the interval of the version ends, negative after that. For an invalidated
    /// version, the time of the invalidation is unknown, and the result is at most −1.
    pub(crate) fn ttl(&self, now: Tick, policy: &Refresh, list: &dyn InvalidationView) -> i64 {
        let stale = self.published_at + self.page.meta.terms(policy).interval;
        let ttl = (stale.0 - now.0).div_euclid(1_000_000);
        match self.validity(list) {
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

/// What the memory tier holds for a key: everything that this process knows about it between two
/// regenerations. Cheap to clone.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum CacheEntry<B> {
    /// A version, servable or not.
    Version(Arc<Version<B>>),
    /// Hit-for-pass (Varnish's term): the last response may not be shared, so until this time the service
    /// itself answers each request, unless the page is invalidated before then.
    HitForPass {
        until: Tick,
        why: Bypass,
        meta: Arc<Meta>,
    },
    /// A cooldown after a failure, while no version can be served. No generator runs before `until`, unless
    /// the key is purged, or the store answers again and has no cooldown.
    Cooldown {
        until: Tick,
        /// The time before which this process asks the store nothing. It is earlier than `until` if the store
        /// has not answered, as the store may have a version after all.
        recheck_at: Tick,
        /// The number of failures in a row.
        failures: u32,
        /// The error of the last failure, if it happened in this process. Explanations show it.
        failure: Option<Arc<str>>,
        meta: Arc<Meta>,
    },
}

/// A lease that another process holds. While it lasts, this process does not ask the store about the key: a
/// sync reports when the lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerLease {
    /// The greatest fence of a stored version that this process knows.
    pub(crate) stored_fence: Fence,
    /// The end of the lease, as far as this process knows.
    pub(crate) until: Tick,
}

impl PeerLease {
    /// Updates the lease from the answer to a sync that was sent at `asked`. If a version has been published
    /// since the lease was seen, the lease counts as ended, so that the new version is read at once.
    pub(crate) fn on_sync(&mut self, page: PeerLeaseState, asked: Tick) {
        self.until = if page.fence > self.stored_fence {
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
    /// The service itself answers the request, for this reason.
    Pass(Bypass),
    /// The generator has failed, and there is nothing older to serve.
    Failed(Failure),
    /// There is no content yet. The visitor may try again after this time.
    Unavailable {
        retry_in: Duration,
    },
}

/// What memory has for a request. Anything but a [`Hit`](Self::Hit) lets the request start or join a
/// regeneration.
#[derive(Clone, Debug)]
pub(crate) enum Lookup<B> {
    /// This is the answer.
    Hit(Answer<B>),
    /// There is a version, but this request does not get it, or may get it only after the store was asked.
    Stale,
    /// The key is known, but its version was purged and must not be served.
    Purged,
    /// There is no version.
    Miss,
}

impl<B> CacheEntry<B> {
    /// Says what memory has, for a request that memory may not answer because a sync is due first.
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
    /// `is_busy` is called where a stale version was found. It returns true if the key is being regenerated
    /// already, here or in another process, or if this process shuts down: then the stale version is the
    /// answer.
    #[inline]
    pub(crate) fn lookup(
        self,
        visitor: &Visitor,
        context: &DecisionContext<'_>,
        is_busy: impl FnOnce() -> bool,
    ) -> Lookup<B> {
        match self {
            // In a cooldown nobody regenerates the page, not even for the author of a change, who therefore
            // gets what everybody gets.
            Self::Version(version)
                if visitor.min_epoch > Epoch::NONE
                    && context.now < version.recheck_at
                    && version.pause.holds_for(visitor)
                    && version.freshness(context).is_servable() =>
            {
                Lookup::Hit(Answer::Version(version))
            }
            Self::Version(version) => match version.freshness_for(context, visitor.min_epoch) {
                Freshness::Fresh => Lookup::Hit(Answer::Version(version)),
                freshness
                    if freshness.is_servable()
                        && (context.now < version.recheck_at || is_busy()) =>
                {
                    Lookup::Hit(Answer::Version(version))
                }
                Freshness::Purged => Lookup::Purged,
                Freshness::Stale | Freshness::Expired => Lookup::Stale,
            },
            Self::HitForPass { until, why, meta }
                if context.now < until && context.list.validity(&meta) == Validity::Valid =>
            {
                Lookup::Hit(Answer::Pass(why))
            }
            Self::Cooldown {
                until,
                recheck_at,
                meta,
                ..
            } if context.now < recheck_at
                && !visitor.demands
                && context.list.validity(&meta) != Validity::Purged =>
            {
                let retry_in = until - context.now;
                Lookup::Hit(Answer::Unavailable { retry_in })
            }
            Self::HitForPass { .. } | Self::Cooldown { .. } => Lookup::Miss,
        }
    }
}
