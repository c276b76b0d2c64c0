//! Parts: a generator's calls for other content, whose keys, tags and intervals the result takes over.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{Facts, Freshness, Version};

/// The most names, keys and tags, that content takes over. Beyond, each invalidation applies to the
/// content.
const MOST: usize = 256;

/// The permit of a regeneration, which the regenerations of its parts share.
pub(super) type Permit = Arc<OwnedSemaphorePermit>;

tokio::task_local! {
    /// The regeneration whose generator this task runs.
    static WHOLE: Whole;
}

struct Whole {
    inherited: RefCell<Inherited>,
    permit: Option<Permit>,
    /// The end of the waits for parts.
    until: Instant,
}

/// The keys, tags and intervals of parts, for the content that is made from them.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    /// The keys of the parts, at any depth.
    pub(super) keys: BTreeSet<String>,
    /// Their tags, and those that the generator has attached.
    pub(super) tags: BTreeSet<String>,
    /// The names were too many: each invalidation applies.
    pub(super) of_all: bool,
    /// The end of the interval of the part whose interval ends first.
    ends: Option<Instant>,
    /// A part was stale, provisional itself, or missing.
    pub(super) is_provisional: bool,
}

impl Inherited {
    /// Returns the time until the first interval of a part ends.
    pub(super) fn left(&self) -> Option<Duration> {
        self.ends.map(|ends| ends - Instant::now())
    }

    fn add(&mut self, version: &Version, facts: &Facts<'_>) {
        let meta = &version.page.meta;
        let stored = &meta.stored;
        self.keys.insert(meta.key().to_owned());
        self.keys.extend(stored.parts.iter().cloned());
        self.tags.extend(stored.tags.iter().cloned());
        self.of_all |= stored.of_all;
        // The provisional content is stale soon, whenever the part's interval ends.
        if stored.is_provisional || version.freshness(facts) > Freshness::Early {
            self.is_provisional = true;
        } else {
            let interval = meta.terms(facts.policy).interval;
            let left = interval.saturating_sub(version.age(facts.now));
            let ends = Instant::now().checked_add(left);
            self.ends = self.ends.into_iter().chain(ends).min();
        }
        self.bound(meta.key());
    }

    fn bound(&mut self, part: &str) {
        if self.keys.len() + self.tags.len() > MOST {
            if !self.of_all {
                tracing::warn!(
                    part,
                    "content has more than {MOST} parts and tags: each invalidation makes the content stale; give a list as one value, in place of its items"
                );
            }
            self.of_all = true;
            self.keys.clear();
            self.tags.clear();
        }
    }
}

/// Runs a generator on a permit. Its calls for parts wait until three quarters of `timeout` have
/// passed at most, which leaves the generator time to end.
pub(super) async fn watched<T>(
    generator: impl Future<Output = T>,
    permit: Option<Permit>,
    timeout: Duration,
) -> (T, Inherited) {
    let run = async {
        let generated = generator.await;
        (generated, WHOLE.with(|whole| whole.inherited.take()))
    };
    let now = Instant::now();
    let whole = Whole {
        inherited: RefCell::default(),
        permit,
        until: now.checked_add(timeout / 4 * 3).unwrap_or(now),
    };
    WHOLE.scope(whole, run).await
}

/// Returns the end of the waits for parts, within a generator.
pub(crate) fn waits_until() -> Option<Instant> {
    let until = WHOLE.try_with(|whole| whole.until).ok();
    until.filter(|until| *until > Instant::now())
}

/// Reports a part to the generator that this task runs, if there is one. `None`: the part is
/// missing.
pub(crate) fn inherit(part: Option<&Version>, facts: &Facts<'_>) {
    let _ = WHOLE.try_with(|whole| match part {
        Some(version) => whole.inherited.borrow_mut().add(version, facts),
        None => whole.inherited.borrow_mut().is_provisional = true,
    });
}

/// Adds tags to the content whose generator this task runs, if there is one.
pub(crate) fn attach(tags: impl Iterator<Item = String>) {
    let _ = WHOLE.try_with(|whole| {
        let inherited = &mut *whole.inherited.borrow_mut();
        inherited.tags.extend(tags);
        inherited.bound("");
    });
}

/// Returns the permit of the regeneration whose generator this task runs.
pub(super) fn permit() -> Option<Permit> {
    WHOLE.try_with(|whole| whole.permit.clone()).ok().flatten()
}
