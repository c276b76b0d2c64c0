//! Directives for shared caches, over the wire: targeted headers, dates, statuses, and the pages
//! that a change makes stale.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::any,
};
use perennial::{Key, Refresh, RefreshAfter};

use perennial_testkit::{
    Db, Folder, HANG, Origin, Reply, get, on_each_database, request, serve, until,
};

on_each_database! {
    successful_unsafe_request_makes_what_it_changed_stale_in_all_processes
}

const LONG: Duration = Duration::from_secs(3600);
const MINUTE: i64 = 60;

/// A site whose pages all have this head.
async fn site_with(
    folder: &Folder,
    head: &[(&str, &str)],
    policy: impl Into<Refresh>,
) -> SocketAddr {
    let mut headers = HeaderMap::new();
    for (name, value) in head {
        let name: axum::http::HeaderName = name.parse().expect("a name");
        headers.append(name, value.parse().expect("a value"));
    }
    let page = any(async move || (headers.clone(), "page"));
    let layer = folder.site().await.layer(policy);
    serve(Router::new().fallback_service(page.layer(layer))).await
}

/// Returns the page's remaining seconds of freshness in a second visitor's response; `None` means that it is
/// not stored.
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
    let honours = Refresh::by_headers(Duration::from_secs(600));
    let every = Refresh::every(Duration::from_secs(1200));
    let general = ("cache-control", "max-age=300");
    let no_store = ("cache-control", "no-store");
    let age = ("age", "100, 200");
    let cdn = "cdn-cache-control";
    // The head; the seconds for which the page is fresh if the policy follows the response's
    // headers; and the seconds if it does not.
    for (head, honoured, otherwise) in [
        (vec![general], Some(300), Some(1200)),
        (vec![general, (cdn, "max-age=900")], Some(900), Some(1200)),
        (vec![no_store, (cdn, "max-age=900")], Some(900), None),
        (vec![general, (cdn, "public")], Some(600), Some(1200)),
        (vec![general, (cdn, "private")], None, None),
        (vec![(cdn, "max-age=900"), age], Some(800), Some(1200)),
    ] {
        for (policy, expected) in [(&honours, honoured), (&every, otherwise)] {
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
async fn response_that_is_old_on_arrival_ages_from_its_date() {
    let now = SystemTime::now();
    let date = |time| httpdate::fmt_http_date(time);
    let (before, soon) = (
        date(now - Duration::from_mins(50)),
        date(now + Duration::from_mins(10)),
    );
    let (before, soon) = (("date", &*before), ("expires", &*soon));
    let hour = ("cache-control", "max-age=3600");
    // Each case has the head of a response, the expected interval, and the expected age in seconds.
    // The real age may be up to a minute more.
    for (head, fresh, age) in [
        (vec![before, soon], 600, 3000),
        (vec![before, hour], 600, 3000),
        (vec![before, hour, ("age", "3300")], 300, 3300),
        (vec![("date", "yesterday"), soon], 600, 0),
    ] {
        let folder = Folder::new();
        let address = site_with(&folder, &head, Refresh::by_headers(LONG)).await;
        let left = fresh_for(address).await.expect("is a hit");
        assert!((fresh - MINUTE..=fresh).contains(&left), "{head:?}: {left}");
        let said = get(address, "/").await.header("age").parse();
        let said: i64 = said.expect("a number");
        assert!((age..=age + MINUTE).contains(&said), "{head:?}: {said}");
    }
    // Older than any time that a clock can tell.
    let folder = Folder::new();
    let age = [("age", "10000000000000")];
    let address = site_with(&folder, &age, Refresh::every(LONG)).await;
    for _ in 0..2 {
        assert_eq!(get(address, "/").await.status, 200);
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
    // In another process, the dates follow from the age of the stored version.
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

    // The dates are also right if the page had an `Age` when it arrived, and if it is older than its
    // interval.
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
        let head = if honest {
            [("cache-control", "max-age=900")]
        } else {
            [("x", "y")]
        };
        match uri.path() {
            MORE => (status, RefreshAfter::new(Duration::from_secs(1800)), head).into_response(),
            _ => (status, head).into_response(),
        }
    }
    let every = Refresh::every(LONG);
    let honours = Refresh::by_headers(LONG);
    // The status; whether the response has `max-age=900`; the policy; the interval in seconds,
    // without and with `RefreshAfter`.
    for (status, honest, policy, interval, more) in [
        (404, false, &every, 60, 1800),
        (404, true, &every, 60, 1800),
        (404, false, &honours, 60, 1800),
        (404, true, &honours, 900, 1800),
        (200, false, &every, 3600, 1800),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        let folder = Folder::new();
        let policy = policy.clone().browser_cache(perennial::DAY);
        let layer = folder.site().await.layer(&policy);
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
    let policy = Refresh::every(LONG).leader_wait(HANG);
    let language = axum::http::header::ACCEPT_LANGUAGE;
    let (site, other) = (db.site().await, db.site().await);
    let layer = site.layer(&policy).invalidate_on_unsafe();
    let plain = serve(writable(&origin).layer(layer.clone())).await;
    let nested = Router::new().nest("/in", writable(&origin).layer(layer.clone()));
    let nested = serve(nested).await;
    let keyed = Key::new().query(["page"]).header(language);
    let keyed = serve(writable(&origin).layer(layer.key(keyed))).await;
    let elsewhere = serve(writable(&origin).layer(other.layer(&policy))).await;
    let off = serve(writable(&origin).layer(site.layer(&policy))).await;

    // The application, the request, the header of its response, a page, and whether the page
    // becomes stale.
    for (address, request_line, said, page, stale) in [
        (plain, "POST /a", "", "/a", true),
        (plain, "PUT /b?y=1&x=2", "", "/b?x=2&y=1", true),
        (plain, "M-SEARCH /d", "", "/d", true),
        (plain, "POST /e", "status: 303", "/e", true),
        (plain, "POST /f", "status: 404", "/f", false),
        (plain, "POST /g", "status: 500", "/g", false),
        (plain, "OPTIONS /h", "", "/h", false),
        (plain, "POST /i", "", "/i?x", false),
        (plain, "POST /x/j", "location: /x/new", "/x/new", true),
        (plain, "POST /k", "location: http://TEST/l", "/l", true),
        (plain, "POST /m", "content-location: /n?b&a", "/n?a&b", true),
        (plain, "POST /o", "location: http://other/p", "/p", false),
        (plain, "POST /q", "status: 409, location: /r", "/r", false),
        (nested, "POST /in/s", "", "/in/s", true),
        (nested, "POST /in/t", "location: /in/u", "/in/u", true),
        (keyed, "POST /v?page=1&z=2", "", "/v?page=1", true),
        (keyed, "POST /w?page=1", "", "/w?page=2", false),
        (off, "POST /off", "", "/off", false),
    ] {
        let what = format!("{request_line}, {said}: {page}");
        let german = [("accept-language", "de")];
        let read = async || request(address, "GET", page, &german).await.run();
        let before = read().await;
        assert_eq!(read().await, before, "{what}");
        let headers = said
            .split(", ")
            .filter_map(|header| header.split_once(": "));
        let headers: Vec<_> = headers
            .map(|(name, value)| (format!("x-{name}"), value))
            .collect();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (&**name, *value))
            .collect();
        let (method, target) = request_line.split_once(' ').expect("a request");
        request(address, method, target, &headers).await;
        if stale {
            until(&what, async || read().await > before).await;
        } else {
            assert_eq!(read().await, before, "{what}");
        }
    }
    let before = get(elsewhere, "/c").await.run();
    request(plain, "DELETE", "/c", &[]).await;
    until("another process learns", async || {
        get(elsewhere, "/c").await.run() > before
    })
    .await;
}
