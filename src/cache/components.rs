//! Tests which show that each component of the cache works without a site: it is built from an [`Environment`]
//! and the components that it uses, over a real store.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use perennial_store::{
    Database, Epoch, Invalidate, Store,
    name::TABLE_PREFIX,
    sql::{Connect, Tables},
};

use crate::{
    cache::{
        Answer, Generate, Generated, Lookup, Settings, Target, VisitOptions, Visited,
        compressor::Compressor,
        entry::Visitor,
        environment::Environment,
        housekeeping::Housekeeping,
        invalidation::InvalidationSync,
        listing::{
            Listing,
            entries::{EntryFilter, EntryState},
        },
        memory::Memory,
        missed::MissedInvalidations,
        peer_leases::PeerLeases,
        regeneration::Regenerations,
    },
    event::Observer,
    mode::Mode,
    policy::Refresh,
};

const HOUR: Refresh = Refresh::every(Duration::from_hours(1));

/// Returns the environment of a process whose store is an SQLite file in this folder, without a limit on its
/// size.
async fn environment(folder: &tempfile::TempDir) -> Environment {
    environment_with_capacity(folder, None).await
}

async fn environment_with_capacity(
    folder: &tempfile::TempDir,
    store_capacity: Option<u64>,
) -> Environment {
    let url = format!("sqlite://{}/site.db", folder.path().display());
    let database = Database::open_when(&url, Connect::Now)
        .await
        .expect("opens");
    let tables = Tables::new(TABLE_PREFIX).expect("fits");
    let backend = database.store_when(tables.clone(), Connect::Now).await;
    let limit = Duration::from_secs(5);
    let store = Store::new(backend.expect("opens"), limit, limit, Some(tables), |_| ());
    let settings = Settings {
        memory_capacity: 1 << 20,
        store_capacity,
        max_body: 1 << 16,
        max_headers: 1 << 10,
        max_regenerations: 1,
        cache_status: true,
        retention: Duration::from_hours(24),
        revision: None,
        explain_token: None,
        follows_triggers: false,
        reads_own_writes: false,
        mode: Mode::On,
    };
    Environment::new(store, Observer::default(), settings)
}

/// The components of a process from the memory up to the regenerations.
struct TestProcess {
    environment: Environment,
    memory: Arc<Memory>,
    sync: Arc<InvalidationSync>,
    regenerations: Arc<Regenerations>,
}

impl TestProcess {
    fn new(environment: Environment) -> Self {
        let memory = Memory::new(1 << 20, 1 << 16, environment.observer.clone());
        let (memory, leases) = (Arc::new(memory), Arc::new(PeerLeases::new()));
        let missed = Arc::new(MissedInvalidations::new());
        let sync = InvalidationSync::new(
            environment.clone(),
            Arc::clone(&leases),
            Arc::clone(&missed),
        );
        let sync = Arc::new(sync);
        let compressor = Compressor::new(environment.clone(), Arc::clone(&memory));
        let regenerations = Regenerations::new(
            environment.clone(),
            Arc::clone(&memory),
            Arc::clone(&sync),
            leases,
            missed,
            Arc::new(compressor),
        );
        Self {
            environment,
            memory,
            sync,
            regenerations: Arc::new(regenerations),
        }
    }

    async fn visit(&self, key: &str) -> Visited {
        let generate = || {
            let run = async { Generated::Content(Response::new(Bytes::from_static(b"content"))) };
            Ok(Generate {
                run: Some(Box::pin(run)),
                layer: "test".into(),
                readable: None,
            })
        };
        self.regenerations
            .visit(key, &HOUR, VisitOptions::default(), generate)
            .await
    }
}

#[tokio::test]
async fn regenerations_run_and_end_in_memory_and_in_the_store() {
    let folder = tempfile::tempdir().expect("is made");
    let process = TestProcess::new(environment(&folder).await);
    let Visited { answer, leads } = process.visit("a").await;
    assert!(leads && matches!(answer, Answer::Version(_)));
    let entry = process.memory.get("a").expect("is in memory");
    let policy = HOUR;
    let context = process.environment.context("a", &policy);
    let found = entry.lookup(&Visitor::arriving_at(context.now), &context, || false);
    assert!(matches!(found, Lookup::Hit(Answer::Version(_))));
    // Another process reads it.
    let other = TestProcess::new(environment(&folder).await);
    let Visited { answer, .. } = other.visit("a").await;
    assert!(matches!(answer, Answer::Version(version) if !version.is_unsaved()));
    assert_eq!(other.regenerations.count(), 0);
}

#[tokio::test]
async fn sync_learns_what_others_have_stored() {
    let folder = tempfile::tempdir().expect("is made");
    let environment = environment(&folder).await;
    let sync = InvalidationSync::new(
        environment.clone(),
        Arc::new(PeerLeases::new()),
        Arc::new(MissedInvalidations::new()),
    );
    let sync = Arc::new(sync);
    sync.wait_for_all_before_start().await.expect("answers");
    let name = Target::Tag("t").name().expect("fits");
    let invalidate = Invalidate::new(vec![name]);
    let epoch = environment.store.call(invalidate).await.expect("is stored");
    assert!(environment.list.seen() < epoch);
    sync.wait_until_current().await.expect("answers");
    assert!(environment.list.seen() >= epoch && epoch > Epoch::NONE);
}

#[tokio::test]
async fn listing_and_housekeeping_need_a_store_and_no_regeneration() {
    let folder = tempfile::tempdir().expect("is made");
    let process = TestProcess::new(environment(&folder).await);
    for key in ["a", "b", "c"] {
        process.visit(key).await;
    }
    // The capacity of this process is smaller than one page. The first process has no limit: otherwise it would
    // remove pages after its sync, before the test has looked at them.
    let environment = environment_with_capacity(&folder, Some(1000)).await;
    let memory = Memory::new(1 << 20, 1 << 16, Observer::default());
    let listing = Listing::new(
        environment.clone(),
        Arc::new(memory),
        Arc::clone(&process.sync),
        Arc::new(MissedInvalidations::new()),
    );
    let listed = async || {
        let page = listing.entries(&EntryFilter::new()).await.expect("is read");
        let keys = page.entries.into_iter();
        keys.map(|entry| (entry.key, entry.state))
            .collect::<Vec<_>>()
    };
    let fresh = |key: &str| (key.to_owned(), EntryState::Fresh);
    assert_eq!(listed().await, ["a", "b", "c"].map(fresh));
    let housekeeping = Housekeeping::new(environment.clone());
    housekeeping.run(environment.now()).await;
    assert_eq!(listed().await, []);
}
