//! The regenerations of one process: what starts them, joins them and carries them out.
//!
//! - [`machine`]: every decision about one regeneration, without I/O. **Start here.**
//! - [`waiting`]: every decision about a visitor who waits for one, without I/O.
//! - `driver`: carries out the actions of the machine, in one task for each regeneration. `generate` runs the
//!   generator for it, and `report` writes the log and the history.
//! - `visit`: starts and joins regenerations, for a request that memory cannot answer.
//! - `check`: a model checker. It runs two machines against a model of the store, in every order of steps and
//!   with bounded faults.
//!
//! [`Regenerations`] is the only owner of the list of running regenerations and of their permits.

#[cfg(test)]
mod check;
mod driver;
mod generate;
mod generator;
mod machine;
mod report;
mod visit;
mod waiting;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use http::HeaderName;
use tokio::sync::{Semaphore, watch};

#[cfg(feature = "compression")]
use crate::cache::compressor::Compressor;
use crate::{
    cache::{
        Representations,
        environment::Environment,
        invalidation::InvalidationSync,
        memory::Memory,
        missed::MissedInvalidations,
        parts::{self, RunContext},
        peer_leases::PeerLeases,
    },
    ordered::{Ordered, Place},
};

pub(crate) use generator::{Generate, Generator, Readable, Reading};
pub(crate) use machine::Generated;
pub(crate) use visit::{VisitOptions, Visited};

type Progress = waiting::Progress<Representations>;

pub(crate) struct Regenerations {
    environment: Environment,
    memory: Arc<Memory>,
    sync: Arc<InvalidationSync>,
    peer_leases: Arc<PeerLeases>,
    missed: Arc<MissedInvalidations>,
    running: Ordered<Running>,
    /// Bounds the concurrent regenerations.
    permits: Arc<Semaphore>,
    /// The headers that a warning has named; see `generate.rs`.
    retagging: Ordered<HashSet<HeaderName>>,
    #[cfg(feature = "compression")]
    compressor: Arc<Compressor>,
}

/// The regenerations of this process, by their keys.
#[derive(Default)]
struct Running {
    /// Those that visitors may join, with the progress that visitors watch.
    joinable: HashMap<String, watch::Sender<Progress>>,
    /// Those that are over but for the release of their leases. The next one of a key begins when the
    /// channel closes.
    releasing: HashMap<String, watch::Receiver<()>>,
}

impl Regenerations {
    pub(crate) fn new(
        environment: Environment,
        memory: Arc<Memory>,
        sync: Arc<InvalidationSync>,
        peer_leases: Arc<PeerLeases>,
        missed: Arc<MissedInvalidations>,
        #[cfg(feature = "compression")] compressor: Arc<Compressor>,
    ) -> Self {
        let permits = environment.settings.max_regenerations;
        Self {
            environment,
            memory,
            sync,
            peer_leases,
            missed,
            running: Ordered::new(Place::Running, Running::default()),
            permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            retagging: Ordered::new(Place::Last, HashSet::new()),
            #[cfg(feature = "compression")]
            compressor,
        }
    }

    /// Returns the number of regenerations that visitors may join.
    pub(crate) fn count(&self) -> usize {
        self.running.lock().joinable.len()
    }

    /// Returns true if this process regenerates the key, or if it knows that another process does. Also returns
    /// true if this process no longer starts regenerations.
    pub(crate) fn is_busy(&self, key: &str) -> bool {
        self.environment.is_shutting_down()
            || self.running.lock().joinable.contains_key(key)
            || self.peer_leases.contains(key, self.environment.now())
    }

    /// Returns what tells this site from others in the process.
    pub(crate) fn site(&self) -> parts::SiteId {
        parts::SiteId(std::ptr::from_ref(self).addr())
    }

    /// Runs a request of the application on a permit, which its regeneration shares. `caller` is the run that
    /// sends the request, if a generator does. Such a request runs on the generator's own permit: all other
    /// permits may belong to generators that wait for such requests, too, and nothing would go on. Any other
    /// request waits for a permit.
    pub(crate) async fn permitted<T>(
        &self,
        caller: Option<Arc<RunContext>>,
        request: impl Future<Output = T>,
    ) -> T {
        let site = self.site();
        let inherited = caller.as_ref().and_then(|run| run.permit(site));
        let permit = match inherited {
            Some(permit) => Some(permit),
            None => {
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                permit.ok().map(Arc::new)
            }
        };
        let chain = caller.and_then(|run| run.chain());
        let run = Arc::new(RunContext::for_request(site, chain, permit));
        run.carry_out(request).await
    }
}
