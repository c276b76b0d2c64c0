//! Content is never served as newer than the data that its generator may have read; in virtual
//! time, and with real threads for races.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use perennial::{Builder, Perennial, Refresh};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::{
    databases::{Db, four_digits},
    hooked::{Hook, Hooked, Side},
    invalidation::{HEARD, Process},
    paused::{Shared, here},
    support::{Crowd, Folder, HANG, Origin, until},
    sync::generates_for_all,
};

const LONG: Duration = Duration::from_secs(3600);

on_database! {
    sqlite = crate::databases::Db::sqlite();
    more_invalidated_names_than_a_process_keeps_count_as_everything
}

/// The data of generators, with a switch that keeps the generators running.
#[derive(Clone, Default)]
struct Data(Arc<(AtomicUsize, AtomicUsize, watch::Sender<bool>)>);

impl Data {
    fn set(&self, value: usize) {
        self.0.0.store(value, SeqCst);
    }

    /// Reads the data at the call, waits until the switch is open, and returns what it has read.
    async fn read(self) -> Result<String, std::io::Error> {
        let value = self.0.0.load(SeqCst);
        self.0.1.fetch_add(1, SeqCst);
        let opened = self.0.2.subscribe().wait_for(|held| !held).await.is_ok();
        assert!(opened, "the sender is a field of ours");
        if value == usize::MAX {
            return Err(std::io::Error::other("there is no such record"));
        }
        Ok(value.to_string())
    }
}

const POLICY: Refresh = Refresh::every(LONG).cooldown(Duration::from_secs(3600));

/// The answer to a visitor under one of the keys; the error describes the failure.
async fn visit(site: &Perennial, data: &Data, key: &str) -> Result<String, String> {
    let data = data.clone();
    if !key.starts_with('/') {
        let content = site.content(key, &POLICY, move || data.read()).await;
        return Ok(content.map_err(|error| error.to_string())?.text().into());
    }
    let page = move || async move {
        let read = data.read().await;
        read.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    };
    let layer = site.layer(POLICY);
    let app = Router::new().route(key, axum::routing::get(page).layer(layer));
    let request = Request::get(key).body(Body::empty()).expect("a request");
    let response = app.oneshot(request).await.expect("is infallible");
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    let body = String::from_utf8(body.expect("is read").to_vec()).expect("text");
    match status {
        StatusCode::OK => Ok(body),
        _ => Err(format!("{status}: {body}")),
    }
}

type Visit = tokio::task::JoinHandle<Result<String, String>>;

fn spawned(site: &Perennial, data: &Data, key: &'static str) -> Visit {
    let (site, data) = (site.clone(), data.clone());
    tokio::spawn(async move { visit(&site, &data, key).await })
}

async fn more_invalidated_names_than_a_process_keeps_count_as_everything(db: Db) {
    let origin = Origin::default();
    let old = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(old.run("/p").await, 1);
    assert_eq!(old.run("/q").await, 2);
    let purging = Process::new(&db, &origin, |layer| layer).await;
    purging.site.invalidate("/other").await.expect("is done");
    const NUMBER: &str = "a.d + 10 * b.d + 100 * c.d + 1000 * d.d";
    let latest = async || {
        let latest = "SELECT max(epoch) FROM perennial_invalidation";
        db.int(latest).await.expect("is there")
    };
    let mut since = latest().await;
    for ten_thousand in 0..15 {
        // More names come before the purge than one statement reads, and more after it than a
        // process keeps.
        if ten_thousand == 2 {
            purging.site.purge("/q").await.expect("is done");
            since = latest().await;
        }
        let name = match db.url().starts_with("mysql") {
            true => format!("CONCAT('tag:{ten_thousand}-', {NUMBER})"),
            false => format!("'tag:{ten_thousand}-' || ({NUMBER})"),
        };
        let sql = format!(
            "INSERT INTO perennial_invalidation (name, epoch) SELECT {name}, {since} + {} + {NUMBER} FROM {}",
            1 + 10_000 * ten_thousand,
            four_digits()
        );
        assert_eq!(db.execute(&sql).await, 10_000);
    }
    // The process that slept meanwhile skips the older half of the names, and no purge.
    tokio::time::sleep(HEARD).await;
    generates_for_all(&old, &origin, "/q").await;
    // A process that starts does not know which invalidation applied to the page, so the page is
    // generated again and stored.
    let new = Process::new(&db, &origin, |layer| layer).await;
    until("the page is generated anew", async || {
        new.run("/p").await > 1
    })
    .await;
    let runs = origin.begun();
    let newest = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(newest.run("/p").await, new.run("/p").await);
    assert_eq!(origin.begun(), runs, "it found the page in the database");
}

/// A site whose store calls a hook.
fn hooked(shared: &Shared, builder: Builder, hook: Hook) -> Perennial {
    let store = shared.store();
    let store = Hooked { store, hook };
    builder.with_store(Box::new(store)).expect("opens")
}

/// Counts the steps with one name, and delays them while the switch is closed.
#[derive(Clone)]
struct Gate(Arc<(watch::Sender<bool>, AtomicUsize)>);

impl Gate {
    fn new() -> Self {
        Self(Arc::new((watch::Sender::new(false), AtomicUsize::new(0))))
    }

    fn hook(&self, step: &'static str, side: Side) -> Hook {
        let gate = self.clone();
        Arc::new(move |called, on| {
            let gate = gate.clone();
            Box::pin(async move {
                if called == step && on == side {
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

#[tokio::test(start_paused = true)]
async fn answer_to_a_question_from_before_a_pause_is_not_enough() {
    let shared = Shared::new();
    let gate = Gate::new();
    let builder = Perennial::builder()
        .statement_timeout(HANG)
        .database_patience(HANG);
    let site = hooked(&shared, builder, gate.hook("sync", Side::After));
    let other = shared.site();
    let data = Data::default();
    data.set(1);
    assert_eq!(visit(&site, &data, "side/a").await.as_deref(), Ok("1"));
    // A sync is under way whose answer is from before the purge and arrives after it.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    gate.hold(true);
    let asked = gate.reached();
    assert_eq!(visit(&site, &data, "side/a").await.as_deref(), Ok("1"));
    until("it has been asked", async || gate.reached() == asked + 1).await;
    data.set(2);
    other.purge("side/a").await.expect("is done");
    // No request comes while the process stands still.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let visit = spawned(&site, &data, "side/a");
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.hold(false);
    assert_eq!(visit.await.expect("no panic").as_deref(), Ok("2"));
}

#[tokio::test(start_paused = true)]
async fn without_a_permit_a_stale_page_costs_no_statement() {
    let shared = Shared::new();
    let statements = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&statements);
    let hook: Hook = Arc::new(move |step, side| {
        if side == Side::Before && step != "sync" && step != "extend" {
            counted.fetch_add(1, SeqCst);
        }
        Box::pin(std::future::ready(()))
    });
    let site = hooked(&shared, Perennial::builder().max_regenerations(1), hook);
    let origin = Origin::default();
    let layer = site.layer(Refresh::every(Duration::ZERO).in_background());
    let address = here(origin.router().layer(layer));
    let paths: Vec<_> = (0..20).map(|page| format!("/{page}")).collect();
    for path in &paths {
        crate::support::get(address, path).await;
    }
    site.locks().inspect("none").await.expect("answers");
    let generated = origin.begun();
    origin.hold();
    Crowd::visit(1, &[address], "/0").rest().await;
    until("the only permit is taken", async || {
        origin.begun() > generated
    })
    .await;
    let before = statements.load(SeqCst);
    // For longer than the pause between two looks at a key.
    for _ in 0..25 {
        for path in &paths {
            crate::support::get(address, path).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(statements.load(SeqCst), before);
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
    let data = Data::default();
    {
        let _entered = idle.enter();
        let mut asked = Box::pin(visit(&site, &data, "side/a"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(asked.as_mut().poll(&mut context).is_pending());
    }
    // The question is a task of the idle runtime now, and never answered there.
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
        let gate = Arc::new(tokio::sync::watch::Sender::new(false));
        let held = Arc::clone(&gate);
        let hook: Hook = Arc::new(move |step, side| {
            let mut gate = held.subscribe();
            let waits = step == "invalidate" && side == Side::Before;
            Box::pin(async move {
                if waits {
                    let _ = gate.wait_for(|held| !held).await;
                }
            })
        });
        let open = |revision| {
            let store = Hooked {
                store: Box::new(database.clone()),
                hook: Arc::clone(&hook),
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
            crate::support::get(address, path).await;
        }
        match hangs {
            true => drop(gate.send_replace(true)),
            false => database.refuse_writes(),
        }
        let new = open("new");
        let address = app(&new);
        for path in ["/1", "/2"] {
            let begun = tokio::time::Instant::now();
            let reply = crate::support::get(address, path).await;
            assert_eq!(reply.status, 200);
            // The patience for the first write, and the soft timeout of a regeneration.
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{hangs}: {:?}",
                begun.elapsed()
            );
        }
        if !hangs {
            assert_eq!(origin.begun(), 2, "what is stored is served");
        }
        gate.send_replace(false);
        database.recover();
        tokio::time::sleep(Duration::from_secs(10)).await;
        // The revision is stored now, and each page is generated once by the new code.
        let before = origin.begun();
        until("both are new", async || {
            let mut fresh = true;
            for path in ["/1", "/2"] {
                let reply = crate::support::get(address, path).await;
                let said = reply.header("cache-status").to_owned();
                fresh &= said.contains("hit; ttl=") && !said.contains("ttl=-");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            fresh
        })
        .await;
        assert!(origin.begun() <= before + 2, "{hangs}");
        let another = open("new");
        let address = app(&another);
        let reply = crate::support::get(address, "/1").await;
        let said = reply.header("cache-status");
        assert!(said.contains("hit") && !said.contains("ttl=-"), "{said}");
    }
}
