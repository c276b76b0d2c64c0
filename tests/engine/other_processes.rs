//! Pages that another process regenerates: the statements of the processes that serve them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, extract::Request};
use perennial::{DAY, Perennial, Refresh};
use perennial_store::{Backend, Call, CallFuture};
use tokio::{task::JoinSet, time::Instant};

use perennial_testkit::{
    get,
    virtual_time::{Shared, here},
};

/// The time of the generator.
const GENERATOR: Duration = Duration::from_secs(8);
const PAGES: usize = 100;

/// The database as one process sees it, with the number of statements of each name.
#[derive(Clone)]
pub(crate) struct Counted {
    shared: Shared,
    counts: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// No statement of this process arrives any more.
    is_lost: Arc<AtomicBool>,
}

impl Backend for Counted {
    fn call(&self, call: Call) -> CallFuture<'_> {
        *self.counts().entry(call.name()).or_default() += 1;
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if self.is_lost.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            self.shared.call(call).await
        })
    }
}

impl Counted {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            shared: shared.clone(),
            counts: Arc::default(),
            is_lost: Arc::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.counts())
    }
}

struct Process {
    _site: Perennial,
    statements: Counted,
    address: &'static Router,
}

fn process(shared: &Shared, policy: Refresh) -> Process {
    let statements = Counted::new(shared);
    let builder = Perennial::builder().max_regenerations(PAGES);
    let site = builder.with_store(Box::new(statements.clone()));
    let site = site.expect("opens");
    let begun = Instant::now();
    let page = move |request: Request| async move {
        let at = begun.elapsed().as_secs();
        tokio::time::sleep(GENERATOR).await;
        format!("{} of second {at}", request.uri())
    };
    let app = Router::new().fallback(page).layer(site.layer(policy));
    Process {
        _site: site,
        statements,
        address: here(app),
    }
}

/// Visits each page once.
async fn visit_all(address: &'static Router) -> Vec<String> {
    let mut visits = JoinSet::new();
    for page in 0..PAGES {
        visits.spawn(async move { get(address, &format!("/{page}")).await.text().to_owned() });
    }
    visits.join_all().await
}

/// Visits each page ten times a second, and returns the time until all pages are of this second or
/// later.
async fn visit_until(address: &'static Router, second: u64) -> Duration {
    let begun = Instant::now();
    let is_new = |body: &String| {
        let of = body.rsplit(' ').next().expect("a word").parse::<u64>();
        of.is_ok_and(|of| of >= second)
    };
    while !visit_all(address).await.iter().all(is_new) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn one_statement_a_second_tells_of_all_pages_that_another_process_regenerates() {
    let shared = Shared::new();
    let policy = Refresh::every(Duration::from_secs(60)).leader_wait(Duration::from_millis(50));
    let [first, second] = [(), ()].map(|()| process(&shared, policy.clone()));
    visit_all(first.address).await;
    visit_all(second.address).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    second.statements.take();
    first.statements.take();
    // The first process regenerates each page. The second one has to find the new versions.
    visit_all(first.address).await;
    let time = visit_until(second.address, 60).await;
    assert!(time >= GENERATOR - Duration::from_secs(1), "{time:?}");
    // The new version is served a little more than a second after it was published, at the latest.
    assert!(time <= GENERATOR + Duration::from_millis(1500), "{time:?}");
    let counts = second.statements.take();
    // One probe finds the lease, and one reads the new version.
    assert_eq!(counts["probe"], 2 * PAGES, "{counts:?}");
    let seconds = time.as_secs() as usize;
    assert!(
        (seconds - 1..=seconds + 2).contains(&counts["sync"]),
        "{counts:?}"
    );
    assert!(!counts.contains_key("publish"), "{counts:?}");
    let counts = first.statements.take();
    // The process also prunes, and counts the bytes of the store, each under a lock of its own.
    for (name, most) in [
        ("try-lock", PAGES + 2),
        ("publish", PAGES),
        ("release", PAGES + 2),
    ] {
        assert!((PAGES..=most).contains(&counts[name]), "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn visitors_of_many_first_versions_share_the_statement_that_tells_of_them() {
    let shared = Shared::new();
    let policy = Refresh::every(Duration::from_secs(60));
    let [first, second] = [(), ()].map(|()| process(&shared, policy.clone()));
    let generates = tokio::spawn(visit_all(first.address));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    visit_all(second.address).await;
    let time = begun.elapsed();
    assert!(time <= GENERATOR + Duration::from_millis(500), "{time:?}");
    let counts = second.statements.take();
    assert_eq!(counts["probe"], 2 * PAGES, "{counts:?}");
    // Each 20 to 500 ms.
    assert!((16..60).contains(&counts["sync"]), "{counts:?}");
    generates.await.expect("ends");
}

#[tokio::test(start_paused = true)]
async fn page_whose_holder_is_lost_is_taken_over_when_its_lease_ends() {
    let shared = Shared::new();
    let lease = Duration::from_secs(2);
    let policy = Refresh::every(Duration::from_secs(60)).lease_duration(lease);
    let policy = policy.leader_wait(Duration::from_millis(50));
    let [lost, second] = [(), ()].map(|()| process(&shared, policy.clone()));
    visit_all(lost.address).await;
    visit_all(second.address).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    visit_all(lost.address).await;
    lost.statements.is_lost.store(true, SeqCst);
    let time = visit_until(second.address, 60).await;
    assert!(
        time <= GENERATOR + lease + Duration::from_millis(1500),
        "{time:?}"
    );
}

/// Each process looks several times an hour whether to prune.
#[tokio::test(start_paused = true)]
async fn pages_are_pruned_once_an_hour_by_one_process() {
    let shared = Shared::new();
    let processes = [(), ()].map(|()| process(&shared, Refresh::every(10 * DAY)));
    for _ in 0..48 {
        for process in &processes {
            get(process.address, "/").await;
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
    }
    let counts = processes.map(|process| process.statements.take().remove("prune-entries"));
    // In each of three or four hours, one of the processes sends two statements: one examines the
    // page, and one finds the end of the list.
    let pruned: usize = counts.into_iter().flatten().sum();
    assert!((2 * 3..=2 * 4).contains(&pruned), "{pruned}");
}
