//! The number of statements of a request: sqlx logs each statement, and the test counts them by
//! process.
//!
//! Two sites with a pool and a memory of their own stand for two processes. Each runs inside a span
//! with its name. The test is alone in its program, as the counter sees all statements of the
//! program.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use perennial::{Perennial, Refresh};
use tokio::time::Instant;
use tracing::{
    Event, Instrument, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

#[derive(Clone, Default)]
struct Statements(Arc<Mutex<HashMap<String, Vec<String>>>>);

impl Statements {
    /// Returns the statements of a process since the last call, without the syncs.
    fn take(&self, process: &str) -> Vec<String> {
        self.0
            .lock()
            .expect("not poisoned")
            .remove(process)
            .unwrap_or_default()
    }
}

/// Finds a text field.
struct Text(&'static str, String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == self.0 {
            self.1 = format!("{value:?}");
        }
    }
}

struct Process(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Statements {
    fn on_new_span(
        &self,
        attributes: &span::Attributes<'_>,
        id: &span::Id,
        context: Context<'_, S>,
    ) {
        if attributes.metadata().name() == "process" {
            let mut name = Text("name", String::new());
            attributes.record(&mut name);
            let span = context.span(id).expect("is new");
            span.extensions_mut().insert(Process(name.1));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != "sqlx::query" {
            return;
        }
        let mut summary = Text("summary", String::new());
        event.record(&mut summary);
        // The first statements of a connection; the pool opens another connection when necessary.
        if summary.1.contains("PRAGMA") {
            return;
        }
        let process = context
            .event_scope(event)
            .into_iter()
            .flatten()
            .find_map(|span| {
                span.extensions()
                    .get::<Process>()
                    .map(|process| process.0.clone())
            });
        let process = process.unwrap_or_else(|| "nobody".to_owned());
        let process = match summary.1.contains("SELECT name, epoch") {
            true => format!("{process} syncs"),
            false => process,
        };
        self.0
            .lock()
            .expect("not poisoned")
            .entry(process)
            .or_default()
            .push(summary.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hit_costs_no_statement_refresh_three_and_another_process_one_each_recheck() {
    let statements = Statements::default();
    let subscriber = tracing_subscriber::registry().with(statements.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the only one");

    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    const INTERVAL: Duration = Duration::from_secs(5);
    let patient = || {
        let limit = Duration::from_secs(30);
        let builder = Perennial::builder().database_patience(limit);
        builder.statement_timeout(limit)
    };
    let policy = Refresh::every(INTERVAL)
        .lease(Duration::from_secs(600))
        .in_background();
    let runs = Arc::new(AtomicUsize::new(0));
    let held = tokio::sync::watch::Sender::new(false);

    let [a, b] = ["a", "b"].map(|name| (name, tracing::info_span!("process", name = %name)));
    let [a_site, b_site] = [
        patient()
            .open(&url)
            .instrument(a.1.clone())
            .await
            .expect("opens"),
        patient()
            .open(&url)
            .instrument(b.1.clone())
            .await
            .expect("opens"),
    ];
    let visit = async |process: &span::Span, site: &Perennial| {
        let (runs, held) = (Arc::clone(&runs), held.clone());
        let content = site.content("page", &policy, || async move {
            let run = runs.fetch_add(1, SeqCst) + 1;
            held.subscribe()
                .wait_for(|held| !held)
                .await
                .expect("lives");
            Ok::<_, std::io::Error>(Bytes::from(run.to_string()))
        });
        let content = content
            .instrument(process.clone())
            .await
            .expect("is served");
        content.text().parse::<usize>().expect("a run")
    };

    let watcher = sqlx::SqlitePool::connect(&url).await.expect("opens");
    let released = async || {
        let owned = sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM perennial_lock WHERE owner IS NOT NULL",
        );
        owned.fetch_one(&watcher).await.expect("counts") == 0
    };
    assert!(
        !statements.take("a").is_empty(),
        "opening takes statements: the counter counts nothing"
    );
    statements.take("b");

    // Cold: a generates, b finds the version.
    assert_eq!(visit(&a.1, &a_site).await, 1);
    until(released).await;
    assert_eq!(visit(&b.1, &b_site).await, 1);
    let (cold, found) = (statements.take("a"), statements.take("b"));
    let opened = Instant::now();
    assert!(cold.len() <= 4, "{cold:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");

    // Hits.
    for _ in 0..100 {
        visit(&a.1, &a_site).await;
        visit(&b.1, &b_site).await;
    }
    assert_eq!(
        (statements.take("a"), statements.take("b")),
        (vec![], vec![])
    );

    // Stale: a regenerates, and is held; 10,000 requests come to each.
    tokio::time::sleep(INTERVAL).await;
    held.send_replace(true);
    let start = Instant::now();
    assert_eq!(visit(&a.1, &a_site).await, 1);
    while runs.load(SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..10_000 {
        assert_eq!(visit(&a.1, &a_site).await, 1);
        assert_eq!(visit(&b.1, &b_site).await, 1);
    }
    // Some recheck intervals, so that there are statements to count.
    while start.elapsed() < Duration::from_millis(2500) {
        visit(&b.1, &b_site).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rechecks = start.elapsed().as_secs() as usize + 1;
    let others = statements.take("b");
    assert!(
        (2..=rechecks).contains(&others.len()),
        "{} in {rechecks}: {others:#?}",
        others.len()
    );

    held.send_replace(false);
    until(released).await;
    // A statement is logged a moment after the database has run the statement.
    let mut winner = Vec::new();
    until(async || {
        winner.extend(statements.take("a"));
        winner.len() >= 3
    })
    .await;
    // The process's own version needs no probe.
    assert_eq!(winner.len(), 3, "{winner:#?}");
    assert_eq!(runs.load(SeqCst), 2);

    let seconds = opened.elapsed().as_secs() as usize + 2;
    for process in ["a syncs", "b syncs"] {
        let syncs = statements.take(process).len();
        assert!((1..=seconds).contains(&syncs), "{syncs} in {seconds} s");
    }
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "never came about"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
