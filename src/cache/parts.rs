//! The parts of generated content. A part is other content, or the page of an inner layer, that the
//! generator has asked for. The content inherits the keys, tags and freshness of its parts.
//!
//! A [`RunContext`] is one run of a generator, as it is seen by everything that runs inside of it. It is found
//! through a task-local variable. If a middleware hands the request over to another task, the context is found
//! in the request's extensions.
//!
//! Invariants: a generator never waits for itself, directly or through others ([`Chain`]). A part that it
//! generates runs on the generator's own permit, because all other permits may belong to generators that wait
//! for parts, too. And content never has a later epoch than its parts ([`Inherited::limit_epoch`]); otherwise
//! an invalidation that applies to a part would not apply to the content.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use perennial_store::{Epoch, locked};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::cache::{
    Version,
    entry::{DecisionContext, Freshness},
};

/// The largest number of keys and tags that content inherits. With more of them it is stale after any
/// invalidation.
const MAX_DEPENDENCIES: usize = 256;

/// The permit of a regeneration. Everything that the generator starts shares it.
pub(crate) type Permit = Arc<OwnedSemaphorePermit>;

tokio::task_local! {
    /// The run that this task carries out.
    static CURRENT: Arc<RunContext>;
}

/// The number of runs under way in this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// One run of a generator, or of a request that the application sends by `warm` or `regenerate`.
pub(crate) struct RunContext {
    /// False for a request of the application, whose pages are not parts of anything.
    is_generator: bool,
    /// The generator of this run, or the one that has started it.
    chain: Option<Arc<Chain>>,
    inherited: Mutex<Inherited>,
    /// The site that the permit belongs to.
    site: SiteId,
    permit: Option<Permit>,
    /// The time until which the run waits for parts.
    until: Instant,
    /// The epoch of the content: what this process or the database knew before the generator began.
    epoch: Epoch,
    /// True if this process has synced since the epoch was set. The list alone does not say that, because an
    /// invalidation may have had this epoch without leaving a name.
    has_synced: AtomicBool,
}

/// A generator, with the chain of generators that wait for it.
#[derive(Debug)]
pub(crate) struct Chain {
    site: SiteId,
    key: Arc<str>,
    outer: Option<Arc<Self>>,
}

/// The address of a site in memory, which tells it from other sites of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteId(pub(crate) usize);

impl Chain {
    fn has(&self, site: SiteId, key: &str) -> bool {
        let is_it = self.site == site && *self.key == *key;
        is_it
            || self
                .outer
                .as_ref()
                .is_some_and(|outer| outer.has(site, key))
    }
}

/// The keys, tags and intervals of parts, for the content that is made from them.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The keys of the parts, at any depth.
    pub(crate) keys: BTreeSet<String>,
    /// Their tags, and those that the generator has attached.
    pub(crate) tags: BTreeSet<String>,
    /// There were too many keys and tags, so that any invalidation applies.
    pub(crate) depends_on_everything: bool,
    /// The time at which the first of the parts is stale.
    fresh_until: Option<Instant>,
    /// The time at which the content expires: the earliest of those that the generator has set, and of those of
    /// its parts.
    ends_at: Option<Instant>,
    /// The shortest time after which the content is stale, of those that the generator has set.
    pub(crate) refresh_after: Option<Duration>,
    /// The latest epoch up to which no part has missed an invalidation. `None` means that there are no parts.
    parts_epoch: Option<Epoch>,
    /// A part was stale, provisional itself, or missing.
    pub(crate) is_provisional: bool,
}

impl Inherited {
    /// Returns the time until the first of the parts is stale.
    pub(crate) fn fresh_for(&self) -> Option<Duration> {
        self.fresh_until
            .map(|fresh_until| fresh_until - Instant::now())
    }

    /// Returns the time until the content ends, if it does.
    pub(crate) fn expire_after(&self) -> Option<Duration> {
        self.ends_at.map(|ends_at| ends_at - Instant::now())
    }

    /// Returns the epoch to store with the content, given the one from before its generator began. The
    /// generator's own data is newer than all invalidations up to that epoch. A part from memory may not be,
    /// if this process had not heard of all of them when it took the part.
    pub(crate) fn limit_epoch(&self, epoch: Epoch) -> Epoch {
        self.parts_epoch.unwrap_or(epoch).min(epoch)
    }

    /// Adds a part. `seen` is the epoch up to which this process knew all invalidations when it asked for
    /// the part.
    fn add(&mut self, version: &Version, seen: Epoch, context: &DecisionContext<'_>) {
        let meta = &version.page.meta;
        let stored = &meta.stored;
        // The part's generator has seen what was invalidated up to the part's epoch, and this process has
        // checked the rest.
        let checked = seen.max(stored.epoch);
        self.parts_epoch = self.parts_epoch.into_iter().chain([checked]).min();
        self.keys.insert(meta.key().to_owned());
        self.keys.extend(stored.parts.iter().cloned());
        self.tags.extend(stored.tags.iter().cloned());
        self.depends_on_everything |= stored.depends_on_everything;
        let age = version.age(context.now);
        self.limit_end(stored.expire_after.map(|end| end.saturating_sub(age)));
        // Provisional content becomes stale soon in any case, so it does not matter when the part does.
        if stored.is_provisional || version.freshness(context) > Freshness::Fresh {
            self.is_provisional = true;
        } else {
            let interval = meta.terms(context.policy).interval;
            self.limit_freshness(interval.saturating_sub(version.age(context.now)));
        }
    }

    fn limit_end(&mut self, left: Option<Duration>) {
        let ends_at = left.and_then(|left| Instant::now().checked_add(left));
        self.ends_at = self.ends_at.into_iter().chain(ends_at).min();
    }

    fn limit_freshness(&mut self, fresh_for: Duration) {
        let fresh_until = Instant::now().checked_add(fresh_for);
        self.fresh_until = self.fresh_until.into_iter().chain(fresh_until).min();
    }

    /// Drops the keys and tags if there are too many of them. Returns true if this was the first time.
    fn limit_size(&mut self) -> bool {
        let are_too_many = self.keys.len() + self.tags.len() > MAX_DEPENDENCIES;
        let is_new = are_too_many && !self.depends_on_everything;
        if are_too_many {
            self.depends_on_everything = true;
            self.keys.clear();
            self.tags.clear();
        }
        is_new
    }
}

impl RunContext {
    /// Creates the context of a generator of this key. `outer` are the generators that wait for it. Its calls
    /// for parts wait no longer than until three quarters of `timeout` have passed, so that the generator has
    /// the rest of the time to render. `epoch` is the epoch of the content.
    pub(crate) fn for_generator(
        site: SiteId,
        key: &Arc<str>,
        outer: Option<Arc<Chain>>,
        permit: Option<Permit>,
        timeout: Duration,
        epoch: Epoch,
    ) -> Self {
        let now = Instant::now();
        let key = Arc::clone(key);
        Self {
            is_generator: true,
            chain: Some(Arc::new(Chain { site, key, outer })),
            inherited: Mutex::default(),
            site,
            permit,
            until: now.checked_add(timeout / 4 * 3).unwrap_or(now),
            epoch,
            has_synced: AtomicBool::new(false),
        }
    }

    /// Creates the context of a request of the application.
    pub(crate) fn for_request(
        site: SiteId,
        outer: Option<Arc<Chain>>,
        permit: Option<Permit>,
    ) -> Self {
        Self {
            is_generator: false,
            chain: outer,
            inherited: Mutex::default(),
            site,
            permit,
            until: Instant::now(),
            epoch: Epoch::NONE,
            has_synced: AtomicBool::new(false),
        }
    }

    /// Returns the epoch of the content, which [`Inherited::limit_epoch`] may lower.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if the content belongs to this site.
    pub(crate) fn is_of(&self, site: SiteId) -> bool {
        self.site == site
    }

    /// Returns true if this process has synced since the content got its epoch.
    pub(crate) fn has_synced(&self) -> bool {
        self.has_synced.load(Relaxed)
    }

    /// Notes that this process has synced since the content got its epoch.
    pub(crate) fn mark_synced(&self) {
        self.has_synced.store(true, Relaxed);
    }

    /// Runs `work` in this context, in this task.
    pub(crate) async fn carry_out<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        struct RunningGuard;
        impl Drop for RunningGuard {
            fn drop(&mut self) {
                RUNNING.fetch_sub(1, Relaxed);
            }
        }
        RUNNING.fetch_add(1, Relaxed);
        let _counted = RunningGuard;
        CURRENT.scope(self, work).await
    }

    /// Takes what the run has inherited from its parts so far.
    pub(crate) fn inherited(&self) -> Inherited {
        std::mem::take(&mut *locked(&self.inherited))
    }

    /// Returns the permit, if it belongs to this site.
    pub(crate) fn permit(&self, site: SiteId) -> Option<Permit> {
        self.permit.clone().filter(|_| self.is_of(site))
    }

    pub(crate) fn chain(&self) -> Option<Arc<Chain>> {
        self.chain.clone()
    }

    /// Returns true for the run of a generator, and false for a request of the application.
    pub(crate) fn is_generator(&self) -> bool {
        self.is_generator
    }

    /// Returns true if the generator of this key has started this run, directly or through others.
    pub(crate) fn is_within(&self, site: SiteId, key: &str) -> bool {
        self.chain
            .as_ref()
            .is_some_and(|chain| chain.has(site, key))
    }

    /// Returns the time until which the run waits for parts, or `None` if that time has passed.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        Some(self.until).filter(|until| *until > Instant::now())
    }

    /// Inherits the keys, tags, freshness and epoch of a part. `seen` is the epoch up to which this process
    /// knew all invalidations when it asked for the part.
    pub(crate) fn inherit(&self, part: &Version, seen: Epoch, context: &DecisionContext<'_>) {
        self.change(|inherited| {
            inherited.add(part, seen, context);
        });
    }

    /// Notes that a part was missing, which makes the content provisional.
    pub(crate) fn inherit_missing(&self) {
        locked(&self.inherited).is_provisional = true;
    }

    /// Inherits the tags, the interval and the end of a response that an inner layer has passed on and not stored.
    pub(crate) fn inherit_passed(
        &self,
        tags: &[String],
        interval: Duration,
        end: Option<Duration>,
    ) {
        self.change(|inherited| {
            inherited.tags.extend(tags.iter().cloned());
            inherited.limit_freshness(interval);
            inherited.limit_end(end);
        });
    }

    /// Adds tags to what this run generates.
    pub(crate) fn add_tags(&self, tags: Vec<String>) {
        self.change(|inherited| inherited.tags.extend(tags));
    }

    /// Sets the age at which the result of this run becomes stale, unless a shorter one is set already.
    pub(crate) fn refresh_after(&self, age: Duration) {
        let mut inherited = locked(&self.inherited);
        let set_before = inherited.refresh_after.into_iter();
        inherited.refresh_after = set_before.chain([age]).min();
    }

    /// Lets the result of this run expire after this time, counted from now, unless it expires earlier anyway.
    pub(crate) fn expire_after(&self, left: Duration) {
        locked(&self.inherited).limit_end(Some(left));
    }

    fn change(&self, change: impl FnOnce(&mut Inherited)) {
        let are_too_many = {
            let mut inherited = locked(&self.inherited);
            change(&mut inherited);
            inherited.limit_size()
        };
        // The warning is logged after the lock is released, because a subscriber of the log may call the site.
        if are_too_many {
            let key = self.chain.as_ref().map(|chain| &*chain.key);
            tracing::warn!(
                key,
                "content has more than {MAX_DEPENDENCIES} parts and tags, so that each invalidation of anything makes it stale: give the page one \
                 tag for all rows of a list, in place of a tag for each, and make the list one value, in place of a part for each item"
            );
        }
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}

/// Returns true while any generator runs in this process. If none does, each request is a visitor's, and there
/// is no context to look for. This check is cheap enough for every hit.
#[inline(always)]
pub(crate) fn is_any_running() -> bool {
    RUNNING.load(Relaxed) != 0
}

/// Returns the context of this task, if there is one.
#[inline]
pub(crate) fn current() -> Option<Arc<RunContext>> {
    if is_any_running() {
        CURRENT.try_with(Arc::clone).ok()
    } else {
        None
    }
}

/// Returns the context of this task, if it is that of a generator.
#[inline]
pub(crate) fn generator() -> Option<Arc<RunContext>> {
    current().filter(|run| run.is_generator)
}

/// Returns true if waiting for the key would be waiting for oneself: this task runs the generator of the key,
/// or a generator for which the generator of the key is waiting.
pub(crate) fn waits_for_itself(site: SiteId, key: &str) -> bool {
    current().is_some_and(|run| run.is_within(site, key))
}
