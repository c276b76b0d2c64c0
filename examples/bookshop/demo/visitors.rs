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

use super::{Demo, KEY};

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

/// Begins the visits, which go on until the program ends.
pub(super) fn begin(demo: &Arc<Demo>) {
    for (number, perennial) in [(0, true), (1, true), (0, false), (1, false)] {
        let demo = Arc::clone(demo);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(BETWEEN);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                // Nobody visits a shop that is known to be closed, as behind a load balancer.
                if demo.shops.is_open(number) {
                    let demo = Arc::clone(&demo);
                    tokio::spawn(async move { visit(&demo, number, perennial).await });
                }
            }
        });
    }
}

/// Makes one visit, and records it.
pub(super) async fn visit(demo: &Demo, number: usize, perennial: bool) {
    let path = if perennial { KEY } else { "/own" };
    let since = Instant::now();
    let answer = request("GET", demo.shops.address(number), path).await;
    // A shop that was killed or frozen during the visit has its own row in the figures.
    let is_open = demo.shops.is_open(number);
    let answer = answer.ok().map(|(headers, text)| {
        let status = headers.get("cache-status").and_then(|it| it.to_str().ok());
        let is_stale = status.is_some_and(|it| it.contains("hit; ttl=-"));
        let waited = status.is_some_and(|it| it.contains("fwd="));
        (text, is_stale, waited)
    });
    if answer.is_some() || is_open {
        demo.figures
            .visited(number, perennial, since.elapsed(), answer);
    }
}
