//! Runs the generator for a regeneration in a task of its own. Then makes a page from the response, with
//! its metadata, its date and its entity tag.

use std::{sync::Arc, time::Duration};

use http::HeaderName;
use perennial_store::{Epoch, Fence, Lease};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::{
    Generator, Regenerations,
    driver::{ActionFuture, Driver, Input},
    machine,
};
use crate::{
    cache::{
        Answer, Failure, Generated, Metadata, Page, Version,
        entry::Origin,
        epochs::Snapshot,
        parts::{self, Inherited, RunContext},
    },
    clock::micros,
    event::Reason,
    holes::HolePlaces,
    http::cdn_tags::CdnTags,
    ordered::assert_no_lock_is_held,
    policy::GenerationTimes,
};

impl Regenerations {
    /// Returns the `Date` that responses with this version have, in seconds since 1970.
    fn date_of(&self, version: &Version) -> i64 {
        let age = self.environment.now() - version.made_at();
        let now = self.environment.store.wall_clock();
        now.saturating_sub(micros(age)).div_euclid(1_000_000)
    }

    /// Logs each header whose value changes with each generation, once for each header. Such a
    /// header changes the page's entity tag, so clients fetch the page again and again although its
    /// body stays the same.
    fn warn_of_retagging(&self, before: Option<&Page>, page: &Page) {
        let (Some(before), Some(name)) = (before, &page.body.retagged_by) else {
            return;
        };
        let is_second = before.body.retagged_by.as_ref() == Some(name);
        if is_second && self.is_first_retagging_by(name) {
            tracing::warn!(
                target: "perennial::regeneration",
                key = page.meta.key(),
                header = name.as_str(),
                "the entity tag of this page has changed twice because of one header, although the body stayed the same, so browsers fetch \
                 the whole page again after each regeneration (logged once for each header). Set the header in a middleware outside of \
                 the layer, or give it a value that changes only with the page"
            );
        }
    }

    /// Returns true if this is the first call with this header. Only the first hundred headers are remembered.
    fn is_first_retagging_by(&self, name: &HeaderName) -> bool {
        let mut logged = self.retagging.lock();
        logged.len() < 100 && logged.insert(name.clone())
    }

    /// Runs a generator for one caller, and stores nothing.
    pub(crate) async fn unstored(&self, key: &str, generator: Generator) -> Answer {
        let outer = parts::current().and_then(|run| run.chain());
        let (timeout, epoch) = (Duration::ZERO, Epoch::NONE);
        let run = RunContext::for_generator(self.site(), &key.into(), outer, None, timeout, epoch);
        match Arc::new(run).carry_out(generator).await {
            Generated::Content(response) => {
                let page = Page::new(key, response, Metadata::default(), None);
                let now = self.environment.now();
                let version = Version::new(Arc::new(page), Fence::NONE, now, Origin::Unsaved);
                Answer::Version(version.into())
            }
            Generated::Failed(failure) => Answer::Failed(failure),
            Generated::NotStored(why, _) => Answer::Pass(why),
        }
    }
}

impl Driver {
    /// Runs the generator in a task of its own.
    pub(super) fn generate(&mut self, snapshot: Snapshot, reason: Reason) -> ActionFuture {
        let generator = self.work.as_mut().and_then(|work| work.run.take());
        let Some(generator) = generator else {
            // The machine runs the generator at most once, so this branch is never taken.
            return Box::pin(std::future::pending());
        };
        assert_no_lock_is_held();
        // The sightings are read before the generator begins. So the generator's data are at least as new as
        // the sightings.
        let sightings = self.regenerations.environment.list.sightings();
        let started = self.regenerations.environment.now();
        let run = Arc::new(RunContext::for_generator(
            self.regenerations.site(),
            &self.key,
            self.outer.take(),
            self.permit.clone(),
            self.policy.generator_timeout,
            snapshot.epoch,
        ));
        let run = async move {
            let generated = Arc::clone(&run).carry_out(generator).await;
            (generated, run.inherited())
        };
        let task = tokio::spawn(run.in_current_span());
        let mut task = AbortOnDropHandle::new(task);
        let key = self.key.clone();
        let before = self.regeneration.newest().cloned();
        let fence = self.lease.as_ref().map(Lease::fence);
        self.generator_begins(reason);
        let (regenerations, policy) = (Arc::clone(&self.regenerations), self.policy.clone());
        let environment = &regenerations.environment;
        // Without a lease there is no time from the database, so the clock of the process is used.
        let began = fence.map_or_else(|| environment.store.wall_clock(), Fence::acquired_at);
        Box::pin(async move {
            let (generated, inherited) = match (&mut task).await {
                Ok(generated) => generated,
                Err(panic) => (Generated::Failed(Failure::new(panic)), Inherited::default()),
            };
            let took = regenerations.environment.now() - started;
            let generated = match generated {
                Generated::Content(response) => {
                    let dated_before = before.as_ref().map(|before| regenerations.date_of(before));
                    let before = before.as_ref().map(|before| &*before.page);
                    let said = response.extensions();
                    let holes = said.get::<Arc<HolePlaces>>().cloned();
                    // A page with holes has no date, because the date of the page would say nothing about what
                    // fills the holes.
                    let dated = fence.filter(|_| holes.is_none());
                    let modified = dated.and_then(|fence| {
                        Page::last_modified(&response, fence, before, dated_before)
                    });
                    let Snapshot { epoch, revision } = snapshot;
                    let metadata = Metadata {
                        epoch: inherited.limit_epoch(epoch),
                        sightings,
                        revision,
                        tags: inherited.tags.iter().cloned().collect(),
                        refresh_after: inherited.refresh_after,
                        expire_after: inherited.expire_after(),
                        parts_fresh_for: inherited.fresh_for().filter(|_| !policy.outlives_parts),
                        parts: inherited.keys.into_iter().collect(),
                        depends_on_everything: inherited.depends_on_everything,
                        is_provisional: inherited.is_provisional,
                        modified,
                        holes,
                        is_damaged: false,
                    };
                    let cdn_tags = said.get::<CdnTags>().copied();
                    let response = match cdn_tags {
                        Some(cdn_tags) if !metadata.depends_on_everything => {
                            cdn_tags.added_to(response, &metadata.tags)
                        }
                        _ => response,
                    };
                    let mut page = Page::new(&key, response, metadata, before);
                    regenerations.warn_of_retagging(before, &page);
                    let published = began.saturating_add(micros(took));
                    let times = GenerationTimes { began, published };
                    page.meta.timed(&policy, times);
                    machine::Generated::Content(Arc::new(page))
                }
                Generated::NotStored(why, tags) => machine::Generated::NotStored(why, tags),
                Generated::Failed(failure) => machine::Generated::Failed(failure),
            };
            (Input::Generated(generated), None)
        })
    }
}
