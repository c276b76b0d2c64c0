//! Pages, requests and invalidations, by sites.

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
    http::{Request, StatusCode},
    routing::post,
};
use http_body_util::BodyExt;
use perennial::DAY;
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_store::{Fence, Invalidate, Invalidated, Probe, error::BoxError};
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::{Node, name};
use crate::Result;

pub(super) async fn herd(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("herd"), Vec::new());
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
                    .content(&key, DAY, generate)
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

pub(super) async fn idempotent(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches) = (name("paid"), Vec::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let pay = async |State(runs): State<Arc<AtomicUsize>>| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        format!("payment {}", runs.fetch_add(1, SeqCst))
    };
    let app = |node: &Arc<Node>| {
        let once = IdempotencyLayer::new(&node.site.locks(), |_| Some(Scope::public()));
        Router::new()
            .route("/pay", post(pay).layer(once))
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

pub(super) async fn invalidations(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let name = name("tag:rounds");
    let known = nodes[0]
        .store
        .ask(Probe::new("none", Fence::NONE))
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
                let sync = Invalidated::new("", since, 100, Vec::new());
                let names = node.store.ask(sync).await?.names;
                if names.is_empty() && all {
                    return Ok::<_, BoxError>(seen);
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
        let operation = 2 * nodes.len();
        writers.spawn(async move {
            let mut told = Vec::new();
            for round in (index..rounds).step_by(operation) {
                let name = format!("{name}{round}");
                // A conflict of two nodes is an error, and the operation may be repeated.
                let epoch = loop {
                    if let Ok(epoch) = node.store.ask(Invalidate::new(vec![name.clone()])).await {
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
