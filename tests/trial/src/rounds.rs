//! The protocol's promises from several nodes at once: each round is done from all nodes at the same
//! time.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, Response, StatusCode},
    routing::post,
};
use clap::Args;
use http_body_util::BodyExt;
use perennial::{
    DAY, Perennial, Refresh,
    locks::{LockKind, LockName},
    testing::internal::{LeaseRow, NewEntry, Store},
};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::{Result, record::now, watch::store};

/// A lease that expires before the next step.
const SHORT: Duration = Duration::from_millis(40);
const LEASE: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct Options {
    /// The URLs of the nodes; one URL stands for several connections to one server.
    #[arg(required = true)]
    urls: Vec<String>,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 1500)]
    rounds: usize,
}

/// A node: a site with memory and connections of its own.
struct Node {
    site: Perennial,
    store: Box<dyn Store>,
}

pub(crate) async fn run(options: Options) -> Result<bool> {
    let mut urls = options.urls;
    if let [url] = &*urls {
        urls = vec![url.clone(); 3];
    }
    let mut nodes = Vec::new();
    for url in &urls {
        let site = Perennial::open(url).await?;
        let store = store(&site).await?;
        nodes.push(Arc::new(Node { site, store }));
    }
    let rounds = options.rounds;
    let mut sound = true;
    let mut tell = |what: &str, outcome: Result<Vec<String>>| -> Result {
        let breaches = outcome?;
        println!("{what}: {rounds} rounds, {} breaches", breaches.len());
        for breach in breaches.iter().take(3) {
            println!("  {breach}");
        }
        sound &= breaches.is_empty();
        Ok(())
    };
    tell(
        "one generation of a page that all nodes ask for",
        herd(&nodes, rounds).await,
    )?;
    tell(
        "one holder of a lock that all nodes try",
        tries(&nodes, rounds).await,
    )?;
    tell(
        "no publish by a holder that was overtaken on another node",
        overtaken(&nodes, rounds).await,
    )?;
    tell(
        "a publish and a release on another node than the try",
        spread(&nodes, rounds).await,
    )?;
    tell(
        "one run of an idempotent request that is sent to all nodes",
        idempotent(&nodes, rounds).await,
    )?;
    tell(
        "each invalidation known on all nodes, in order",
        invalidations(&nodes, rounds).await,
    )?;
    Ok(sound)
}

/// Names are new in each run.
fn name(what: &str) -> String {
    format!("{what}/{}/", now())
}

async fn herd(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("herd"), Vec::new());
    let policy = Refresh::every(DAY);
    for round in 0..rounds {
        let (key, counted) = (format!("{name}{round}"), Arc::new(AtomicUsize::new(0)));
        let mut visits = JoinSet::new();
        for node in nodes.iter().cycle().take(2 * nodes.len()) {
            let (node, key, runs) = (Arc::clone(node), key.clone(), Arc::clone(&counted));
            visits.spawn(async move {
                let generate = || async move {
                    Ok::<_, Infallible>(format!("run {}", runs.fetch_add(1, SeqCst)))
                };
                node.site
                    .content(&key, &policy, generate)
                    .await
                    .map(|it| it.to_string())
            });
        }
        let mut contents = HashSet::new();
        for content in visits.join_all().await {
            contents.insert(content?);
        }
        let runs = counted.load(SeqCst);
        if runs != 1 || contents.len() != 1 {
            breaches.push(format!("{key}: {runs} runs, {contents:?}"));
        }
    }
    Ok(breaches)
}

async fn tries(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches, mut last) = (name("tries"), Vec::new(), 0);
    let lock = LockName::of(LockKind::Page, name.as_str());
    for round in 0..rounds {
        let mut tries = JoinSet::new();
        for (index, node) in nodes.iter().cycle().take(2 * nodes.len()).enumerate() {
            let (node, lock, owner) = (Arc::clone(node), lock.clone(), format!("{round}-{index}"));
            tries.spawn(async move {
                let fence = node.store.try_lock(&lock, &owner, LEASE, None).await;
                fence.map(|fence| {
                    fence.map(|fence| LeaseRow {
                        name: lock,
                        owner,
                        fence,
                    })
                })
            });
        }
        let mut won = Vec::new();
        for tried in tries.join_all().await {
            won.extend(tried?);
        }
        let [lease] = &*won else {
            breaches.push(format!("round {round}: {} holders", won.len()));
            continue;
        };
        if lease.fence <= last {
            breaches.push(format!("round {round}: fence {} after {last}", lease.fence));
        }
        last = lease.fence;
        if !nodes[round % nodes.len()]
            .store
            .release(lease, Duration::ZERO)
            .await?
        {
            breaches.push(format!("round {round}: the release was refused"));
        }
    }
    Ok(breaches)
}

async fn try_lock(node: &Node, name: &LockName, owner: &str, length: Duration) -> Result<LeaseRow> {
    loop {
        let fence = node.store.try_lock(name, owner, length, None).await?;
        if let Some(fence) = fence {
            let (name, owner) = (name.clone(), owner.to_owned());
            return Ok(LeaseRow { name, owner, fence });
        }
        tokio::time::sleep(SHORT / 8).await;
    }
}

async fn publish(node: &Node, lease: &LeaseRow, text: &str) -> Result<bool> {
    let content = Response::new(text.to_owned().into());
    let entry = NewEntry {
        content: &content,
        metadata: "epoch=0",
        history: "",
        retention: DAY,
    };
    node.store.publish(lease, &entry).await
}

async fn overtaken(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("overtaken"), Vec::new());
    let nodes_of = |round: usize| {
        let first = &nodes[round % nodes.len()];
        (first, &nodes[(round + 1) % nodes.len()])
    };
    for round in 0..rounds {
        let (first, second) = nodes_of(round);
        let lock = LockName::of(LockKind::Page, format!("{name}{round}"));
        let old = try_lock(first, &lock, "old", SHORT).await?;
        let new = try_lock(second, &lock, "new", LEASE).await?;
        if publish(first, &old, "old").await? {
            breaches.push(format!(
                "round {round}: the overtaken holder was told \"done\""
            ));
        }
        if !publish(second, &new, "new").await? {
            breaches.push(format!("round {round}: the holder was refused"));
        }
        let entry = second.store.probe(&lock, 0).await?.entry;
        if entry.is_none_or(|entry| entry.content.body() != "new") {
            breaches.push(format!("round {round}: the old content is stored"));
        }
        second.store.release(&new, Duration::ZERO).await?;
    }
    Ok(breaches)
}

async fn spread(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("spread"), Vec::new());
    for round in 0..rounds {
        let (here, there) = (
            &nodes[round % nodes.len()],
            &nodes[(round + 1) % nodes.len()],
        );
        let lock = LockName::of(LockKind::Page, format!("{name}{round}"));
        let lease = try_lock(here, &lock, "one", LEASE).await?;
        if !publish(there, &lease, "content").await? {
            breaches.push(format!("round {round}: the publish was refused"));
        }
        if !there.store.release(&lease, Duration::ZERO).await? {
            breaches.push(format!("round {round}: the release was refused"));
        }
    }
    Ok(breaches)
}

async fn idempotent(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("paid"), Vec::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let pay = async |State(runs): State<Arc<AtomicUsize>>| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        format!("payment {}", runs.fetch_add(1, SeqCst))
    };
    let app = |node: &Arc<Node>| {
        Router::new()
            .route("/pay", post(pay).layer(node.site.locks().idempotency()))
            .with_state(Arc::clone(&runs))
    };
    let apps: Vec<Router> = nodes.iter().map(app).collect();
    for round in 0..rounds {
        let mut answers = HashMap::<_, usize>::new();
        let mut requests = JoinSet::new();
        for app in apps.iter().cycle().take(2 * apps.len()) {
            let (app, key) = (app.clone(), format!("\"{name}{round}\""));
            requests.spawn(async move { send(app, &key).await });
        }
        for answer in requests.join_all().await {
            *answers.entry(answer?).or_default() += 1;
        }
        // Once more, when all is done.
        let key = format!("\"{name}{round}\"");
        let again = send(apps[round % apps.len()].clone(), &key).await?;
        answers.retain(|(status, _), _| *status != StatusCode::CONFLICT);
        if runs.load(SeqCst) != round + 1 || answers.len() != 1 || !answers.contains_key(&again) {
            breaches.push(format!(
                "round {round}: {} runs in all, {answers:?}, and later {again:?}",
                runs.load(SeqCst)
            ));
            runs.store(round + 1, SeqCst);
        }
    }
    Ok(breaches)
}

async fn send(app: Router, key: &str) -> Result<(StatusCode, String)> {
    let request = Request::post("/pay").header("idempotency-key", key);
    let response = app.oneshot(request.body(Body::empty())?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

async fn invalidations(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let name = name("tag:rounds");
    let known = nodes[0]
        .store
        .probe(&LockName::from("none"), 0)
        .await?
        .epoch;
    // The reader of each node continues after the latest epoch of its last answer.
    let writes = Arc::new(AtomicUsize::new(0));
    let mut readers = JoinSet::new();
    for node in nodes {
        let (node, name, writes) = (Arc::clone(node), name.clone(), Arc::clone(&writes));
        readers.spawn(async move {
            let (mut since, mut seen) = (known, HashMap::new());
            loop {
                let all = writes.load(SeqCst) == rounds;
                let names = node.store.invalidated(since, 100).await?;
                if names.is_empty() && all {
                    return Ok::<_, perennial::testing::internal::BoxError>(seen);
                }
                for (invalidated, epoch) in names {
                    since = epoch;
                    if invalidated.starts_with(&name) {
                        seen.insert(invalidated, epoch);
                    }
                }
            }
        });
    }
    let mut writers = JoinSet::new();
    for (index, node) in nodes.iter().cycle().take(2 * nodes.len()).enumerate() {
        let (node, name, writes) = (Arc::clone(node), name.clone(), Arc::clone(&writes));
        let step = 2 * nodes.len();
        writers.spawn(async move {
            let mut told = Vec::new();
            for round in (index..rounds).step_by(step) {
                let name = format!("{name}{round}");
                // A conflict of two nodes is an error, and the step may be repeated.
                let epoch = loop {
                    if let Ok(epoch) = node.store.invalidate(&name).await {
                        break epoch;
                    }
                };
                told.push((name, epoch));
                writes.fetch_add(1, SeqCst);
            }
            told
        });
    }
    let told: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    let mut breaches = Vec::new();
    let epochs: HashSet<_> = told.iter().map(|(_, epoch)| epoch).collect();
    if epochs.len() != told.len() {
        breaches.push(format!(
            "{} epochs of {} invalidations",
            epochs.len(),
            told.len()
        ));
    }
    for seen in readers.join_all().await {
        let seen = seen?;
        for (name, epoch) in &told {
            if seen.get(name) != Some(epoch) {
                breaches.push(format!(
                    "{name}: epoch {epoch}, and a reader saw {:?}",
                    seen.get(name)
                ));
            }
        }
    }
    Ok(breaches)
}
