//! Locks and publishes, by the operations of the store.

use std::{sync::Arc, time::Duration};

use axum::http::Response;
use perennial::{
    DAY,
    locks::{LockKind, LockName},
};
use perennial_store::{Epoch, Fence, LeaseRow, NewEntry, Probe, Publish, Release, TryLock};
use tokio::task::JoinSet;

use super::{Node, name};
use crate::Result;

/// A lease that expires before the next operation.
const SHORT: Duration = Duration::from_millis(40);
const LEASE: Duration = Duration::from_secs(20);

pub(super) async fn tries(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
    let (name, mut breaches, mut last) = (name("tries"), Vec::new(), 0);
    let lock = LockName::of(LockKind::Page, name.as_str());
    for round in 0..rounds {
        let mut tries = JoinSet::new();
        for (index, node) in nodes.iter().cycle().take(2 * nodes.len()).enumerate() {
            let (node, lock, owner) = (Arc::clone(node), lock.clone(), format!("{round}-{index}"));
            tries.spawn(async move {
                let tried = node
                    .store
                    .ask(TryLock::new(&lock, &owner, LEASE, None))
                    .await;
                tried.map(|tried| {
                    tried.fence.map(|fence| LeaseRow {
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
        if lease.fence <= Fence(last) {
            breaches.push(format!("round {round}: fence {} after {last}", lease.fence));
        }
        last = lease.fence.0;
        let store = &nodes[round % nodes.len()].store;
        if !store.ask(Release::new(lease, Duration::ZERO)).await? {
            breaches.push(format!("round {round}: the release was refused"));
        }
    }
    Ok(breaches)
}

async fn try_lock(node: &Node, name: &LockName, owner: &str, length: Duration) -> Result<LeaseRow> {
    loop {
        let tried = node
            .store
            .ask(TryLock::new(name, owner, length, None))
            .await?;
        if let Some(fence) = tried.fence {
            let (name, owner) = (name.clone(), owner.to_owned());
            return Ok(LeaseRow { name, owner, fence });
        }
        tokio::time::sleep(SHORT / 8).await;
    }
}

async fn publish(node: &Node, lease: &LeaseRow, text: &str) -> Result<bool> {
    let content = Response::new(text.to_owned().into());
    let entry = NewEntry {
        content,
        renews: None,
        epoch: Epoch::NONE,
        interval: Duration::ZERO,
        metadata: "{}".to_owned(),
        history: String::new(),
        retention: DAY,
        lasting: true,
    };
    node.store.ask(Publish::new(lease, entry)).await
}

pub(super) async fn overtaken(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
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
        let entry = second
            .store
            .ask(Probe::new(&lock, Fence::NONE))
            .await?
            .entry;
        if entry.is_none_or(|entry| entry.content.body() != "new") {
            breaches.push(format!("round {round}: the old content is stored"));
        }
        second.store.ask(Release::new(&new, Duration::ZERO)).await?;
    }
    Ok(breaches)
}

pub(super) async fn spread(nodes: &[Arc<Node>], rounds: usize) -> Result<Vec<String>> {
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
        if !there
            .store
            .ask(Release::new(&lease, Duration::ZERO))
            .await?
        {
            breaches.push(format!("round {round}: the release was refused"));
        }
    }
    Ok(breaches)
}
