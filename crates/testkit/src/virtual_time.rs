//! Sites in virtual time: a store in memory stands for the database, and visitors come without a
//! network.
//!
//! Each test of such a site has `#[tokio::test(start_paused = true)]`. The clock moves only when
//! every task waits, so a busy machine changes nothing, an hour costs nothing, and a regeneration
//! has ended before the next `sleep` returns.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Router;
use perennial::{
    Builder, Perennial, Refresh,
    event::Served,
    layer::RefreshLayer,
    locks::{LockInfo, Locks},
};
use perennial_store::{
    Backend, Call, CallFuture, Epoch, Invalidated, Publish, Reply, error::BoxError,
};
use perennial_testing::Memory;

use crate::{Origin, every, page, patient};

/// The database that several sites share; each site stands for a process.
#[derive(Clone)]
pub struct Shared(Arc<(Memory, Mutex<String>)>);

/// A store with immediate answers, which can refuse to publish a key.
impl Shared {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let (memory, unpublishable) = &*self.0;
        match &call {
            Call::Publish(Publish { lease, .. })
                if lease.name == page(&unpublishable.lock().expect("not poisoned")) =>
            {
                Err("refused".into())
            }
            call => Ok(memory.apply(call)),
        }
    }
}

impl Backend for Shared {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    /// An empty database.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Opens a site on this database, as another process would.
    pub fn site(&self) -> Perennial {
        self.open(patient())
    }

    /// Opens a site with these settings.
    pub fn open(&self, builder: Builder) -> Perennial {
        builder.with_store(self.store()).expect("opens")
    }

    /// The store, for a test that makes calls of its own.
    pub fn store(&self) -> Box<dyn Backend> {
        Box::new(self.clone())
    }

    /// The locks of a new site.
    pub fn locks(&self) -> Locks {
        self.site().locks()
    }

    /// Every publish of this key fails from now on.
    pub fn refuse_publishes_of(&self, key: &str) {
        *self.0.1.lock().expect("not poisoned") = key.to_owned();
    }

    /// Writes an invalidation into the outbox, as the commit of an application's transaction would.
    pub fn commit_invalidation(&self, id: &str, name: &str) {
        self.0.0.commit_invalidation(id, name);
    }

    /// The invalidated names, in the order of their epochs.
    pub async fn invalidated(&self) -> Vec<String> {
        let store = self.store();
        let synced = store.ask(Invalidated::new("", Epoch::NONE, usize::MAX, Vec::new()));
        let names = synced.await.expect("answers").names.into_iter();
        names.map(|(name, _)| name).collect()
    }

    /// The lock of a page.
    pub async fn lock_of(&self, path: &str) -> Option<LockInfo> {
        let lock = self.locks().inspect(page(path)).await;
        lock.expect("answers")
    }

    /// Counts the rows of the locks of pages.
    pub fn page_locks(&self) -> usize {
        self.0.0.page_locks()
    }

    /// Returns how often a page was stored.
    pub fn generations(&self, key: &str) -> u64 {
        self.0.0.generations(key)
    }

    /// Returns the stored fence and body of a key.
    pub async fn entry(&self, key: &str) -> Option<(i64, String)> {
        let (fence, body) = crate::store::stored(&*self.store(), &page(key)).await?;
        Some((fence.0, String::from_utf8(body.to_vec()).expect("text")))
    }
}

/// Leaks a service, so that tests can pass its reference around like an address. Visitors call it
/// directly, without a network.
pub fn here(app: Router) -> &'static Router {
    Box::leak(Box::new(app))
}

/// An origin, and a process that caches its pages.
pub fn origin_behind(site: &Perennial, policy: Refresh) -> (Origin, &'static Router) {
    let origin = Origin::default();
    let address = here(origin.router().layer(site.layer(policy)));
    (origin, address)
}

/// A process with a memory of its own.
pub struct Process {
    /// The site of the process.
    pub site: Perennial,
    /// The router through which the process serves each path of the origin, with the layer around
    /// it.
    pub address: &'static Router,
}

impl Process {
    /// A process with the settings of [`patient`].
    pub fn new(shared: &Shared, origin: &Origin) -> Self {
        Self::with(shared, patient(), origin, |layer| layer)
    }

    /// A process with these settings.
    pub fn with(
        shared: &Shared,
        builder: Builder,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        let site = shared.open(builder);
        let layer = layered(site.layer(every(Duration::from_secs(3600))));
        let address = here(origin.router().layer(layer));
        Self { site, address }
    }

    /// Regenerates a page, and returns the layer's answer.
    pub async fn regenerate(&self, path: &str) -> Option<Served> {
        let mut visited = self.site.regenerate(self.address.clone(), [path]).await;
        visited.pop().expect("is visited").result.ok()
    }

    /// Returns the number of the served run.
    pub async fn run(&self, path: &str) -> usize {
        crate::get(self.address, path).await.run()
    }
}

/// Waits for the next sync of a process.
pub async fn synced() {
    tokio::time::sleep(Duration::from_millis(1300)).await;
}
