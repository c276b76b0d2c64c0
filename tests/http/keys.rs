//! Requests and their resources: never mixed up, never an error page.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header, request::Parts},
    routing::get as route,
};
use perennial::{Key, Perennial, Refresh};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use perennial_testkit::{Folder, Origin, every, get, request, serve, serve_origin, until};

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn different_resources_are_never_mixed_up() {
    let long = "x".repeat(4000);
    let paths = r#"
        / // /a /A /a/ /a// /a/. /a/.. /a/../b /.. /%2e%2e /a%2Fb /a%2fb /%61%2Fb /a/b /%00
        /%0a /%0D%0A /%ff /%C3%A4 /a%20 /a+ /a%23b /a%3Fb /a? /a?b /a?b= /a?b=1 /a?b=1&b=2
        /a?b=2&b=1 /a?b=1&&b=2 /a?%62=1&b=2 /a?b=2&%62=1 /a?c=1&b=1 /a?& /a?= /a?=&b
        /a?b=%26 /a?b=%2B /a?b=+ /a?b=%20 /refresh//a /a' /a" /a;b /a\b /a% /a?% /a?%zz=1
        /a?b=1?c /http://x/ /* /a|b /~ /a?b[]=1&b[]=2
    "#;
    let paths: Vec<String> = paths
        .split_whitespace()
        .map(str::to_owned)
        .chain(["", "a", "b", "%2F", "/..", "?a=1"].map(|end| format!("/{long}{end}")))
        .collect();

    let folder = Folder::new();
    let (_, address) = serve_origin(&folder.site().await, Refresh::every(LONG)).await;
    let mut seen: HashMap<String, usize> = HashMap::new();
    for path in &paths {
        let reply = get(address, path).await;
        assert_eq!(reply.status, 200, "{path}");
        // The generated text, apart from the number of the run, belongs to this path.
        let text = reply.text().split_once(" of ").expect("run N of …").1;
        assert_eq!(canonical(text), canonical(path), "{path}");
        seen.insert(path.clone(), reply.run());
    }
    // The second answer comes from memory, and the third, in another process, from the database.
    let (origin, restarted) = serve_origin(&folder.site().await, Refresh::every(LONG)).await;
    for path in &paths {
        assert_eq!(get(address, path).await.run(), seen[path], "{path}");
        assert_eq!(get(restarted, path).await.run(), seen[path], "{path}");
    }
    assert_eq!(origin.begun(), 0);
}

/// A byte, and whether its encoding matters: not of a letter, a digit, or one of `-._~`.
pub(crate) type Unit = (u8, bool);

fn units(text: &str, is_query: bool) -> Vec<Unit> {
    let (mut rest, mut units) = (text.as_bytes(), Vec::new());
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%');
        // `from_str_radix` would take a sign.
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if decoded.is_some() { &tail[2..] } else { tail };
        units.push(match decoded {
            Some(byte) => (
                byte,
                !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte),
            ),
            None if *first == b'%' => (b'%', true),
            None if is_query && *first == b'+' => (b' ', true),
            None => (*first, false),
        });
    }
    units
}

/// The model: path, and the parameters by decoded name.
pub(crate) fn canonical(path: &str) -> (Vec<Unit>, Vec<(String, Vec<Unit>)>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parameters: Vec<_> = query
        .split('&')
        .filter(|_| !query.is_empty())
        .map(|raw| {
            let name = raw.split('=').next().expect("there is a first");
            let name = form_urlencoded::parse(name.as_bytes())
                .next()
                .map_or(String::new(), |it| it.0.into_owned());
            (name, units(raw, true))
        })
        .collect();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    (units(path, false), parameters)
}

/// `/%61bout` goes to another route than `/about`, whose page it must not become.
#[tokio::test(start_paused = true)]
async fn an_encoded_path_that_another_route_matches_is_another_page() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let layer = || site.layer(Refresh::every(perennial::DAY));
    let any = async |axum::extract::Path(name): axum::extract::Path<String>| format!("any {name}");
    let nested = Router::new().route("/x", route(async || "a tenant").layer(layer()));
    let about = Router::new().route("/x", route(async || "about x").layer(layer()));
    let app = Router::new()
        .route("/{name}", route(any).layer(layer()))
        .route("/about", route(async || "about").layer(layer()))
        .nest("/{tenant}/in", nested)
        .nest("/about/in", about);
    for _ in 0..2 {
        for (path, text) in [
            ("/%61bout", "any about"),
            ("/about", "about"),
            ("/%61bout/in/x", "a tenant"),
            ("/about/in/x", "about x"),
        ] {
            assert_eq!(get(&app, path).await.text(), text, "{path}");
        }
    }
    // Both are variants of one key.
    assert_eq!(database.generations("/about"), 2);
    site.purge("/about").await.expect("is done");
    for path in ["/%61bout", "/about"] {
        let status = get(&app, path).await.headers["cache-status"].clone();
        assert_eq!(status, "perennial; fwd=miss; stored", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_bytes_are_no_server_error() {
    let folder = Folder::new();
    let (_, address) = serve_origin(&folder.site().await, Refresh::every(LONG)).await;
    for path in [
        &b"/\xc3\xa4"[..],
        b"/\xff\xfe",
        b"/a\x7fb",
        b"/\xf0\x9f\x8c\xb1?\xc3\xa4=\xc3\xb6",
        b"*",
        b"http://elsewhere/",
        b"",
        b"x",
    ] {
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.expect("connects");
            let request = [
                b"GET ",
                path,
                b" HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
            ]
            .concat();
            stream.write_all(&request).await.expect("asks");
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await.expect("answers");
            let reply = String::from_utf8_lossy(&reply);
            assert!(
                reply.starts_with("HTTP/1.1 2") || reply.starts_with("HTTP/1.1 4"),
                "{path:?}: {reply}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_counts_that_the_uri_and_the_header_agree_on() {
    let folder = Folder::new();
    let layer = folder.site().await.layer(Refresh::every(LONG));
    let address = serve(mirror().layer(layer.key(Key::new().host()))).await;
    for (path, seen) in [
        ("/a", "/a host=test"),
        ("http://Test/a", "/a host=test"),
        ("http://me@test/a", "/a host=test"),
    ] {
        assert_eq!(request(address, "GET", path, &[]).await.text(), seen);
    }
    // The handler may read the host from the URI or from the header, and one host's page must not
    // be stored for the other.
    for path in ["http://shop.example/a", "http://test:8080/a"] {
        for _ in 0..2 {
            let answer = request(address, "GET", path, &[]).await;
            let how = "perennial; fwd=bypass; detail=no-key";
            assert_eq!(answer.header("cache-status"), how, "{path}");
        }
    }
    let by_header = folder.site().await.layer(Refresh::every(LONG));
    let by_header = by_header.key(Key::new().header(axum::http::header::HOST));
    let by_header = serve(mirror().layer(by_header)).await;
    for (path, how) in [
        ("http://test/a", "perennial; fwd=miss; stored"),
        (
            "http://shop.example/a",
            "perennial; fwd=bypass; detail=no-key",
        ),
    ] {
        let answer = request(by_header, "GET", path, &[]).await;
        assert_eq!(answer.header("cache-status"), how, "{path}");
    }
    let two_lines = [("host", "shop.example")];
    let answer = request(address, "GET", "/a", &two_lines).await;
    assert_ne!(answer.text(), "/a host=shop.example");
}

/// A handler as with axum's `WebSocketUpgrade`: 426 without an upgrade, or else 101.
#[tokio::test(start_paused = true)]
async fn a_web_socket_is_reached_on_a_route_of_its_own_and_beside_a_page() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |request: Request| {
        let upgrades = request.headers().contains_key("upgrade");
        let has_page = request.uri().path() == "/both";
        counted.fetch_add(1, SeqCst);
        async move {
            match (upgrades, has_page) {
                (true, _) => StatusCode::SWITCHING_PROTOCOLS,
                (false, true) => StatusCode::OK,
                (false, false) => StatusCode::UPGRADE_REQUIRED,
            }
        }
    };
    let layer = || site.layer(Refresh::every(LONG));
    let upgrades = |parts: &Parts| parts.headers.contains_key("upgrade");
    let app = Router::new()
        .route("/socket", route(handler.clone()).layer(layer()))
        .route("/both", route(handler).layer(layer().bypass_if(upgrades)));
    let ask = async |path: &str, upgrade: bool| {
        let headers: &[_] = if upgrade {
            &[("connection", "upgrade"), ("upgrade", "websocket")]
        } else {
            &[]
        };
        request(&app, "GET", path, headers).await.status
    };
    for _ in 0..3 {
        assert_eq!(ask("/socket", true).await, 101);
        assert_eq!(ask("/both", true).await, 101);
    }
    // The first upgrade has run the socket's handler once more, without the visitor's headers.
    assert_eq!(runs.swap(0, SeqCst), 7);
    for _ in 0..3 {
        assert_eq!(ask("/socket", false).await, 426);
        assert_eq!(ask("/both", false).await, 200);
    }
    // The responses with status 101 have not made any other request bypass the cache.
    assert_eq!(runs.load(SeqCst), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn unstored_response_has_vary_too() {
    let folder = Folder::new();
    let url = folder.url();
    let site = perennial_testkit::patient().max_body(10).open(&url).await;
    let keyed = site
        .expect("opens")
        .layer(Refresh::every(LONG))
        .key(Key::new().header(header::ACCEPT_LANGUAGE));
    // Neither response is stored: the first body is too large, and the second layer allows no keys
    // at all.
    for (layer, path, status) in [
        (keyed.clone(), "/a", "fwd=miss"),
        (keyed.max_keys(0), "/b", "fwd=bypass"),
    ] {
        let address = serve(Origin::default().router().layer(layer)).await;
        let reply = request(address, "GET", path, &[("accept-language", "de")]).await;
        assert_eq!(reply.headers["vary"], "accept-language");
        assert!(reply.header("cache-status").contains(status));
    }
}

/// A generator that prints its request.
fn mirror() -> Router {
    Router::new().fallback(async |request: Request| {
        let headers = request.headers();
        let mut seen: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        seen.sort();
        format!("{} {}", request.uri(), seen.join(" "))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn generator_sees_the_configured_key_and_nothing_else() {
    let language = || Key::new().header(header::ACCEPT_LANGUAGE);
    let by_shop = || {
        Key::by(|parts| {
            let shop = parts.headers.get("x-shop")?.to_str().ok()?;
            Some([("shop", shop.to_owned()), ("of", "a & b".to_owned())])
        })
    };
    let de = [("accept-language", "de"), ("cookie", "a=b")];
    let en = [("accept-language", "en"), ("cookie", "a=b")];
    let both = [("accept-language", "de"), ("accept-language", "en")];
    let cunning = [("accept-language", "de&accept-language=en#host=x")];
    // The key, and requests in groups: a group is one resource, for which the generator saw the
    // given request.
    type Group<'a> = (Vec<(&'a str, &'a [(&'a str, &'a str)])>, &'a str);
    let table: Vec<(Key, Vec<Group<'_>>)> = vec![
        (
            Key::new().query(["page", "sort"]),
            vec![
                (
                    vec![
                        ("/a?page=1&sort=x", &[]),
                        ("/a?sort=x&page=1&utm=1", &[]),
                        ("/a?utm=2&sort=x&utm=3&page=1", &[]),
                    ],
                    "/a?page=1&sort=x ",
                ),
                (vec![("/a?page=2", &[])], "/a?page=2 "),
                (vec![("/a", &[]), ("/a?utm=3", &[]), ("/a?", &[])], "/a "),
            ],
        ),
        (
            Key::path(),
            vec![(vec![("/a?b", &[]), ("/a?c", &de), ("/a", &[])], "/a ")],
        ),
        (
            language(),
            vec![
                (vec![("/a", &de), ("/a", &de[..1])], "/a accept-language=de"),
                (vec![("/a", &en)], "/a accept-language=en"),
                (
                    vec![("/a", &both)],
                    "/a accept-language=de accept-language=en",
                ),
                (
                    vec![("/a", &cunning)],
                    "/a accept-language=de&accept-language=en#host=x",
                ),
                (vec![("/a", &[]), ("/a", &[("x-other", "c")])], "/a "),
            ],
        ),
        (
            Key::new().host(),
            vec![(
                vec![("/a", &[]), ("/a", &[("x-forwarded-host", "evil")])],
                "/a host=test",
            )],
        ),
        (
            Key::name("one"),
            vec![(vec![("/a?b", &[]), ("/a?c", &de)], "/a ")],
        ),
        (
            by_shop(),
            vec![
                (
                    vec![("/a?b", &[("x-shop", "1")]), ("/a?c", &[("x-shop", "1")])],
                    "/a?of=a%20%26%20b&shop=1 ",
                ),
                (
                    vec![("/a", &[("x-shop", "2")])],
                    "/a?of=a%20%26%20b&shop=2 ",
                ),
                (
                    vec![("/b", &[("x-shop", "2")])],
                    "/b?of=a%20%26%20b&shop=2 ",
                ),
            ],
        ),
    ];
    for (key, groups) in table {
        let folder = Folder::new();
        let layer = folder
            .site()
            .await
            .layer(Refresh::every(LONG))
            .key(key.clone());
        let address = serve(mirror().layer(layer)).await;
        for (requests, seen) in groups {
            let mut statuses = Vec::new();
            for (path, headers) in requests {
                let reply = request(address, "GET", path, headers).await;
                assert_eq!(reply.text(), seen, "{key:?}: {path} {headers:?}");
                // The headers of the key are in `Vary`, for caches on the way.
                let vary = reply.headers.get_all("vary").iter();
                let by_language = format!("{key:?}").contains("accept-language");
                let found = vary.filter(|vary| *vary == "accept-language").count();
                assert_eq!(found, usize::from(by_language), "{reply:?}");
                statuses.push(reply.header("cache-status").to_owned());
            }
            assert!(
                statuses[0].contains("fwd=miss; stored"),
                "{key:?}: {statuses:?}"
            );
            assert!(
                statuses[1..].iter().all(|status| status.contains("hit")),
                "{key:?}: {statuses:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_that_needs_an_encoding_is_invalidated_as_the_site_writes_it() {
    let folder = Folder::new();
    let site = folder.site().await;
    let city = Key::by(|_| Some([("city", "New York ~")]));
    for (key, written) in [
        (city, "/p?city=New York ~"),
        (Key::name("/über uns"), "/über uns"),
    ] {
        let layer = site.layer(every(LONG)).key(key);
        let address = serve(mirror().layer(layer)).await;
        get(address, "/p").await;
        site.invalidate(written).await.expect("is stored");
        // The first generation may still be releasing its lock.
        until("it is generated again", async || {
            get(address, "/p").await.headers["cache-status"] == "perennial; fwd=stale; stored"
        })
        .await;
    }
}
