//! The path of a resource through memory and store.

pub(crate) mod content;
pub(crate) mod entry;
mod generator;
pub(crate) mod history;
mod housekeeping;
pub(crate) mod invalidation;
pub(crate) mod listing;
mod memory;
pub(crate) mod metadata;
pub(crate) mod parts;
mod peer_leases;
mod regeneration;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, Response};
use perennial_store::{Epoch, Locks, Store, locked};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    clock::{Clock, Tick},
    event::{Bypass, Observer, Stats},
    mode::Mode,
    policy::Refresh,
    timing::RECHECK,
};

use content::Representations;
use housekeeping::CapacityCheck;
use invalidation::{Outbox, Schedule};
use memory::Memory;
use parts::Run;
use peer_leases::PeerLeases;

pub(crate) use content::HitHeaders;
pub(crate) use entry::{DecisionContext, Freshness};
pub(crate) use generator::{Failure, Generate, Generator};
pub(crate) use invalidation::{Invalidations, Target, UNKNOWN, written};
pub(crate) use metadata::{Meta, Metadata, interval_of};
pub(crate) use regeneration::{Accepts, Visited};

/// The answer to a visitor.
pub(crate) type Answer = entry::Answer<Representations>;
pub(crate) type Page = entry::Page<Representations>;
pub(crate) type Lookup = entry::Lookup<Representations>;
pub(crate) type Version = entry::Version<Representations>;
/// The result of a generator.
pub(crate) type Generated = regeneration::Generated<Response<Bytes>>;
type Progress = regeneration::Progress<Representations>;
type CacheEntry = entry::CacheEntry<Representations>;
type Input = regeneration::Input<Representations>;
type Action = regeneration::Action<Representations>;

pub(crate) struct Cache {
    store: Store,
    observer: Observer,
    locks: Locks,
    clock: Clock,
    memory: Memory,
    /// The invalidation list.
    pub(crate) invalidations: Invalidations,
    sync: Schedule,
    /// The keys that other processes regenerate.
    peer_leases: PeerLeases,
    outbox: Outbox,
    capacity_check: CapacityCheck,
    /// See [`Cache::read_own_writes`].
    own_writes: AtomicBool,
    /// A random number that other processes do not have.
    process_id: u64,
    /// The headers that a warning has named; see [`Cache::warn_of_retagging`].
    retagging: Mutex<HashSet<HeaderName>>,
    pub(crate) settings: Settings,
    running: Mutex<Running>,
    /// The name of the layer in events about content of
    /// [`Perennial::content`](crate::Perennial::content).
    pub(crate) content_layer: Arc<str>,
    /// Bounds the concurrent regenerations.
    permits: Arc<Semaphore>,
    /// One compression at a time: the other cores belong to the visitors.
    #[cfg(feature = "compression")]
    compressing: Arc<Semaphore>,
    /// The task that listens for invalidations, if the site listens. Dropping `Cache` ends the
    /// task.
    #[cfg(feature = "postgres")]
    listening: std::sync::OnceLock<tokio_util::task::AbortOnDropHandle<()>>,
}

/// The settings of the site's [`Builder`](crate::Builder).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) memory_capacity: u64,
    pub(crate) store_capacity: Option<u64>,
    pub(crate) max_body: usize,
    pub(crate) max_headers: usize,
    pub(crate) max_regenerations: usize,
    pub(crate) cache_status: bool,
    pub(crate) retention: Duration,
    pub(crate) revision: Option<String>,
    /// The digest of the token.
    pub(crate) explain_token: Option<[u8; 32]>,
    pub(crate) mode: Mode,
}

/// The regenerations of this process.
#[derive(Default)]
struct Running {
    /// Those that visitors may join, with the progress that visitors watch.
    flights: HashMap<String, watch::Sender<Progress>>,
    /// Those that are over but for the release of their leases. The next one of a key begins when the
    /// channel closes.
    releasing: HashMap<String, watch::Receiver<()>>,
}

impl Cache {
    pub(crate) fn new(store: Store, observer: Observer, settings: Settings) -> Self {
        let regenerations = settings.max_regenerations.min(Semaphore::MAX_PERMITS);
        let memory = Memory::new(
            settings.memory_capacity,
            settings.max_body,
            observer.clone(),
        );
        Self {
            locks: Locks::with_store(store.clone()),
            store,
            observer,
            clock: Clock::start(),
            memory,
            invalidations: Invalidations::new(settings.revision.clone()),
            sync: Schedule::new(),
            peer_leases: PeerLeases::default(),
            outbox: Outbox::default(),
            capacity_check: CapacityCheck::default(),
            own_writes: AtomicBool::new(false),
            process_id: uuid::Uuid::new_v4().as_u64_pair().0,
            retagging: Mutex::default(),
            settings,
            running: Mutex::default(),
            content_layer: "content".into(),
            permits: Arc::new(Semaphore::new(regenerations)),
            #[cfg(feature = "compression")]
            compressing: Arc::new(Semaphore::new(1)),
            #[cfg(feature = "postgres")]
            listening: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Runs the task that listens for invalidations.
    #[cfg(feature = "postgres")]
    pub(crate) fn listen(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(listening));
        // Is called once.
        let _ = self.listening.set(task);
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn stats(&self) -> Stats {
        let counters = self.observer().counters();
        Stats {
            requests: counters.requests(),
            regenerations: counters.regenerations(),
            running: locked(&self.running).flights.len(),
            memory_entries: self.memory.len(),
            memory_bytes: self.memory.weight(),
            memory_capacity: self.settings.memory_capacity,
            store_capacity: self.settings.store_capacity,
            memory_evictions: counters.evictions(),
            database_available: self.store.is_available(),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn locks(&self) -> Locks {
        self.locks.clone()
    }

    /// Returns the policy that applies in the site's mode.
    pub(crate) fn applied(&self, policy: Refresh) -> Refresh {
        match self.settings.mode {
            Mode::Development => policy.in_development(),
            Mode::On | Mode::Off => policy,
        }
    }

    /// Runs a request of the application on a permit, which its regeneration shares. `caller`: the
    /// run that sends the request. A generator's requests run on its own permit, as all permits may
    /// be those of generators that wait for such requests. Otherwise waits for a permit.
    pub(crate) async fn permitted<T>(
        &self,
        caller: Option<Arc<Run>>,
        request: impl Future<Output = T>,
    ) -> T {
        let site = self.address();
        let own = caller.as_ref().and_then(|run| run.permit(site));
        let permit = match own {
            Some(permit) => Some(permit),
            None => {
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                permit.ok().map(Arc::new)
            }
        };
        let chain = caller.and_then(|run| run.chain());
        let run = Arc::new(Run::request(site, chain, permit));
        run.carry_out(request).await
    }

    /// Returns what tells this site from others in the process.
    pub(crate) fn address(&self) -> parts::Site {
        parts::Site(std::ptr::from_ref(self).addr())
    }

    /// Visits as a part of the content that `run` generates: an invalidated version is waited for, so
    /// that no content is stored with it, for as long as the run has time. The content takes the part
    /// over.
    pub(crate) async fn visit_as_part(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
        run: &Run,
        placeholder: bool,
        generate: impl FnOnce() -> Generate,
    ) -> Visited {
        let until = run.waits_until();
        let accepts = Accepts {
            placeholder,
            min_epoch: until.map_or(Epoch::NONE, |_| Epoch::MAX),
        };
        let visit = self.visit(key, policy, accepts, generate);
        let visited = match until {
            None => Ok(visit.await),
            Some(until) => tokio::time::timeout_at(until, visit).await,
        };
        let late = Visited {
            answer: Answer::Unavailable { retry_in: RECHECK },
            leads: false,
        };
        let Visited { answer, leads } = visited.unwrap_or(late);
        let answer = self.or_servable(answer, key, policy);
        match &answer {
            Answer::Version(version) => run.inherit(version, &self.context(key, policy)),
            Answer::Failed(_) | Answer::Unavailable { .. } => run.inherit_missing(),
            // The response that the service gives in place of a version is taken over.
            Answer::Pass(_) => {}
        }
        Visited { answer, leads }
    }

    /// Lets the layers tell authors the epochs of their changes, and read these from requests.
    pub(crate) fn read_own_writes(&self) {
        self.own_writes.store(true, Relaxed);
    }

    #[inline]
    pub(crate) fn reads_own_writes(&self) -> bool {
        self.own_writes.load(Relaxed)
    }

    pub(crate) fn process_id(&self) -> u64 {
        self.process_id
    }

    /// Returns the latest epoch that this process knows.
    pub(crate) fn latest_epoch(&self) -> Epoch {
        self.invalidations.latest()
    }

    pub(crate) fn is_off(&self) -> bool {
        self.settings.mode == Mode::Off
    }

    /// Returns the context for a decision now.
    pub(crate) fn context<'a>(&'a self, key: &'a str, policy: &'a Refresh) -> DecisionContext<'a> {
        self.context_at(key, policy, self.now())
    }

    pub(crate) fn context_at<'a>(
        &'a self,
        key: &'a str,
        policy: &'a Refresh,
        now: Tick,
    ) -> DecisionContext<'a> {
        DecisionContext {
            now,
            key,
            policy,
            list: &self.invalidations,
            patience: self.store.patience(),
            statement: self.store.limit(),
            closing: self.is_closing(),
            permit: false,
            held: false,
            min_epoch: Epoch::NONE,
        }
    }

    /// Answers from memory, without a statement or a wait; a sync that is due begins in a task. A request
    /// without an answer goes on to [`Cache::visit`].
    pub(crate) fn look(self: &Arc<Self>, key: &str, policy: &Refresh, now: Tick) -> Lookup {
        let is_due = self.sync(now);
        let Some(view) = self.memory.get(key) else {
            return Lookup::Miss;
        };
        let context = self.context_at(key, policy, now);
        if is_due {
            return view.without_answer(&context);
        }
        let is_busy = || {
            self.is_closing()
                || locked(&self.running).flights.contains_key(key)
                || self.is_elsewhere(key)
        };
        view.look(&context, is_busy)
    }

    /// Returns the answer, or, if no content came, the version in memory that may be served.
    pub(crate) fn or_servable(&self, answer: Answer, key: &str, policy: &Refresh) -> Answer {
        let context = self.context(key, policy);
        match (answer, self.memory.get(key)) {
            (
                Answer::Unavailable { .. } | Answer::Failed(_) | Answer::Pass(Bypass::ShuttingDown),
                Some(CacheEntry::Version(old)),
            ) if old.freshness(&context).is_servable() => Answer::Version(old),
            (answer, _) => answer,
        }
    }

    /// Begins no further regeneration and waits for the running ones.
    pub(crate) async fn shutdown(&self) {
        self.locks.shutdown().await;
    }

    /// Returns a token that a shutdown waits for.
    pub(crate) fn task_token(&self) -> TaskTrackerToken {
        self.locks.tasks().token()
    }

    fn is_closing(&self) -> bool {
        self.locks.tasks().is_closed()
    }

    /// Returns true if another process regenerates this key, as far as this process knows.
    fn is_elsewhere(&self, key: &str) -> bool {
        self.peer_leases.contains(key, self.now())
    }
}
