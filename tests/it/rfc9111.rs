//! Directives for shared caches, over the wire: targeted headers, dates, statuses, and the pages
//! that a change makes stale.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use axum::{
    Extension, Router,
    extract::Request,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::any,
};
use perennial::{Key, Refresh, RefreshAfter};

use crate::{
    databases::Db,
    support::{Folder, HANG, Origin, Reply, get, request, serve, until},
};

on_each_database! {
    successful_unsafe_request_makes_what_it_changed_stale_in_all_processes
}

const LONG: Duration = Duration::from_secs(3600);
const MINUTE: i64 = 60;

/// A site whose pages all have this head.
async fn site_with(folder: &Folder, head: &[(&str, &str)], policy: Refresh) -> SocketAddr {
    let mut headers = HeaderMap::new();
    for (name, value) in head {
        let name: axum::http::HeaderName = name.parse().expect("a name");
        headers.append(name, value.parse().expect("a value"));
    }
    let page = any(async move || (headers.clone(), "page"));
    let layer = folder.site().await.layer(policy);
    serve(Router::new().fallback_service(page.layer(layer))).await
}

/// Returns the page's remaining seconds of freshness in a second visitor's response; `None`: not
/// stored.
async fn fresh_for(address: SocketAddr) -> Option<i64> {
    get(address, "/").await;
    let reply = get(address, "/").await;
    let ttl = reply
        .header("cache-status")
        .strip_prefix("perennial; hit; ttl=")?;
    Some(ttl.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn targeted_field_decides_in_place_of_the_others_and_is_passed_on() {
    let honours = Refresh::from_headers(Duration::from_secs(600));
    let every = Refresh::every(Duration::from_secs(1200));
    let general = ("cache-control", "max-age=300");
    let cdn = "cdn-cache-control";
    // The head, and the page's seconds of freshness by the response's decision and by the policy's.
    for (head, honoured, otherwise) in [
        (vec![general], Some(300), Some(1200)),
        (vec![general, (cdn, "max-age=900")], Some(900), Some(1200)),
        (
            vec![("cache-control", "no-store"), (cdn, "max-age=900")],
            Some(900),
            None,
        ),
        (
            vec![("expires", "0"), (cdn, "max-age=900")],
            Some(900),
            Some(1200),
        ),
        (
            vec![general, (cdn, "max-age=\"900\"")],
            Some(300),
            Some(1200),
        ),
        (vec![general, (cdn, "public")], Some(600), Some(1200)),
        (vec![general, (cdn, "private")], None, None),
        (vec![general, (cdn, "no-store")], None, None),
        (
            vec![(cdn, "max-age=900"), ("age", "100, 200")],
            Some(800),
            Some(1200),
        ),
        (
            vec![(cdn, "max-age=900"), ("age", "old")],
            Some(900),
            Some(1200),
        ),
    ] {
        for (policy, expected) in [(honours, honoured), (every, otherwise)] {
            let folder = Folder::new();
            let address = site_with(&folder, &head, policy).await;
            let fresh = fresh_for(address).await;
            let is_expected = match (fresh, expected) {
                (Some(fresh), Some(expected)) => (expected - MINUTE..=expected).contains(&fresh),
                (fresh, expected) => fresh == expected,
            };
            assert!(is_expected, "{head:?}: {fresh:?}, not {expected:?}");
            let reply = get(address, "/").await;
            let sent = head.iter().find(|(name, _)| *name == cdn);
            assert_eq!(reply.header(cdn), sent.map_or("", |(_, value)| value));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn date_is_the_generation_time_and_age_the_time_since() {
    let folder = Folder::new();
    let address = site_with(&folder, &[], Refresh::every(LONG)).await;
    let date = |reply: &Reply| httpdate::parse_http_date(reply.header("date")).expect("a date");
    let first = get(address, "/").await;
    let made = date(&first);
    tokio::time::sleep(Duration::from_millis(3100)).await;
    let etag = [("if-none-match", first.header("etag"))];
    for reply in [
        get(address, "/").await,
        request(address, "GET", "/", &etag).await,
        request(address, "HEAD", "/", &[]).await,
    ] {
        assert!(date(&reply) <= made + Duration::from_secs(1), "{reply:?}");
        let age: u64 = reply.header("age").parse().expect("a number");
        assert!(age >= 3, "{reply:?}");
        // RFC 9111 §4.2.3: a cache takes the greater of the apparent age (the time since `Date`)
        // and `Age`. Here the two differ by less than a second.
        let apparent = SystemTime::now()
            .duration_since(date(&reply))
            .expect("is past");
        assert!(apparent.as_secs() >= age, "{reply:?}");
    }
    // Another process, by the age of the stored version.
    let other = site_with(&folder, &[], Refresh::every(LONG)).await;
    let reply = get(other, "/").await;
    let seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .expect("is later")
            .as_secs()
    };
    assert!(
        seconds(date(&reply)).abs_diff(seconds(made)) <= 2,
        "{reply:?}"
    );

    // The same for a page with an `Age` on arrival, and for a page beyond its interval.
    let before = httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(3000));
    for (head, past) in [(("date", &*before), 3000), (("age", "2147483648"), 1 << 31)] {
        let folder = Folder::new();
        let reply = get(site_with(&folder, &[head], Refresh::every(LONG)).await, "/").await;
        let age: u64 = reply.header("age").parse().expect("a number");
        assert!((past..past + 60).contains(&age), "{reply:?}");
        let apparent = SystemTime::now()
            .duration_since(date(&reply))
            .expect("is past");
        assert!(past > 3000 || apparent.as_secs() >= age, "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_response_is_regenerated_after_a_minute() {
    const MORE: &str = "/more";
    async fn answer(uri: Uri, status: StatusCode, honest: bool) -> Response {
        let head = match honest {
            true => [("cache-control", "max-age=900")],
            false => [("x", "y")],
        };
        match uri.path() {
            MORE => (
                status,
                Extension(RefreshAfter(Duration::from_secs(1800))),
                head,
            )
                .into_response(),
            _ => (status, head).into_response(),
        }
    }
    let every = Refresh::every(LONG);
    let honours = Refresh::from_headers(LONG);
    // The status; whether the response has `max-age=900`; the policy; the interval in seconds,
    // without and with `RefreshAfter`.
    for (status, honest, policy, interval, more) in [
        (404, false, every, 60, 1800),
        (405, false, every, 60, 1800),
        (410, false, every, 60, 1800),
        (414, false, every, 60, 1800),
        (404, true, every, 60, 1800),
        (404, false, honours, 60, 1800),
        (404, true, honours, 900, 1800),
        (404, false, Refresh::every(Duration::from_secs(7)), 7, 1800),
        (301, false, every, 3600, 1800),
        (200, false, every, 3600, 1800),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        let folder = Folder::new();
        let policy = policy.browser_cache(perennial::DAY);
        let layer = folder.site().await.layer(policy);
        let app = Router::new().fallback(async move |uri| answer(uri, status, honest).await);
        let address = serve(app.layer(layer)).await;
        for (path, expected) in [("/", interval), (MORE, more)] {
            get(address, path).await;
            let reply = get(address, path).await;
            let said = reply
                .header("cache-status")
                .strip_prefix("perennial; hit; ttl=");
            let ttl: i64 = said.expect("is stored").parse().expect("a number");
            assert!(
                (expected - 30..=expected).contains(&ttl),
                "{status} {path}: {ttl}"
            );
        }
    }
}

/// Pages, and a route that changes pages: its response has the status and the headers that the
/// request names.
fn writable(origin: &Origin) -> Router {
    async fn answer(origin: Origin, request: Request) -> Response {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        if method == Method::GET {
            return origin.run(&uri.to_string()).await.into_response();
        }
        let said = |name: &str| request.headers().get(name).cloned();
        let status = said("x-status").map_or(200, |it| {
            it.to_str().expect("text").parse().expect("a status")
        });
        let mut head = HeaderMap::new();
        for (name, value) in [
            ("location", said("x-location")),
            ("content-location", said("x-content-location")),
        ] {
            if let Some(value) = value {
                head.insert(name, value);
            }
        }
        (StatusCode::from_u16(status).expect("a status"), head).into_response()
    }
    let origin = origin.clone();
    Router::new().fallback(async move |request: Request| answer(origin.clone(), request).await)
}

async fn successful_unsafe_request_makes_what_it_changed_stale_in_all_processes(db: Db) {
    let origin = Origin::default();
    let policy = Refresh::every(LONG).soft_timeout(HANG);
    let language = axum::http::header::ACCEPT_LANGUAGE;
    let (site, other) = (db.site().await, db.site().await);
    let layer = site.layer(policy).invalidate_on_unsafe();
    let plain = serve(writable(&origin).layer(layer.clone())).await;
    let nested = Router::new().nest("/in", writable(&origin).layer(layer.clone()));
    let nested = serve(nested).await;
    let keyed = Key::new().query(["page"]).header(language);
    let keyed = serve(writable(&origin).layer(layer.key(keyed))).await;
    let elsewhere = serve(writable(&origin).layer(other.layer(policy))).await;
    let off = serve(writable(&origin).layer(site.layer(policy))).await;

    // The address of the request, its method, target and headers; the page that becomes stale, if
    // any.
    type Case<'a> = (
        SocketAddr,
        &'a str,
        &'a str,
        &'a [(&'a str, &'a str)],
        SocketAddr,
        &'a str,
        bool,
    );
    let cases: &[Case<'_>] = &[
        (plain, "POST", "/a", &[], plain, "/a", true),
        (plain, "PUT", "/b?y=1&x=2", &[], plain, "/b?x=2&y=1", true),
        (plain, "DELETE", "/c", &[], elsewhere, "/c", true),
        (plain, "M-SEARCH", "/d", &[], plain, "/d", true),
        (
            plain,
            "POST",
            "/e",
            &[("x-status", "303")],
            plain,
            "/e",
            true,
        ),
        (
            plain,
            "POST",
            "/f",
            &[("x-status", "404")],
            plain,
            "/f",
            false,
        ),
        (
            plain,
            "POST",
            "/g",
            &[("x-status", "500")],
            plain,
            "/g",
            false,
        ),
        (plain, "OPTIONS", "/h", &[], plain, "/h", false),
        (plain, "POST", "/i", &[], plain, "/i?x", false),
        (
            plain,
            "POST",
            "/x/j",
            &[("x-location", "/x/new")],
            plain,
            "/x/new",
            true,
        ),
        (
            plain,
            "POST",
            "/k",
            &[("x-location", "http://TEST/l")],
            plain,
            "/l",
            true,
        ),
        (
            plain,
            "POST",
            "/m",
            &[("x-content-location", "/n?b&a")],
            plain,
            "/n?a&b",
            true,
        ),
        (
            plain,
            "POST",
            "/o",
            &[("x-location", "http://other/p")],
            plain,
            "/p",
            false,
        ),
        (
            plain,
            "POST",
            "/q",
            &[("x-location", "/r"), ("x-status", "409")],
            plain,
            "/r",
            false,
        ),
        (nested, "POST", "/in/s", &[], nested, "/in/s", true),
        (
            nested,
            "POST",
            "/in/t",
            &[("x-location", "/in/u")],
            nested,
            "/in/u",
            true,
        ),
        (
            keyed,
            "POST",
            "/v?page=1&z=2",
            &[],
            keyed,
            "/v?page=1",
            true,
        ),
        (keyed, "POST", "/w?page=1", &[], keyed, "/w?page=2", false),
        (off, "POST", "/off", &[], off, "/off", false),
    ];
    for (address, method, target, headers, reader, page, stale) in cases {
        let what = format!("{method} {target} {headers:?}: {page}");
        let german = [("accept-language", "de")];
        let read = async || request(*reader, "GET", page, &german).await;
        let before = read().await.run();
        assert_eq!(read().await.run(), before, "{what}");
        request(*address, method, target, headers).await;
        if *stale {
            until(&what, async || read().await.run() > before).await;
        } else {
            assert_eq!(read().await.run(), before, "{what}");
        }
    }
}
