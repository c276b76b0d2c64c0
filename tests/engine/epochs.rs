//! Content is never served as newer than the data that its generator may have read; in virtual
//! time, and with real threads for races.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{Builder, Perennial, Refresh, event::Epoch};
use perennial_store::{Invalidate, PruneInvalidations};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::other_processes::Counted;
use perennial_testkit::{
    Crowd, Folder, HANG, Origin, get,
    hooked::{Hook, Hooked, When},
    until,
    virtual_time::{Shared, here},
};

const LONG: Duration = Duration::from_secs(3600);

/// Returns content that is this number.
async fn visit(site: &Perennial, number: &Arc<AtomicUsize>) -> String {
    let number = Arc::clone(number);
    let read = async move || Ok::<_, Infallible>(number.load(SeqCst).to_string());
    let content = site.content("side/a", Refresh::every(LONG), read).await;
    content.expect("is there").text().into_owned()
}

/// A site whose store calls a hook.
fn hooked(shared: &Shared, builder: Builder, hook: Hook) -> Perennial {
    let store = shared.store();
    let store = Hooked { store, hook };
    builder.with_store(Box::new(store)).expect("opens")
}

/// Counts the operations with one name, and delays them while the switch is closed.
#[derive(Clone)]
struct Gate(Arc<(watch::Sender<bool>, AtomicUsize)>);

impl Gate {
    fn new() -> Self {
        Self(Arc::new((watch::Sender::new(false), AtomicUsize::new(0))))
    }

    fn hook(&self, operation: &'static str, side: When) -> Hook {
        let gate = self.clone();
        Arc::new(move |called, on| {
            let gate = gate.clone();
            Box::pin(async move {
                if called == operation && on == side {
                    gate.0.1.fetch_add(1, SeqCst);
                    let opened = gate.0.0.subscribe().wait_for(|held| !held).await.is_ok();
                    assert!(opened, "the sender is a field of ours");
                }
            })
        })
    }

    fn hold(&self, held: bool) {
        self.0.0.send_replace(held);
    }

    fn reached(&self) -> usize {
        self.0.1.load(SeqCst)
    }
}

/// Another process prunes between two lists that this one reads.
#[tokio::test(start_paused = true)]
async fn names_that_are_pruned_while_a_process_catches_up_are_not_lost() {
    let shared = Shared::new();
    for before in ["first", "second", "third"] {
        let (pruning, lists) = (shared.clone(), Arc::new(AtomicUsize::new(0)));
        let at = ["first", "second", "third"].map(|it| it == before);
        let hook: Hook = Arc::new(move |called, side| {
            let (pruning, lists) = (pruning.clone(), Arc::clone(&lists));
            Box::pin(async move {
                if (called, side) != ("sync-latest", When::Before) {
                    return;
                }
                if at.get(lists.fetch_add(1, SeqCst)) == Some(&true) {
                    let mut after = None;
                    loop {
                        let prune = PruneInvalidations::new(Epoch::MAX, Duration::ZERO, after);
                        after = pruning.store().ask(prune).await.expect("answers");
                        if after.is_none() {
                            break;
                        }
                    }
                }
            })
        });
        let site = hooked(&shared, Perennial::builder(), hook);
        let number = Arc::new(AtomicUsize::new(1));
        site.purge("side/a").await.expect("is done");
        assert_eq!(visit(&site, &number).await, "1");
        let other = shared.site();
        for names in 0..60 {
            // The process does not read all of these names by one statement, and this invalidation
            // comes too late to be read by the first one.
            if names == 40 {
                other.invalidate("side/a").await.expect("is done");
            }
            let names = (0..500).map(|name| format!("tag:{before}-{names}-{name}"));
            let invalidate = Invalidate::new(names.collect());
            shared.store().ask(invalidate).await.expect("is done");
        }
        number.store(2, SeqCst);
        // Until the names are old enough.
        sleep(Duration::from_secs(60)).await;
        until("the new content is there", async || {
            sleep(Duration::from_secs(1)).await;
            visit(&site, &number).await == "2"
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_question_from_before_a_pause_is_not_enough() {
    let shared = Shared::new();
    let gate = Gate::new();
    let builder = Perennial::builder()
        .statement_timeout(HANG)
        .database_patience(HANG);
    let site = hooked(&shared, builder, gate.hook("sync", When::After));
    let other = shared.site();
    let number = Arc::new(AtomicUsize::new(1));
    assert_eq!(visit(&site, &number).await, "1");
    // A sync is under way whose answer is from before the purge and arrives after it.
    sleep(Duration::from_millis(1100)).await;
    gate.hold(true);
    let asked = gate.reached();
    assert_eq!(visit(&site, &number).await, "1");
    until("it has been asked", async || gate.reached() == asked + 1).await;
    number.store(2, SeqCst);
    other.purge("side/a").await.expect("is done");
    // No request comes while the process stands still.
    sleep(Duration::from_millis(1500)).await;
    let late = tokio::spawn(async move { visit(&site, &number).await });
    sleep(Duration::from_millis(50)).await;
    gate.hold(false);
    assert_eq!(late.await.expect("no panic"), "2");
}

/// The answer of a sync is as old as its question. Visitors may wait for answers here, and one comes every
/// 50 ms.
#[tokio::test(start_paused = true)]
async fn purge_is_known_in_time_where_the_answers_of_the_database_are_slow() {
    for answers_take in [0, 400, 900, 1200].map(Duration::from_millis) {
        for purged_after in (4000..6000).step_by(200).map(Duration::from_millis) {
            let shared = Shared::new();
            let hook: Hook = Arc::new(move |operation, when| match (operation, when) {
                ("sync", When::After) => Box::pin(sleep(answers_take)),
                _ => Box::pin(ready(())),
            });
            let builder = Perennial::builder().database_patience(Duration::from_secs(3));
            let site = hooked(&shared, builder, hook);
            let other = shared.site();
            let number = Arc::new(AtomicUsize::new(1));
            let mut visits = JoinSet::new();
            let mut visitors_come_for = async |time: Duration| {
                for _ in 0..time.as_millis() / 50 {
                    let (site, number, asked) = (site.clone(), number.clone(), Instant::now());
                    visits.spawn(async move { (asked, visit(&site, &number).await) });
                    sleep(Duration::from_millis(50)).await;
                }
            };
            visitors_come_for(purged_after).await;
            number.store(2, SeqCst);
            other.purge("side/a").await.expect("is done");
            let known = Instant::now() + Duration::from_millis(1250);
            visitors_come_for(Duration::from_secs(4)).await;
            for (asked, shown) in visits.join_all().await {
                assert!(
                    asked < known || shown == "2",
                    "{answers_take:?} {purged_after:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_permit_a_stale_page_costs_no_statement() {
    let shared = Shared::new();
    let statements = Counted::new(&shared);
    let builder = Perennial::builder().max_regenerations(1);
    let site = builder.with_store(Box::new(statements.clone()));
    let site = site.expect("opens");
    let origin = Origin::default();
    let layer = site.layer(Refresh::every(Duration::ZERO).in_background());
    let address = here(origin.router().layer(layer));
    let paths: Vec<_> = (0..20).map(|page| format!("/{page}")).collect();
    for path in &paths {
        get(address, path).await;
    }
    site.locks().inspect("none").await.expect("answers");
    let generated = origin.begun();
    origin.hold();
    Crowd::visit(1, &[address], "/0").rest().await;
    until("the only permit is taken", async || {
        origin.begun() > generated
    })
    .await;
    statements.take();
    // After it has asked about a key, a process waits before it asks about the same key again. The
    // requests go on for longer than that.
    for _ in 0..25 {
        for path in &paths {
            get(address, path).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let mut asked = statements.take();
    asked.retain(|operation, _| !["sync", "extend"].contains(operation));
    assert_eq!(asked, BTreeMap::new());
    origin.let_go();
}

#[test]
fn sync_on_a_stalled_runtime_blocks_no_visitor() {
    let folder = Folder::new();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (idle, driven) = (runtime(), runtime());
    let site = driven.block_on(async {
        let builder = Perennial::builder().statement_timeout(Duration::from_secs(2));
        builder.open(&folder.url()).await.expect("opens")
    });
    let number = Arc::default();
    {
        let _entered = idle.enter();
        let mut asked = Box::pin(visit(&site, &number));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(asked.as_mut().poll(&mut context).is_pending());
    }
    // The sync that this request has begun is now a task of the idle runtime, where it never gets
    // an answer.
    let answer = driven.block_on(async {
        let policy = Refresh::every(LONG);
        let generate = || async { Ok::<_, std::io::Error>("b") };
        let content = site.content("side/b", &policy, generate);
        tokio::time::timeout(HANG, content).await
    });
    let answer = answer.expect("does not hang").expect("is generated");
    assert_eq!(answer.text(), "b");
}

/// Processes of a new revision whose revision cannot be stored, as the database refuses writes or
/// another transaction holds the counter, serve what is stored, at once.
#[tokio::test(start_paused = true)]
async fn a_revision_that_cannot_be_stored_keeps_no_stored_page_back() {
    for hangs in [false, true] {
        let database = perennial_testing::Database::new();
        let gate = Gate::new();
        let open = |revision| {
            let store = Hooked {
                store: Box::new(database.clone()),
                hook: gate.hook("invalidate", When::Before),
            };
            let builder = Perennial::builder().revision(revision);
            builder.with_store(Box::new(store)).expect("opens")
        };
        let old = open("old");
        let origin = Origin::default();
        let app = |site: &Perennial| {
            let layer = site.layer(Refresh::every(LONG));
            here(origin.router().layer(layer))
        };
        let address = app(&old);
        for path in ["/1", "/2"] {
            get(address, path).await;
        }
        if hangs {
            gate.hold(true);
        } else {
            database.refuse_writes();
        }
        let new = open("new");
        let address = app(&new);
        for path in ["/1", "/2"] {
            let begun = Instant::now();
            let reply = get(address, path).await;
            assert_eq!(reply.status, 200);
            // The request waits for the first write to the database, no longer than the site's
            // patience, and then for the soft timeout of the regeneration.
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{hangs}: {:?}",
                begun.elapsed()
            );
        }
        if !hangs {
            assert_eq!(origin.begun(), 2, "what is stored is served");
        }
        gate.hold(false);
        database.recover();
        sleep(Duration::from_secs(10)).await;
        // The revision is stored now, and each page is generated once by the new code.
        let before = origin.begun();
        until("both are new", async || {
            let mut fresh = true;
            for path in ["/1", "/2"] {
                let reply = get(address, path).await;
                let said = reply.header("cache-status").to_owned();
                fresh &= said.contains("hit; ttl=") && !said.contains("ttl=-");
            }
            sleep(Duration::from_secs(1)).await;
            fresh
        })
        .await;
        assert!(origin.begun() <= before + 2, "{hangs}");
        let another = open("new");
        let address = app(&another);
        let reply = get(address, "/1").await;
        let said = reply.header("cache-status");
        assert!(said.contains("hit") && !said.contains("ttl=-"), "{said}");
    }
}
