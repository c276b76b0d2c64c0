//! The stored and cached content of a site. The path of a request begins with a lookup in memory, and ends with its
//! answer.
//!
//! [`Cache`] joins the components for [`site`](crate::site) and [`layer`](crate::layer). Each component owns
//! its state, and uses only components below it. `tests/structure.rs` checks that against this table:
//!
//! | component | owns | uses |
//! |---|---|---|
//! | [`commands`] | – | invalidation, invalidation_list, listing, memory |
//! | [`listing`] (read only) | – | invalidation, memory, missed |
//! | [`regeneration`] | the running regenerations and their permits | compressor, invalidation, memory, missed, parts, peer_leases |
//! | [`compressor`] | the permit to compress a page, one at a time | memory |
//! | [`invalidation`] | the timeline of the sync, the outbox's rows that have to be retried | housekeeping, invalidation_list, missed, peer_leases |
//! | [`housekeeping`] | when to prune and to check the capacity | – |
//! | [`missed`] | pages that have changed without an invalidation: a regeneration adds them, and after a sync each is either reported or dropped | – |
//! | [`memory`] | the entries | thread_copies |
//! | [`thread_copies`] | each thread's copies of the pages that it serves most often | – |
//! | [`parts`] | the keys, tags and freshness that content inherits from its parts | – |
//! | [`author`] | which change the visitor of the current task has made | parts |
//! | [`peer_leases`] | the leases of other processes: a regeneration adds those that it comes across, and the sync removes them | – |
//! | [`environment`] | – (the store, the locks, the clock, the list and the settings, for all of them) | invalidation_list |
//! | [`invalidation_list`] | what is invalidated, as far as this process knows | – |
//!
//! [`entry`], [`content`], [`metadata`], [`epochs`], [`history`] and [`failure`] define plain values, without
//! state of their own. Start with [`entry`], and then read `regeneration/machine.rs`.

pub(crate) mod author;
mod commands;
#[cfg(all(test, feature = "sqlite", feature = "compression"))]
mod components;
#[cfg(feature = "compression")]
mod compressor;
pub(crate) mod content;
pub(crate) mod entry;
mod environment;
mod epochs;
mod failure;
pub(crate) mod history;
mod housekeeping;
mod invalidation;
mod invalidation_list;
pub(crate) mod listing;
mod memory;
mod metadata;
mod missed;
pub(crate) mod parts;
mod peer_leases;
mod regeneration;
mod thread_copies;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use perennial_store::{Epoch, Locks, Store};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    clock::Tick,
    event::{Bypass, MissedInvalidation, Observer, Stats},
    mode::Mode,
    policy::Refresh,
    timing::{AUTHOR_CONTENT_WAIT, RECHECK_INTERVAL},
};

use commands::Commands;
#[cfg(feature = "compression")]
use compressor::Compressor;
use environment::Environment;
use invalidation::InvalidationSync;
use listing::Listing;
use memory::Memory;
use missed::MissedInvalidations;
use parts::RunContext;
use peer_leases::PeerLeases;
use regeneration::Regenerations;

pub(crate) use content::{HitHeaders, Page, Representation, Representations, Version};
pub(crate) use entry::Visitor;
pub(crate) use environment::Settings;
pub(crate) use failure::Failure;
pub(crate) use invalidation::{UNKNOWN_EPOCH, record_writes};
pub(crate) use invalidation_list::Target;
pub(crate) use metadata::{Meta, Metadata, interval_of};
pub(crate) use regeneration::{Generate, Generator, Readable, Reading, VisitOptions, Visited};

/// The answer to a visitor.
pub(crate) type Answer = entry::Answer<Representations>;
pub(crate) type Lookup = entry::Lookup<Representations>;
type CacheEntry = entry::CacheEntry<Representations>;
/// The result of a generator.
pub(crate) type Generated = regeneration::Generated<Response<Bytes>>;

/// The cache of a site in this process.
pub(crate) struct Cache {
    environment: Environment,
    memory: Arc<Memory>,
    regenerations: Arc<Regenerations>,
    sync: Arc<InvalidationSync>,
    pub(crate) commands: Commands,
    pub(crate) listing: Listing,
    missed: Arc<MissedInvalidations>,
    #[cfg(feature = "compression")]
    pub(crate) compressor: Arc<Compressor>,
    /// A random number that tells this process from others of the site.
    process_id: u64,
    /// The name of the layer in events about content of
    /// [`Perennial::content`](crate::Perennial::content).
    pub(crate) content_layer: Arc<str>,
    /// The task that listens for invalidations, if the site listens. Dropping the cache ends it.
    listening: std::sync::OnceLock<tokio_util::task::AbortOnDropHandle<()>>,
}

impl Cache {
    pub(crate) fn new(store: Store, observer: Observer, settings: Settings) -> Self {
        let memory = Arc::new(Memory::new(
            settings.memory_capacity,
            settings.max_body,
            observer.clone(),
        ));
        let environment = Environment::new(store, observer, settings);
        let peer_leases = Arc::new(PeerLeases::new());
        let missed = Arc::new(MissedInvalidations::new());
        let sync = InvalidationSync::new(
            environment.clone(),
            Arc::clone(&peer_leases),
            Arc::clone(&missed),
        );
        let sync = Arc::new(sync);
        #[cfg(feature = "compression")]
        let compressor = Arc::new(Compressor::new(environment.clone(), Arc::clone(&memory)));
        let regenerations = Regenerations::new(
            environment.clone(),
            Arc::clone(&memory),
            Arc::clone(&sync),
            peer_leases,
            Arc::clone(&missed),
            #[cfg(feature = "compression")]
            Arc::clone(&compressor),
        );
        let listing = Listing::new(
            environment.clone(),
            Arc::clone(&memory),
            Arc::clone(&sync),
            Arc::clone(&missed),
        );
        let commands = Commands::new(environment.clone(), Arc::clone(&memory), listing.clone());
        Self {
            environment,
            memory,
            regenerations: Arc::new(regenerations),
            sync,
            commands,
            listing,
            missed,
            #[cfg(feature = "compression")]
            compressor,
            process_id: uuid::Uuid::new_v4().as_u64_pair().0,
            content_layer: "content".into(),
            listening: std::sync::OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.environment.now()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.environment.settings
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.environment.observer
    }

    pub(crate) fn store(&self) -> &Store {
        &self.environment.store
    }

    pub(crate) fn locks(&self) -> Locks {
        self.environment.locks.clone()
    }

    pub(crate) fn sync(&self) -> &Arc<InvalidationSync> {
        &self.sync
    }

    /// Returns the latest epoch that this process knows.
    pub(crate) fn latest_epoch(&self) -> Epoch {
        self.environment.list.latest()
    }

    /// Runs the task that listens for invalidations.
    pub(crate) fn listen(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(listening));
        // A site listens once, so the cell is empty.
        let _ = self.listening.set(task);
    }

    pub(crate) fn stats(&self) -> Stats {
        let (counters, settings) = (self.observer().counters(), self.settings());
        Stats {
            requests: counters.requests(),
            regenerations: counters.regenerations(),
            running: self.regenerations.count(),
            memory_entries: self.memory.len(),
            memory_bytes: self.memory.weight(),
            memory_capacity: settings.memory_capacity,
            store_capacity: settings.store_capacity,
            memory_evictions: counters.evictions(),
            missed_invalidations: counters.missed_invalidations(),
            database_available: self.store().is_available(),
        }
    }

    /// Returns the latest missed invalidations that this process has noticed, the latest one first.
    pub(crate) fn missed_invalidations(&self) -> Vec<Arc<MissedInvalidation>> {
        self.missed.latest()
    }

    /// Returns the policy that applies in the site's mode.
    pub(crate) fn applied(&self, policy: Refresh) -> Refresh {
        match self.settings().mode {
            Mode::Development => policy.in_development(),
            Mode::On | Mode::Off => policy,
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.settings().mode == Mode::Off
    }

    /// Returns true if the layers tell authors the epochs of their changes, and read these from requests.
    #[inline]
    pub(crate) fn reads_own_writes(&self) -> bool {
        self.settings().reads_own_writes
    }

    pub(crate) fn process_id(&self) -> u64 {
        self.process_id
    }

    /// Returns what tells this site from other sites in the process.
    pub(crate) fn site(&self) -> parts::SiteId {
        self.regenerations.site()
    }

    pub(crate) fn has_in_memory(&self, key: &str) -> bool {
        self.memory.get(key).is_some()
    }

    /// Answers from memory, without a statement or a wait; a sync that is due begins in a task. A request
    /// without an answer goes on to [`visit`](Self::visit).
    #[inline]
    pub(crate) fn lookup(&self, key: &str, policy: &Refresh, now: Tick) -> Lookup {
        self.lookup_in(|| self.memory.get_or_copy(key), key, policy, now)
    }

    /// Answers as [`lookup`](Self::lookup) does, with a version that keeps its decoded value.
    pub(crate) fn lookup_decoded(&self, key: &str, policy: &Refresh, now: Tick) -> Lookup {
        self.lookup_in(|| self.memory.get(key), key, policy, now)
    }

    #[inline]
    fn lookup_in(
        &self,
        entry: impl FnOnce() -> Option<CacheEntry>,
        key: &str,
        policy: &Refresh,
        now: Tick,
    ) -> Lookup {
        let is_due = self.sync.start_if_due(now);
        let Some(entry) = entry() else {
            return Lookup::Miss;
        };
        let context = self.environment.context_at(key, policy, now);
        if is_due {
            return entry.without_answer(&context);
        }
        let is_busy = || self.regenerations.is_busy(key);
        entry.lookup(&Visitor::arriving_at(now), &context, is_busy)
    }

    /// Returns the version that a visitor gets from memory, unless a sync is due, which
    /// [`lookup`](Self::lookup) starts.
    pub(crate) fn hit_unless_due(
        &self,
        key: &str,
        policy: &Refresh,
        now: Tick,
    ) -> Option<Arc<Version>> {
        if self.sync.is_due(now) {
            return None;
        }
        let context = self.environment.context_at(key, policy, now);
        let is_busy = || self.regenerations.is_busy(key);
        let entry = self.memory.get_or_copy(key)?;
        match entry.lookup(&Visitor::arriving_at(now), &context, is_busy) {
            Lookup::Hit(Answer::Version(version)) => Some(version),
            _ => None,
        }
    }

    /// Answers a request that memory alone cannot answer; see [`Regenerations::visit`].
    pub(crate) async fn visit(
        &self,
        key: &str,
        policy: &Refresh,
        options: VisitOptions,
        generate: impl FnOnce() -> Result<Generate, Bypass>,
    ) -> Visited {
        let visit = self.regenerations.visit(key, policy, options, generate);
        visit.await
    }

    /// Visits content for the author of a change, for a limited time. The caller may have a time limit of its
    /// own, as a hole has, and would show nothing if the visit took longer. After that time, the author gets
    /// what everybody gets.
    pub(crate) async fn visit_as_author(
        &self,
        visit: impl Future<Output = Visited>,
        key: &str,
        policy: &Refresh,
    ) -> Visited {
        let visited = tokio::time::timeout(AUTHOR_CONTENT_WAIT, visit).await;
        let Visited { answer, leads } = visited.unwrap_or(Visited {
            answer: Answer::Unavailable {
                retry_in: RECHECK_INTERVAL,
            },
            leads: false,
        });
        Visited {
            answer: self.or_servable(answer, key, policy),
            leads,
        }
    }

    /// Visits a page as a part of the content that `run` generates. An invalidated version is not good enough
    /// for that, so the visit waits for a new one, for as long as the run has time. The content inherits the
    /// keys, tags, freshness and epoch of the part.
    pub(crate) async fn visit_as_part(
        &self,
        key: &str,
        policy: &Refresh,
        run: &RunContext,
        options: VisitOptions,
        generate: impl FnOnce() -> Result<Generate, Bypass>,
    ) -> Visited {
        let until = run.waits_until();
        let seen = self.wait_until_known(run).await;
        let options = VisitOptions {
            min_epoch: until.map_or(Epoch::NONE, |_| Epoch::MAX),
            ..options
        };
        let visit = self.visit(key, policy, options, generate);
        let visited = match until {
            None => Ok(visit.await),
            Some(until) => tokio::time::timeout_at(until, visit).await,
        };
        let late = Visited {
            answer: Answer::Unavailable {
                retry_in: RECHECK_INTERVAL,
            },
            leads: false,
        };
        let Visited { answer, leads } = visited.unwrap_or(late);
        let answer = self.or_servable(answer, key, policy);
        match &answer {
            Answer::Version(version) => {
                run.inherit(version, seen, &self.environment.context(key, policy));
            }
            Answer::Failed(_) | Answer::Unavailable { .. } => run.inherit_missing(),
            // The inner service answers the request, and the caller passes its response on.
            Answer::Pass(_) => {}
        }
        Visited { answer, leads }
    }

    /// Waits until this process knows all invalidations up to the epoch of the content that `run` generates,
    /// but no longer than the run may take. Returns the epoch up to which it knows them.
    ///
    /// The content's epoch may come from the database, or from an invalidation that this process has made.
    /// Other processes may have made invalidations with lower epochs that this process has not heard of.
    /// Without the wait, the content would get an earlier epoch, and would soon be regenerated once more.
    async fn wait_until_known(&self, run: &RunContext) -> Epoch {
        if !run.is_of(self.site()) {
            // The epochs of another site's database cannot be compared with this site's. So they set no limit here.
            return Epoch::MAX;
        }
        let Environment { list, store, .. } = &self.environment;
        if list.seen() < run.epoch()
            && !run.has_synced()
            && let Some(until) = run.waits_until()
            && !store.is_failing()
        {
            let synced = tokio::time::timeout_at(until, self.sync.wait_until_current()).await;
            if let Ok(Ok(())) = synced {
                run.mark_synced();
            }
        }
        if run.has_synced() {
            list.seen().max(run.epoch())
        } else {
            list.seen()
        }
    }

    /// Invalidates a resource, and visits it as a visitor who demands a regeneration. If a regeneration is
    /// under way already, here or in another process, the visit waits for it, for the policy's
    /// `generator_timeout` at most, and then runs a regeneration of its own. In four cases the answer may
    /// still be older than the invalidation: after a failure, in a cooldown, while the database fails, and
    /// after that time. The next visit then regenerates the page.
    pub(crate) async fn regenerate(
        &self,
        key: &str,
        policy: &Refresh,
        options: VisitOptions,
        generate: impl FnOnce() -> Result<Generate, Bypass>,
    ) -> Visited {
        if self.environment.is_shutting_down() {
            return Visited {
                answer: Answer::Pass(Bypass::ShuttingDown),
                leads: false,
            };
        }
        let epoch = match self.commands.invalidate(Target::Key(key)).await {
            Ok(epoch) => epoch,
            Err(error) => {
                return Visited {
                    answer: Answer::Failed(Failure::new(error)),
                    leads: true,
                };
            }
        };
        let options = VisitOptions {
            min_epoch: epoch,
            is_requested: true,
            ..options
        };
        let policy = policy.clone().follower_wait(policy.generator_timeout);
        self.visit(key, &policy, options, generate).await
    }

    /// Returns the answer, or, if no content came, the version in memory that may be served.
    pub(crate) fn or_servable(&self, answer: Answer, key: &str, policy: &Refresh) -> Answer {
        let context = self.environment.context(key, policy);
        match (answer, self.memory.get(key)) {
            (
                Answer::Unavailable { .. } | Answer::Failed(_) | Answer::Pass(Bypass::ShuttingDown),
                Some(CacheEntry::Version(old)),
            ) if old.freshness(&context).is_servable() => Answer::Version(old),
            (answer, _) => answer,
        }
    }

    /// Runs a generator for one caller, and stores nothing.
    pub(crate) async fn unstored(&self, key: &str, generator: Generator) -> Answer {
        self.regenerations.unstored(key, generator).await
    }

    /// Runs a request of the application on a permit; see [`Regenerations::permitted`].
    pub(crate) async fn permitted<T>(
        &self,
        caller: Option<Arc<RunContext>>,
        request: impl Future<Output = T>,
    ) -> T {
        self.regenerations.permitted(caller, request).await
    }

    /// Begins no further regeneration and waits for the running ones.
    pub(crate) async fn shutdown(&self) {
        self.environment.locks.shutdown().await;
    }

    /// Returns a token that a shutdown waits for.
    pub(crate) fn task_token(&self) -> TaskTrackerToken {
        self.environment.locks.tasks().token()
    }

    /// Returns the time to live of a version in whole seconds; see
    /// [`Version::ttl`](entry::Version::ttl).
    pub(crate) fn ttl(&self, version: &Version, policy: &Refresh, now: Tick) -> i64 {
        version.ttl(now, policy, &*self.environment.list)
    }
}
