//! One version of a resource: its age, what it is worth, and what invalidations make of it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Response;

#[cfg(feature = "compression")]
use crate::resource::coded::Coded;
use crate::{
    clock::Tick,
    http::terms::{self, Terms},
    key,
    policy::Refresh,
    resource::{
        Invalidations, Notes, Representation, Seed,
        decide::{self, Freshness},
        invalidation::Void,
    },
};

/// What is noted of what was made, and what the invalidations make of that.
#[derive(Debug)]
pub(crate) struct Standing {
    notes: Notes,
    /// The latter (the lowest two bits), since the count of changes was this.
    void: AtomicU64,
}

impl Standing {
    pub(crate) fn new(notes: Notes) -> Self {
        Self {
            notes,
            // As of no change yet.
            void: AtomicU64::new(0),
        }
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// As invalidations only grow in number, it never gets better.
    pub(crate) fn void(&self, key: &str, known: &Invalidations) -> Void {
        let changes = known.changes();
        let was = self.void.load(Relaxed);
        let void = if was >> 2 == changes {
            was & 3
        } else {
            let void = (known.void(key, &self.notes) as u64).max(was & 3);
            self.void.store(changes << 2 | void, Relaxed);
            void
        };
        match void {
            0 => Void::No,
            1 => Void::Stale,
            _ => Void::Purged,
        }
    }
}

/// One version of a resource.
pub(crate) struct Version {
    key: Box<str>,
    /// As it was made.
    pub(crate) plain: Representation,
    /// In content codings; `None`: of no use.
    #[cfg(feature = "compression")]
    pub(super) coded: Option<Arc<Coded>>,
    /// The fence of the lease under which it was published; if it could not be, of the version before it.
    pub(crate) fence: i64,
    standing: Standing,
    /// What makes the next one, without a visitor.
    seed: Option<Arc<dyn Seed>>,
    unsaved: bool,
    /// Its age is not known: the database's clock was set back.
    undated: bool,
    /// It was published by this process, which has not tried to replace it yet.
    own: AtomicBool,
    /// It was made by this process.
    made: bool,
    /// This process generated the version in place of a stale one.
    replaces: bool,
    /// When it was published.
    born: Tick,
    /// What the response says of its own freshness.
    said: Option<Terms>,
    /// How old it was when it was made, in seconds, as it says.
    pub(crate) age_before: u64,
    /// Until when it may be served because regenerating it has failed, however stale.
    excused: AtomicI64,
    /// The key's place in the spread of `Refresh::jitter`.
    unit: f64,
    /// Until when nothing more is to be asked about it.
    rest: AtomicI64,
}

impl Version {
    pub(crate) fn new(
        key: &str,
        content: Response<Bytes>,
        fence: i64,
        born: Tick,
        notes: Notes,
    ) -> Self {
        #[cfg(feature = "compression")]
        let (content, coded) = Coded::of(content);
        Self {
            key: key.into(),
            said: terms::said(content.headers()),
            age_before: terms::age(content.headers()),
            excused: AtomicI64::new(i64::MIN),
            plain: Representation::new(content),
            #[cfg(feature = "compression")]
            coded,
            fence,
            standing: Standing::new(notes),
            seed: None,
            unsaved: false,
            undated: false,
            own: AtomicBool::new(false),
            made: false,
            replaces: false,
            born,
            unit: key::unit(key),
            rest: AtomicI64::new(i64::MIN),
        }
    }

    /// It could not be published, and is to be replaced soon by one that can.
    pub(crate) fn unsaved(mut self) -> Self {
        self.unsaved = true;
        self.made = true;
        self
    }

    /// Marks the version as stale if its age is not known.
    pub(crate) fn undated(mut self, undated: bool) -> Self {
        self.undated = undated;
        self
    }

    /// What has been made of the version before counts for this one, if it is the same content.
    #[cfg(feature = "compression")]
    pub(crate) fn like(mut self, before: &Self) -> Self {
        if same_content(self.content(), before.content()) {
            self.coded.clone_from(&before.coded);
        }
        self
    }

    pub(crate) fn with_seed(mut self, seed: Option<Arc<dyn Seed>>) -> Self {
        self.seed = seed;
        self
    }

    pub(crate) fn replacing(mut self, before: Option<&Self>, known: &Invalidations) -> Self {
        self.replaces = before.is_some_and(|before| before.void(known) != Void::Purged);
        self
    }

    pub(crate) fn replaces(&self) -> bool {
        self.replaces
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn seed(&self) -> Option<&Arc<dyn Seed>> {
        self.seed.as_ref()
    }

    pub(crate) fn content(&self) -> &Response<Bytes> {
        &self.plain.content
    }

    pub(crate) fn notes(&self) -> &Notes {
        &self.standing.notes
    }

    pub(crate) fn own(mut self) -> Self {
        self.own = AtomicBool::new(true);
        self.made = true;
        self
    }

    /// Whether this process has made it since then.
    pub(crate) fn is_made_since(&self, then: Tick) -> bool {
        self.made && self.born >= then
    }

    /// The seconds until it is stale; negative when it is. Since when it is so by an invalidation is not known.
    pub(crate) fn ttl(&self, now: Tick, policy: &Refresh, known: &Invalidations) -> i64 {
        let stale = self.born + self.terms(policy).interval;
        let ttl = (stale.0 - now.0).div_euclid(1_000_000);
        match self.void(known) {
            Void::No => ttl,
            Void::Stale | Void::Purged => ttl.min(-1),
        }
    }

    /// What the invalidations make of it.
    pub(crate) fn void(&self, known: &Invalidations) -> Void {
        match self.standing.void(&self.key, known) {
            Void::No if self.undated => Void::Stale,
            void => void,
        }
    }

    pub(crate) fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Whether it is this process's own; once.
    pub(crate) fn take_own(&self) -> bool {
        self.own.swap(false, Relaxed)
    }

    pub(crate) fn age(&self, now: Tick) -> Duration {
        now - self.born
    }

    pub(crate) fn freshness(
        &self,
        now: Tick,
        policy: &Refresh,
        known: &Invalidations,
    ) -> Freshness {
        let terms = self.terms(policy);
        let age = match self.void(known) {
            Void::No => self.age(now),
            Void::Stale => self.age(now).max(terms.interval),
            Void::Purged => return Freshness::Expired,
        };
        match decide::freshness(age, terms.interval, terms.max_stale) {
            Freshness::Fresh if self.unsaved && age >= policy.cooldown() => Freshness::Stale,
            Freshness::Expired if now.0 < self.excused.load(Relaxed) => Freshness::Stale,
            freshness => freshness,
        }
    }

    fn terms(&self, policy: &Refresh) -> Terms {
        let mut terms = match self.said.filter(|_| policy.honours) {
            Some(said) => said,
            None => Terms {
                interval: terms::interval_for(
                    self.content().status(),
                    policy.interval_at(self.unit),
                ),
                max_stale: policy.max_stale,
                if_error: Duration::ZERO,
            },
        };
        if let Some(interval) = self.standing.notes.refresh_after {
            terms.interval = interval;
        }
        terms
    }

    /// The interval, after which it is stale.
    pub(crate) fn interval(&self, policy: &Refresh) -> Duration {
        self.terms(policy).interval
    }

    /// Regenerating it has failed: it may be served until then, if it says so of itself (`stale-if-error`, RFC 5861 §4).
    pub(crate) fn excuse_until(
        &self,
        until: Tick,
        now: Tick,
        policy: &Refresh,
        known: &Invalidations,
    ) -> bool {
        let terms = self.terms(policy);
        let excusable = !terms.if_error.is_zero()
            && self.age(now) < terms.interval.saturating_add(terms.if_error)
            && self.void(known) != Void::Purged;
        if excusable {
            self.excused.store(until.0, Relaxed);
        }
        excusable
    }

    pub(crate) fn rest_until(&self, until: Tick) {
        self.rest.store(until.0, Relaxed);
    }

    pub(crate) fn rests(&self, now: Tick) -> bool {
        now.0 < self.rest.load(Relaxed)
    }
}

pub(crate) fn same_content(a: &Response<Bytes>, b: &Response<Bytes>) -> bool {
    a.status() == b.status() && a.headers() == b.headers() && a.body() == b.body()
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version")
            .field("key", &self.key)
            .field("fence", &self.fence)
            .field("notes", self.notes())
            .finish_non_exhaustive()
    }
}
