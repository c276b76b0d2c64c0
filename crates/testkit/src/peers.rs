//! Processes that share a database, for tests of invalidations.

use std::{net::SocketAddr, time::Duration};

use perennial::{Builder, Perennial, layer::RefreshLayer};

use crate::{Db, Origin, every, get, patient, until};

const LONG: Duration = Duration::from_secs(3600);
/// The time within which an invalidation is heard of: the sync interval, and a reserve for a busy
/// machine.
pub const HEARD: Duration = Duration::from_secs(2);

/// A site with a memory of its own, which stands for a process.
pub struct Process {
    /// The site of the process.
    pub site: Perennial,
    /// Where it serves each path of the origin through a layer.
    pub address: SocketAddr,
}

impl Process {
    /// A process with the settings of [`patient`].
    pub async fn new(
        db: &Db,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        Self::with(db, patient(), origin, layered).await
    }

    /// A process with these settings.
    pub async fn with(
        db: &Db,
        builder: Builder,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        let site = builder.with_pool(db.database().await).await.expect("opens");
        let layer = layered(site.layer(every(LONG)));
        let address = crate::serve(origin.router().layer(layer)).await;
        Self { site, address }
    }

    /// Returns the number of the served run.
    pub async fn run(&self, path: &str) -> usize {
        get(self.address, path).await.run()
    }
}

/// Two processes with the same version of each path.
pub async fn pair(
    db: &Db,
    origin: &Origin,
    paths: &[&str],
    layered: impl Fn(RefreshLayer) -> RefreshLayer,
) -> [Process; 2] {
    let processes = [
        Process::new(db, origin, &layered).await,
        Process::new(db, origin, &layered).await,
    ];
    for path in paths {
        // A busy server may be slow to accept connections. Until then, each process serves a
        // version of its own that it cannot store.
        until("both have the same version", async || {
            processes[0].run(path).await == processes[1].run(path).await
        })
        .await;
    }
    processes
}

/// Waits until a process has noticed that its version is not the newest.
pub async fn hears(process: &Process, path: &str, old: usize) -> usize {
    let mut run = old;
    until("it is heard of", async || {
        run = process.run(path).await;
        run != old
    })
    .await;
    run
}
