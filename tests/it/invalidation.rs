//! Invalidations and purges reach other processes through each database.

use std::{net::SocketAddr, time::Duration};

use perennial::{Builder, Key, Perennial, layer::RefreshLayer};
use tokio::task::JoinSet;

use crate::{
    databases::Db,
    support::{Crowd, Origin, every, get, patient, request, until},
};

on_each_database! {
    an_invalidated_key_and_its_variants_regrow_in_every_process
    purged_page_is_not_served_any_more
    a_long_variant_that_is_made_while_it_is_purged_is_not_published
}

const LONG: Duration = Duration::from_secs(3600);
/// The time within which an invalidation is heard of: the sync interval, and a reserve for a busy
/// machine.
pub(crate) const HEARD: Duration = Duration::from_secs(2);

/// A site with a memory of its own, which stands for a process.
pub(crate) struct Process {
    pub(crate) site: Perennial,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) async fn new(
        db: &Db,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        Self::with(db, patient(), origin, layered).await
    }

    pub(crate) async fn with(
        db: &Db,
        builder: Builder,
        origin: &Origin,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        let site = builder.with_pool(db.database().await).await.expect("opens");
        let layer = layered(site.layer(every(LONG)));
        let address = crate::support::serve(origin.router().layer(layer)).await;
        Self { site, address }
    }

    /// Returns the number of the served run.
    pub(crate) async fn run(&self, path: &str) -> usize {
        get(self.address, path).await.run()
    }
}

/// Two processes with the same version of each path.
pub(crate) async fn pair(
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
        let run = processes[0].run(path).await;
        assert_eq!(processes[1].run(path).await, run, "{path}");
    }
    processes
}

/// Waits until a process has noticed that its version is not the newest.
pub(crate) async fn hears(process: &Process, path: &str, old: usize) -> usize {
    let mut run = old;
    until("it is heard of", async || {
        run = process.run(path).await;
        run != old
    })
    .await;
    run
}

async fn an_invalidated_key_and_its_variants_regrow_in_every_process(db: Db) {
    let origin = Origin::default();
    let by_header =
        |layer: RefreshLayer| layer.key(Key::new().header("x-kind".parse().expect("a name")));
    let [a, b] = pair(&db, &origin, &["/p?x=1", "/p?x=2", "/pp"], by_header).await;
    let kind = async |process: &Process| {
        let kind = [("x-kind", "blue")];
        request(process.address, "GET", "/p?x=1", &kind).await.run()
    };
    let blue = kind(&a).await;
    assert_eq!(kind(&b).await, blue);
    let others = [a.run("/p?x=2").await, a.run("/pp").await];
    let (plain, runs) = (a.run("/p?x=1").await, origin.begun());

    a.site.invalidate("/p?x=1").await.expect("is done");
    // One request may not be enough: it gets the old version while the regeneration before still
    // ends.
    let new_plain = hears(&a, "/p?x=1", plain).await;
    until("its variant regrows", async || kind(&a).await != blue).await;
    let new_blue = kind(&a).await;
    assert!(new_plain > runs && new_blue > runs);
    assert_eq!(hears(&b, "/p?x=1", plain).await, new_plain);
    assert_eq!(kind(&b).await, new_blue);
    for process in [&a, &b] {
        assert_eq!(
            [process.run("/p?x=2").await, process.run("/pp").await],
            others
        );
    }
    assert_eq!(origin.begun(), runs + 2, "each was made once for both");
}

async fn purged_page_is_not_served_any_more(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/p", "/q", "/later"], |layer| layer).await;
    let (q, later) = (a.run("/q").await, a.run("/later").await);
    a.site.purge("/p").await.expect("is done");
    assert_eq!(db.entry("/p").await, None, "is gone");
    assert!(db.entry("/q").await.is_some());
    // A process that has learned of the later invalidation has learned of the purge.
    a.site.invalidate("/later").await.expect("is done");
    hears(&b, "/later", later).await;
    // No visitor gets the old version during the generation.
    origin.hold();
    let begun = origin.begun();
    let mut crowd = Crowd::visit(10, &[a.address, b.address], "/p");
    until("it is generated", async || origin.begun() == begun + 1).await;
    crowd.another(a.address, "/p");
    crowd.another(b.address, "/p");
    origin.let_go();
    let replies = crowd.rest().await;
    assert!(
        replies.iter().all(|reply| reply.run() == begun + 1),
        "{replies:?}"
    );
    assert_eq!([a.run("/q").await, b.run("/q").await], [q; 2]);

    // The running generator's version is not published, and the next visitor does not get it.
    let begun = origin.begun();
    origin.hold();
    a.site.invalidate("/p").await.expect("is done");
    let mut crowd = Crowd::visit(1, &[a.address], "/p");
    until("a generates", async || {
        // The regeneration before may still be ending.
        crowd.another(a.address, "/p");
        origin.begun() == begun + 1
    })
    .await;
    b.site.purge("/p").await.expect("is done");
    origin.let_go();
    crowd.rest().await;
    assert!(b.run("/p").await > begun + 1);
    hears(&a, "/p", begun + 1).await;
    let (_, stored) = db.entry("/p").await.expect("is there again");
    assert!(
        !stored.starts_with(&format!("run {} ", begun + 1)),
        "{stored}"
    );
}

async fn a_long_variant_that_is_made_while_it_is_purged_is_not_published(db: Db) {
    let origin = Origin::default();
    let keyed =
        |layer: RefreshLayer| layer.key(Key::new().header("x-lang".parse().expect("a name")));
    let process = Process::new(&db, &origin, keyed).await;
    let long = "de".repeat(200);
    let visit = async || request(process.address, "GET", "/p", &[("x-lang", &long)]).await;
    assert_eq!(visit().await.run(), 1);
    let stored = async || {
        let count = "SELECT count(*) FROM perennial_entry";
        db.int(count).await.expect("a number")
    };
    assert_eq!(stored().await, 1);
    process.site.invalidate("/p").await.expect("is done");
    origin.hold();
    let mut made = JoinSet::new();
    until("it generates", async || {
        // The regeneration before may still be ending.
        let (address, long) = (process.address, long.clone());
        made.spawn(async move { request(address, "GET", "/p", &[("x-lang", &long)]).await });
        origin.begun() == 2
    })
    .await;
    // No other visitor starts another generation.
    while made.len() > 1 {
        made.join_next().await;
    }
    process.site.purge("/p").await.expect("is done");
    assert_eq!(stored().await, 0);
    origin.let_go();
    made.join_all().await;
    until("it has ended", async || origin.ended() >= 2).await;
    process.site.shutdown().await;
    assert_eq!(stored().await, 0, "it was published");
}
