//! A page in each framework: a miss, a hit, 304, a bypass, and a regeneration.

use std::time::Duration;

use bytes::Bytes;
use frameworks::{best_sellers, poem_site, serve_by_hyper};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use perennial::{Perennial, Refresh};
use perennial_testing::Database;
use poem::Endpoint;

const POLICY: Refresh = Refresh::every(Duration::from_hours(1));
const PATH: &str = "/best-sellers";

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn how(&self) -> &str {
        let how = self.headers.get("cache-status").map(HeaderValue::to_str);
        how.and_then(Result::ok).unwrap_or_default()
    }
}

/// Asks for the page in the ways of the module's first line.
async fn check(site: &Perennial, ask: impl AsyncFn(&str, &[(&str, &str)]) -> Answer) {
    let first = ask(PATH, &[]).await;
    assert_eq!(first.how(), "perennial; fwd=miss; stored");
    let hit = ask(PATH, &[]).await;
    assert!(
        hit.how().starts_with("perennial; hit; ttl=35"),
        "{}",
        hit.how()
    );
    assert_eq!((hit.status, &hit.body), (StatusCode::OK, &first.body));
    // hyper adds an extension to such a request.
    let upgrade = [("connection", "upgrade"), ("upgrade", "h2c")];
    let offers = ask(PATH, &upgrade).await;
    assert!(
        offers.how().starts_with("perennial; hit"),
        "{}",
        offers.how()
    );
    let tag = hit.headers["etag"].to_str().expect("text");
    let same = ask(PATH, &[("if-none-match", tag)]).await;
    assert_eq!(
        (same.status, same.body.len()),
        (StatusCode::NOT_MODIFIED, 0)
    );
    let own = ask(PATH, &[("authorization", "Basic eDp5")]).await;
    assert_eq!(
        (&own.body[..], own.how()),
        (&b"yours"[..], "perennial; fwd=bypass; detail=bypass-if")
    );
    site.invalidate(PATH).await.expect("is invalidated");
    let again = ask(PATH, &[]).await;
    assert_eq!(
        (again.how(), &again.body),
        ("perennial; fwd=stale; stored", &first.body)
    );
}

fn site() -> Perennial {
    Database::new().open(Perennial::builder()).expect("opens")
}

#[tokio::test]
async fn hyper_and_tower_serve_a_stored_page() {
    let site = site();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("is free");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(serve_by_hyper(listener, best_sellers(&site, &POLICY)));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    check(&site, async |path, headers| {
        let mut request = Request::get(format!("http://{address}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).expect("a request");
        let (head, body) = client.request(request).await.expect("answers").into_parts();
        let body = body.collect().await.expect("is read").to_bytes();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    })
    .await;
}

#[tokio::test]
async fn poem_serves_a_stored_page() {
    let site = site();
    let pages = poem_site(best_sellers(&site, &POLICY));
    check(&site, async |path, headers| {
        let mut request = poem::Request::builder().uri_str(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = pages.get_response(request.finish()).await;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().into_bytes().await.expect("is read");
        Answer {
            status,
            headers,
            body,
        }
    })
    .await;
}
