//! What a client keeps is what the site serves: entity tags, dates, conditions and ranges, also
//! through layers that change bodies. In virtual time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    routing::get as route,
};
use bytes::Bytes;
use perennial::{Perennial, layer::RefreshLayer};
use perennial_testing as testing;
use proptest::prelude::*;
use tower_http::services::ServeDir;

use perennial_testkit::{
    Folder, Reply, every, get, request,
    virtual_time::{Shared, here},
};

use crate::log_of_this_thread;

const LONG: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// The response of a handler.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: &'static str,
}

impl Said {
    fn new(headers: &[(&'static str, &'static str)], body: &'static str) -> Self {
        Self {
            status: 200,
            headers: headers.to_vec(),
            body,
        }
    }
}

/// A site whose one page a test changes.
struct Site {
    said: Arc<Mutex<Said>>,
    site: Perennial,
    app: &'static Router,
}

impl Site {
    fn new(layer: impl Fn(&Perennial) -> RefreshLayer) -> Self {
        Self::of(&Shared::new(), layer)
    }

    fn of(shared: &Shared, layer: impl Fn(&Perennial) -> RefreshLayer) -> Self {
        let said: Arc<Mutex<Said>> = Arc::default();
        let site = shared.site();
        let page = {
            let said = Arc::clone(&said);
            route(async move || {
                let Said {
                    status,
                    headers,
                    body,
                } = said.lock().expect("not poisoned").clone();
                let mut map = HeaderMap::new();
                for (name, value) in headers {
                    map.append(name, HeaderValue::from_static(value));
                }
                (StatusCode::from_u16(status).expect("a status"), map, body)
            })
        };
        let app = here(Router::new().route("/", page).layer(layer(&site)));
        Self { said, site, app }
    }

    /// From now on, visitors get this response.
    async fn says(&self, said: Said) {
        *self.said.lock().expect("not poisoned") = said;
        self.site.invalidate("/").await.expect("is stored");
        get(self.app, "/").await;
    }

    async fn get(&self, headers: &[(&str, &str)]) -> Reply {
        request(self.app, "GET", "/", headers).await
    }
}

fn plain(site: &Perennial) -> RefreshLayer {
    site.layer(every(LONG))
}

/// A response that a client keeps, and its copy after a 304 (RFC 9111 §3.2, §4.3.4).
#[derive(Clone, Debug, PartialEq)]
struct Copy {
    status: u16,
    headers: BTreeMap<String, Vec<HeaderValue>>,
    body: Bytes,
}

impl From<Reply> for Copy {
    fn from(reply: Reply) -> Self {
        let names = reply.headers.keys();
        let all = |name: &HeaderName| reply.headers.get_all(name).iter().cloned().collect();
        Self {
            status: reply.status,
            headers: names.map(|name| (name.to_string(), all(name))).collect(),
            body: reply.body.clone(),
        }
    }
}

impl Copy {
    fn update(&mut self, not_modified: Reply) {
        let mut headers = Self::from(not_modified).headers;
        headers.remove("content-length");
        self.headers.extend(headers);
    }

    /// A copy keeps the date that it has, as a 304 has none beside a tag (RFC 9110 §15.4.5).
    fn without_date(mut self) -> Self {
        self.headers.remove("last-modified");
        self
    }
}

fn responses() -> impl Strategy<Value = Said> {
    let status = prop::sample::select(vec![200, 200, 200, 203, 404, 410]);
    let headers = prop::sample::subsequence(
        vec![
            ("content-security-policy", "script-src 'self'"),
            ("content-security-policy", "script-src 'none'"),
            ("content-disposition", "inline"),
            ("content-disposition", "attachment"),
            ("content-type", "text/plain"),
            ("content-type", "image/png"),
            ("content-language", "de"),
            ("content-encoding", "x-own"),
            ("x-own", "1"),
            ("x-own", "2"),
            ("link", "</a>; rel=next"),
            ("server-timing", "db;dur=1"),
            ("server-timing", "db;dur=2"),
            ("x-request-id", "a"),
            ("x-request-id", "b"),
            ("expires", "0"),
            ("cache-control", "max-age=7"),
            ("vary", "accept-encoding"),
        ],
        0..6,
    );
    let body = prop::sample::select(vec!["", "a", "a longer body"]);
    (status, headers, body).prop_map(|(status, headers, body)| Said {
        status,
        headers,
        body,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// RFC 9110 §8.8.1: two responses with one strong tag are the same for the client.
    #[test]
    fn client_that_updates_its_copy_from_a_304_has_what_a_fresh_200_has(
        before in responses(), after in responses(), coding in prop::option::of(Just("gzip")), cdn: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let policy = if cdn { every(LONG).cdn_cache(LONG) } else { every(LONG) };
            let site = Site::new(|site| site.layer(&policy));
            let accepts: Vec<_> = coding.map(|coding| ("accept-encoding", coding)).into_iter().collect();
            site.says(before.clone()).await;
            let mut copy = Copy::from(site.get(&accepts).await);
            let Some(tag) = copy.headers.get("etag") else {
                return Ok(()); // It is not stored.
            };
            let tag = tag[0].to_str().expect("text").to_owned();
            // The page is regenerated in any case.
            site.says(after.clone()).await;
            let conditional = [accepts.clone(), vec![("if-none-match", &*tag)]].concat();
            let reply = site.get(&conditional).await;
            let fresh = Copy::from(site.get(&accepts).await);
            if reply.status == 304 {
                copy.update(reply);
                prop_assert_eq!(copy.without_date(), fresh.without_date());
            } else {
                prop_assert_eq!(Copy::from(reply), fresh);
            }
            if before == after && after.status < 300 {
                prop_assert_eq!(site.get(&conditional).await.status, 304, "it is unchanged");
            }
            Ok(())
        })?;
    }
}

/// The case of each header that a reviewer found missing.
#[tokio::test(start_paused = true)]
async fn changed_header_reaches_a_client_that_revalidates() {
    for name in [
        "access-control-allow-origin",
        "cache-tag",
        "clear-site-data",
        "cloudflare-cdn-cache-control",
        "content-disposition",
        "content-security-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "deprecation",
        "link",
        "permissions-policy",
        "referrer-policy",
        "strict-transport-security",
        "sunset",
        "surrogate-control",
        "surrogate-key",
        "x-content-type-options",
        "x-frame-options",
        "x-own",
        "x-robots-tag",
    ] {
        let site = Site::new(plain);
        site.says(Said::new(&[(name, "one")], "body")).await;
        let tag = site.get(&[]).await.header("etag").to_owned();
        let unchanged = site.get(&[("if-none-match", &tag)]).await;
        assert_eq!(
            (unchanged.status, unchanged.header(name)),
            (304, "one"),
            "{name}"
        );
        for said in [Said::new(&[(name, "two")], "body"), Said::new(&[], "body")] {
            site.says(said).await;
            let reply = site.get(&[("if-none-match", &tag)]).await;
            assert_eq!(reply.status, 200, "{name} was removed or changed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn page_that_appears_is_not_the_missing_page_though_its_body_is_the_same() {
    let missing = Said {
        status: 404,
        ..Said::new(&[], "the same page")
    };
    for (before, after) in [(404, 200), (410, 200), (200, 203)] {
        let site = Site::new(plain);
        let said = |status| Said {
            status,
            ..missing.clone()
        };
        site.says(said(before)).await;
        testing::advance(2 * SECOND).await;
        let client = site.get(&[]).await;
        let date = client.header("last-modified").to_owned();
        site.says(said(after)).await;
        testing::advance(2 * SECOND).await;
        let tag = [("if-none-match", client.header("etag"))];
        assert_eq!(site.get(&tag).await.status, after, "{before}");
        let date = [("if-modified-since", &*date)];
        assert_eq!(site.get(&date).await.status, after, "{before}");
    }
}

#[tokio::test(start_paused = true)]
async fn header_that_changes_with_each_generation_is_named_in_the_log_or_does_not_count() {
    let values = ["1", "2", "3", "4"];
    for (name, is_told) in [("x-generated-by", true), ("x-request-id", false)] {
        let log = log_of_this_thread();
        let site = Site::new(plain);
        let mut tags = Vec::new();
        for value in values {
            site.says(Said::new(&[(name, value)], "body")).await;
            tags.push(site.get(&[]).await.header("etag").to_owned());
        }
        tags.dedup();
        assert_eq!(tags.len(), if is_told { values.len() } else { 1 }, "{name}");
        let log = log.text();
        let lines = log
            .lines()
            .filter(|line| line.contains("changed twice because of one header"));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), usize::from(is_told), "{log}");
        assert!(lines.iter().all(|line| line.contains(name)), "{lines:?}");
    }
}

/// RFC 9110 §13.2.2, and §13.1.1 for the answer.
#[tokio::test(start_paused = true)]
async fn resumed_download_gets_bytes_of_no_other_version() {
    let site = Site::new(plain);
    let kind = ("content-type", "image/png");
    site.says(Said::new(&[kind], "AAAAAAAAAA")).await;
    testing::advance(2 * SECOND).await;
    let client = site.get(&[]).await;
    assert_eq!(client.header("accept-ranges"), "bytes");
    let (tag, date) = (client.header("etag"), client.header("last-modified"));
    assert!(
        tag.starts_with("\"p-") && date.ends_with("GMT"),
        "{client:?}"
    );
    let range = ("range", "bytes=5-9");
    for condition in [
        ("if-match", tag),
        ("if-unmodified-since", date),
        ("if-range", tag),
    ] {
        let part = site.get(&[range, condition]).await;
        assert_eq!((part.status, part.text()), (206, "AAAAA"), "{condition:?}");
    }
    site.says(Said::new(
        &[kind, ("cache-control", "max-age=60")],
        "BBBBBBBBBB",
    ))
    .await;
    testing::advance(2 * SECOND).await;
    for method in ["GET", "HEAD"] {
        for headers in [&[("if-match", tag)][..], &[range, ("if-match", tag)]] {
            let refused = request(site.app, method, "/", headers).await;
            assert_eq!((refused.status, refused.text()), (412, ""), "{headers:?}");
            // Nobody else gets the refusal.
            assert_eq!(refused.header("cache-control"), "no-store");
        }
    }
    // By the store's clock, the new version is not later than the `Date` that the version before it has
    // by this machine's clock. So the response has no `Last-Modified`, and the condition is ignored
    // (§13.1.4).
    assert_eq!(site.get(&[]).await.header("last-modified"), "");
    for condition in [("if-unmodified-since", date), ("if-range", tag)] {
        let whole = site.get(&[range, condition]).await;
        assert_eq!(
            (whole.status, whole.text()),
            (200, "BBBBBBBBBB"),
            "{condition:?}"
        );
    }
}

/// The layer answers conditions as the service would that it wraps.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_conditional_as_without_the_layer() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("file.bin"), "0123456789").expect("is written");
    let files = || Router::new().fallback_service(ServeDir::new(folder.path()));
    let (alone, cached) = (
        files(),
        files().layer(folder.site().await.layer(every(LONG))),
    );
    let path = "/file.bin";
    let first = get(&alone, path).await;
    let (tag, date) = (first.header("etag"), first.header("last-modified"));
    let (old, later) = (
        "Sat, 29 Oct 1994 19:43:31 GMT",
        "Fri, 29 Oct 2094 19:43:31 GMT",
    );
    assert!(date.ends_with("GMT"), "{first:?}");
    let mut conditions = vec![
        ("if-match", "\"other\""),
        ("if-none-match", "\"other\""),
        ("if-unmodified-since", old),
        ("if-unmodified-since", date),
        ("if-unmodified-since", later),
        ("if-modified-since", old),
        ("if-modified-since", date),
        ("if-modified-since", later),
    ];
    if !tag.is_empty() {
        conditions.extend([("if-match", tag), ("if-none-match", tag)]);
    }
    let range = ("range", "bytes=2-4");
    for condition in conditions {
        for headers in [&[condition][..], &[condition, range]] {
            for method in ["GET", "HEAD"] {
                let [alone, cached] = [
                    request(&alone, method, path, headers).await,
                    request(&cached, method, path, headers).await,
                ];
                // A range has no meaning for a HEAD (§14.2), although ServeDir answers such a request with
                // 206.
                let status = match (method, alone.status) {
                    ("HEAD", 206) => 200,
                    (_, status) => status,
                };
                assert_eq!(cached.status, status, "{method} {headers:?}");
                assert_eq!(cached.body, alone.body, "{method} {headers:?}");
            }
        }
    }
}

/// No client can have the date of two versions (RFC 9110 §8.8.2.2).
#[tokio::test(start_paused = true)]
async fn changed_page_is_modified_for_a_client_with_a_date() {
    // The time between two changes, in milliseconds.
    for pause in [0, 10, 200, 700, 999, 1000, 1001, 2500] {
        for offset in [0, 100, 500, 900] {
            let site = Site::new(plain);
            testing::advance(Duration::from_millis(offset)).await;
            let mut dates = Vec::new();
            for body in ["a", "b", "c", "d"] {
                site.says(Said::new(&[], body)).await;
                for later in [0, pause, 3000] {
                    if later < 3000 || body == "d" {
                        testing::advance(Duration::from_millis(later)).await;
                    }
                    let reply = site.get(&[]).await;
                    // These are the dates that a client with this response would send (§13.1.3). `Date` comes
                    // from this machine's clock, and `Last-Modified` from the store's. A test in
                    // `src/cache/content/representation.rs` covers clients that send either of them.
                    let date = reply.header("last-modified");
                    if !date.is_empty() {
                        dates.push((date.to_owned(), body));
                    }
                    for (date, known) in &dates {
                        let conditional = [("if-modified-since", &**date)];
                        let answer = site.get(&conditional).await;
                        assert!(
                            answer.status == 200 || *known == body,
                            "{body} is not modified for a client with {known} of {date}; {pause}, {offset}"
                        );
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn date_is_earlier_than_that_of_the_message_and_of_no_version_younger_than_a_second() {
    let shared = Shared::new();
    let site = Site::of(&shared, plain);
    let date = |reply: &Reply, name: &str| httpdate::parse_http_date(reply.header(name));
    site.says(Said::new(&[], "body")).await;
    assert_eq!(site.get(&[]).await.header("last-modified"), "", "it is new");
    testing::advance(SECOND).await;
    let reply = site.get(&[]).await;
    let modified = date(&reply, "last-modified").expect("has a date");
    assert!(
        modified < date(&reply, "date").expect("has a date"),
        "{reply:?}"
    );
    // An unchanged page keeps it.
    site.says(Said::new(&[], "body")).await;
    testing::advance(SECOND).await;
    let renewed = date(&site.get(&[]).await, "last-modified");
    assert_eq!(renewed.expect("has a date"), modified);
    // Next, the database's clock, which begins in 2020 here, is moved ahead of this process's
    // clock.
    let ahead = Site::new(plain);
    let store = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
    let behind = SystemTime::now().duration_since(store);
    testing::advance(behind.expect("is past 2020") + 24 * LONG).await;
    ahead.says(Said::new(&[], "body")).await;
    testing::advance(2 * SECOND).await;
    assert_eq!(ahead.get(&[]).await.header("last-modified"), "");
    // A handler's own date is the handler's.
    let own = "Sat, 29 Oct 1994 19:43:31 GMT";
    site.says(Said::new(&[("last-modified", own)], "body"))
        .await;
    assert_eq!(site.get(&[]).await.header("last-modified"), own);
}
