//! A process of the site: pages whose content comes from the bank's counter, payments, and a job
//! that one process may do at a time.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Args;
use perennial::{
    DAY, Perennial, Refresh,
    event::{Event, Outcome},
    locks::Locks,
};
use perennial_idempotency::{IdempotencyLayer, Scope};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    Result,
    client::Client,
    history::{Fact, Micros},
    record::{Recorder, now},
};

/// The time of a generator.
const GENERATION: Duration = Duration::from_millis(300);

/// The interval of the pages that become stale.
const STALE: Duration = Duration::from_secs(2);

/// The default lease of a page, in microseconds.
const LEASE: Micros = 15_000_000;

/// The lease of the job.
const JOB: Duration = Duration::from_secs(3);

/// A process of the site, started by a trial.
#[derive(Args)]
pub(crate) struct Options {
    /// The URL of the database.
    #[arg(long)]
    database: String,
    /// The address of the bank.
    #[arg(long)]
    bank: SocketAddr,
    /// The address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// The name of the process in the record.
    #[arg(long)]
    name: String,
    /// The revision of the site's code.
    #[arg(long)]
    revision: String,
    /// The file of the record.
    #[arg(long)]
    record: PathBuf,
    /// Gives the old version at once also to the visitor that starts a regeneration.
    #[arg(long)]
    in_background: bool,
}

#[derive(Clone)]
struct Shop {
    client: Client,
    bank: SocketAddr,
    runs: Arc<Runs>,
}

/// The generators of this process that have begun, each until the event of its end.
#[derive(Default)]
struct Runs(Mutex<HashMap<String, VecDeque<Run>>>);

#[derive(Clone, Copy)]
struct Run {
    from: Micros,
    until: Option<Micros>,
    number: u64,
}

impl Runs {
    fn change<T>(&self, key: &str, change: impl FnOnce(&mut VecDeque<Run>) -> T) -> T {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(runs.entry(key.to_owned()).or_default())
    }
}

/// Notes the end of a run, also if the run is cancelled.
struct Running<'a>(&'a Runs, &'a str);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |runs| {
            let run = runs.iter_mut().find(|run| run.until.is_none());
            run.expect("has begun").until = Some(now());
        });
    }
}

pub(crate) async fn serve(options: Options) -> Result {
    let mut terminated = signal(SignalKind::terminate())?;
    let stops = async move { terminated.recv().await.unwrap_or_default() };
    let recorder = Recorder::to(&options.record)?;
    let site = Perennial::builder()
        .connect_lazily()
        .revision(&options.revision)
        .open(&options.database)
        .await?;
    let shop = Shop {
        client: Client::new(),
        bank: options.bank,
        runs: Arc::default(),
    };
    let every = |interval| {
        if options.in_background {
            Refresh::every(interval).in_background()
        } else {
            Refresh::every(interval)
        }
    };
    let pages = |policy: Refresh| get(page).layer(site.layer(&policy));
    let app = Router::new()
        .route("/warm/{n}", pages(every(DAY)))
        .route("/stale/{n}", pages(every(STALE)))
        .route("/cold/{n}", pages(every(DAY)))
        .route(
            "/pay/{payment}",
            post(pay).layer(IdempotencyLayer::new(&site.locks(), |_| {
                Some(Scope::public())
            })),
        )
        .with_state(shop.clone());

    tokio::spawn(note_regenerations(
        site.clone(),
        shop.runs,
        recorder.clone(),
        options.name.clone(),
    ));
    tokio::spawn(work(
        site.locks().lease_duration(JOB),
        recorder,
        options.name,
    ));
    let listener = TcpListener::bind(options.listen).await?;
    axum::serve(listener, app)
        .with_graceful_shutdown(stops)
        .await?;
    site.shutdown().await;
    Ok(())
}

async fn page(State(shop): State<Shop>, uri: axum::http::Uri) -> Response {
    let key = uri.path();
    let from = now();
    let run = Run {
        from,
        until: None,
        number: 0,
    };
    shop.runs.change(key, |runs| runs.push_back(run));
    let _running = Running(&shop.runs, key);
    let number = shop.client.get(shop.bank, "/number").await;
    let Some(number) = number.ok().and_then(|(_, body)| body.parse().ok()) else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    shop.runs.change(key, |runs| {
        let run = runs.iter_mut().find(|run| run.until.is_none());
        run.expect("has begun").number = number;
    });
    tokio::time::sleep(GENERATION).await;
    number.to_string().into_response()
}

async fn pay(State(shop): State<Shop>, Path(payment): Path<String>) -> Response {
    let charge = format!("/charge/{payment}");
    match shop.client.post(shop.bank, &charge, None).await {
        Ok((StatusCode::OK, body)) => body.into_response(),
        _ => StatusCode::BAD_GATEWAY.into_response(),
    }
}

async fn note_regenerations(site: Perennial, runs: Arc<Runs>, recorder: Recorder, process: String) {
    let mut events = site.subscribe();
    while let Some(event) = events.next().await {
        let ended = match event {
            Event::Regenerated(ended) => ended,
            Event::Missed { events: facts, .. } => {
                let process = process.clone();
                recorder.note(&Fact::Missed { process, facts });
                continue;
            }
            _ => continue,
        };
        let run = runs.change(&ended.key, VecDeque::pop_front);
        // Without a lease the process generates for its own visitors alone.
        let (Some(run), Some(perennial::locks::Fence(fence))) = (run, ended.fence) else {
            continue;
        };
        // A process that was stopped for longer than its lease learns only afterwards that it has
        // lost the lease, so such a regeneration is not recorded as a holder.
        if ended.outcome != Outcome::Overtaken {
            recorder.note(&Fact::Held {
                lock: format!("page {}", ended.key),
                fence,
                process: process.clone(),
                from: run.from,
                until: run.until.unwrap_or_else(now).min(run.from + LEASE),
            });
        }
        if matches!(ended.outcome, Outcome::Stored | Outcome::Renewed) {
            recorder.note(&Fact::Published {
                key: ended.key.to_string(),
                fence,
                number: run.number,
                process: process.clone(),
            });
        }
    }
}

/// Does the job again and again, under its lock.
async fn work(locks: Locks, recorder: Recorder, process: String) {
    loop {
        if let Ok(Some(lease)) = locks.try_lock("job").await {
            let (from, remaining) = (now(), lease.remaining());
            let length = Duration::from_millis(fastrand::u64(5..60));
            let done = lease.guard(tokio::time::sleep(length)).await.is_ok();
            // A lease that was lost was over some time before the process learned of it.
            if done {
                recorder.note(&Fact::Held {
                    lock: "job".to_owned(),
                    fence: lease.fence().0,
                    process: process.clone(),
                    from,
                    until: now().min(from + remaining.as_micros() as Micros),
                });
            }
            // Without an answer the lease expires.
            let _ = lease.release().await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..100))).await;
    }
}
