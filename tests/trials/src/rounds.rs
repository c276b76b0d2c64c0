//! The protocol's promises from several nodes at once: each round is done from all nodes at the same
//! time.

mod locks;
mod sites;

use std::sync::Arc;

use clap::Args;
use perennial::Perennial;
use perennial_store::Backend;

use crate::{Result, record::now, watch::store};

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
    store: Box<dyn Backend>,
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
        sites::herd(&nodes, rounds).await,
    )?;
    tell(
        "one holder of a lock that all nodes try",
        locks::tries(&nodes, rounds).await,
    )?;
    tell(
        "no publish by a holder that was overtaken on another node",
        locks::overtaken(&nodes, rounds).await,
    )?;
    tell(
        "a publish and a release on another node than the try",
        locks::spread(&nodes, rounds).await,
    )?;
    tell(
        "one run of an idempotent request that is sent to all nodes",
        sites::idempotent(&nodes, rounds).await,
    )?;
    tell(
        "each invalidation known on all nodes, in order",
        sites::invalidations(&nodes, rounds).await,
    )?;
    Ok(sound)
}

/// Names are new in each run.
fn name(what: &str) -> String {
    format!("{what}/{}/", now())
}
