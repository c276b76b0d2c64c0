//! What the components of a site's cache share, and only read: the services below them, the clock, the
//! invalidation list and the settings. Each component gets the environment when it is built, so a test
//! can build one component without the others.

use std::{sync::Arc, time::Duration};

use perennial_store::{Locks, Store};

use crate::{
    cache::{entry::DecisionContext, invalidation_list::InvalidationList},
    clock::{Clock, Tick},
    event::Observer,
    mode::Mode,
    policy::Refresh,
};

/// The surroundings of a component. Cheap to clone. Of its parts only the list changes, and only
/// [`invalidation`](crate::cache::invalidation) and [`commands`](crate::cache::commands) change it.
#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) store: Store,
    pub(crate) locks: Locks,
    pub(crate) observer: Observer,
    pub(crate) clock: Arc<Clock>,
    pub(crate) list: Arc<InvalidationList>,
    pub(crate) settings: Arc<Settings>,
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
    /// The SHA-256 of the token of [`Builder::explain_token`](crate::Builder::explain_token).
    pub(crate) explain_token: Option<[u8; 32]>,
    /// The site knows of triggers in its database: a request that changes something may have made them write.
    pub(crate) follows_triggers: bool,
    /// The author of a change sees it in each process.
    pub(crate) reads_own_writes: bool,
    pub(crate) mode: Mode,
}

impl Environment {
    pub(crate) fn new(store: Store, observer: Observer, settings: Settings) -> Self {
        Self {
            locks: Locks::with_store(store.clone()),
            store,
            observer,
            clock: Arc::new(Clock::start()),
            list: Arc::new(InvalidationList::new(settings.revision.clone())),
            settings: Arc::new(settings),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.locks.tasks().is_closed()
    }

    /// Returns the context of a decision that is made now.
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
            list: &*self.list,
            store_patience: self.store.patience(),
            statement_timeout: self.store.limit(),
            retention: self.settings.retention,
            is_shutting_down: self.is_shutting_down(),
        }
    }
}
