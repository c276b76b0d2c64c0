//! The visitors: the same traffic to both shops, behind Perennial and behind their own caches.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use super::{
    Demo, KEY,
    figures::{Kind, Visit},
};

/// The time between two visitors of a shop, behind each cache.
const BETWEEN: Duration = Duration::from_millis(100);

/// The patience of a visitor.
const PATIENCE: Duration = Duration::from_secs(10);

static CLIENT: LazyLock<Client<HttpConnector, Body>> =
    LazyLock::new(|| Client::builder(TokioExecutor::new()).build_http());

/// Sends a request; the headers and the text of a successful answer.
pub(super) async fn request(
    method: &str,
    address: SocketAddr,
    path: &str,
) -> Result<(HeaderMap, String), Box<dyn Error + Send + Sync>> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .body(Body::empty())?;
    let exchange = async {
        let (head, body) = CLIENT.request(request).await?.into_parts();
        if !head.status.is_success() {
            return Err(format!("{path}: {}", head.status).into());
        }
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        Ok::<_, Box<dyn Error + Send + Sync>>((head.headers, text))
    };
    tokio::time::timeout(PATIENCE, exchange).await?
}

/// Begins the visits, which go on until the program ends: each visitor comes to one shop, and a
/// second one with the same request asks the shop's own cache.
pub(super) fn begin(demo: &Arc<Demo>) {
    for shop in 0..2 {
        let demo = Arc::clone(demo);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(BETWEEN);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                // Nobody visits a shop that is known to be closed, as behind a load balancer.
                if !demo.shops.is_open(shop) {
                    demo.figures.closed(shop);
                    continue;
                }
                for perennial in [true, false] {
                    let demo = Arc::clone(&demo);
                    tokio::spawn(async move { visit(&demo, shop, perennial).await });
                }
            }
        });
    }
}

/// Makes one visit, and records it.
pub(super) async fn visit(demo: &Demo, shop: usize, perennial: bool) {
    let path = if perennial { KEY } else { "/own" };
    let since = Instant::now();
    let answer = request("GET", demo.shops.address(shop), path).await;
    // A shop that was killed or frozen during the visit has its own row in the figures.
    if answer.is_err() && !demo.shops.is_open(shop) {
        return;
    }
    let (kind, text) = match answer {
        Ok((headers, text)) => {
            let status = headers.get("cache-status").and_then(|it| it.to_str().ok());
            let kind = match status.unwrap_or_default() {
                status if status.contains("fwd=") => Kind::Waited,
                status if status.contains("hit; ttl=-") => Kind::Stale,
                _ => Kind::Fresh,
            };
            (kind, text)
        }
        Err(_) => (Kind::Error, String::new()),
    };
    demo.figures.visited(&Visit {
        shop,
        perennial,
        took: since.elapsed(),
        kind,
        text,
    });
}
