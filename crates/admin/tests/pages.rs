//! The pages without a browser: access, hostile texts, and the effect of each button.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::RawQuery,
    http::{HeaderValue, Request, Response, StatusCode, header, request::Parts},
    routing::get,
};
use http_body_util::BodyExt;
use perennial::{DAY, Key, Perennial, Refresh, entries::EntryState};
use perennial_admin::{Access, Admin, CancellationToken, Report, Verdict};
use perennial_testkit::fuzz;
use proptest::prelude::{Just, Strategy, prop_oneof};
use tower::ServiceExt;

const HANG: Duration = Duration::from_secs(60);

/// Texts that do harm where a page forgets to escape one.
const HOSTILE: &str = "part/<script>alert(1)</script>\"'&\u{202e}\u{1b}[31m\n</pre>";

const PAGES: [&str; 11] = [
    "/cache",
    "/cache/entries",
    "/cache/entry?key=/a",
    "/cache/preview?key=/a",
    "/cache/locks",
    "/cache/explain?path=/a",
    "/cache/live",
    "/cache/overview.json",
    "/cache/entries.json",
    "/cache/locks.json",
    "/cache/entry?key=nowhere",
];

/// Decides by the header `user`, as a test of access needs no login.
fn access(request: &Parts) -> Access {
    match request.headers.get("user").map(|user| user.as_bytes()) {
        Some(b"operator") => Access::full("operator"),
        Some(b"guest") => Access::read_only("guest"),
        _ => Access::Forbidden,
    }
}

struct Site {
    site: Perennial,
    shutdown: CancellationToken,
    app: Router,
    /// The number of runs of a handler without a layer.
    imports: Arc<AtomicUsize>,
}

impl Site {
    fn new() -> Self {
        let database = perennial_testing::Database::new();
        let site = database.open(Perennial::builder()).expect("opens");
        let shutdown = CancellationToken::new();
        let html = async || axum::response::Html("<h1>A page</h1><script>alert(2)</script>");
        let page = get(html).layer(site.layer(Refresh::every(DAY)).tag("books"));
        let prices = Arc::new(AtomicUsize::new(0));
        let prices = get(async move |RawQuery(query): RawQuery| {
            let number = prices.fetch_add(1, SeqCst) + 1;
            format!("{} {number}", query.unwrap_or_default())
        });
        let by_currency = Key::by(|request| {
            let currency = request.headers.get("currency").map(HeaderValue::to_str);
            let currency = currency.and_then(Result::ok).unwrap_or("USD");
            Some([("currency", currency.to_owned())])
        });
        let prices = prices.layer(site.layer(Refresh::every(DAY)).key(by_currency));
        let imports = Arc::new(AtomicUsize::new(0));
        let counted = imports.clone();
        let import = get(async move || counted.fetch_add(1, SeqCst).to_string());
        let pages = Router::new().route("/a", page);
        let pages = pages.route("/prices", prices).route("/import", import);
        let status = Admin::new(site.clone(), shutdown.clone(), access);
        let status = status.pages(pages.clone());
        let app = pages.nest("/cache", status.router());
        Self {
            site,
            shutdown,
            app,
            imports,
        }
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.app.clone().oneshot(request).await.expect("answers")
    }

    async fn get(&self, path: &str, user: &str) -> (StatusCode, String) {
        let request = Request::get(path).header("user", user);
        let request = request.body(Body::empty()).expect("a request");
        text(self.send(request).await).await
    }

    async fn post(&self, path: &str, form: &[(&str, &str)], user: &str) -> (StatusCode, String) {
        text(self.send(post(path, form, user)).await).await
    }

    async fn fence(&self, key: &str) -> String {
        let entry = self.site.entry(key).await.expect("answers");
        entry.expect("is stored").fence.to_string()
    }

    async fn state(&self, key: &str) -> Option<EntryState> {
        let entry = self.site.entry(key).await.expect("answers");
        entry.map(|entry| entry.state)
    }

    async fn visit(&self) {
        let request = Request::get("/a").body(Body::empty()).expect("a request");
        assert_eq!(self.send(request).await.status(), 200);
    }
}

fn post(path: &str, form: &[(&str, &str)], user: &str) -> Request<Body> {
    let form = serde_urlencoded::to_string(form).expect("is encoded");
    Request::post(path)
        .header("user", user)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::HOST, "site.example")
        .body(Body::from(form))
        .expect("a request")
}

async fn text(response: Response<Body>) -> (StatusCode, String) {
    let status = response.status();
    let body = tokio::time::timeout(HANG, response.into_body().collect()).await;
    let body = body.expect("ends").expect("is whole").to_bytes();
    (status, String::from_utf8(body.to_vec()).expect("is text"))
}

#[tokio::test(start_paused = true)]
async fn each_route_checks_the_access() {
    let it = Site::new();
    it.visit().await;
    let fence = it.fence("/a").await;
    for path in PAGES {
        assert_eq!(
            it.get(path, "stranger").await.0,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    let on_entry = format!("/cache/act/entry?key=/a&fence={fence}");
    for (path, form) in [
        (&*on_entry, &[("act", "invalidate")][..]),
        ("/cache/act/many?what=tag&name=books", &[]),
        (
            "/cache/act/lock?kind=lock&name=l&fence=1",
            &[("confirmed", "true")],
        ),
    ] {
        for user in ["stranger", "guest"] {
            let (status, _) = it.post(path, form, user).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} {user}");
        }
        let (status, _) = it.get(path, "operator").await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let mut foreign = post(path, form, "operator");
        let origin = header::HeaderValue::from_static("https://elsewhere.example");
        foreign.headers_mut().insert(header::ORIGIN, origin);
        assert_eq!(
            it.send(foreign).await.status(),
            StatusCode::FORBIDDEN,
            "{path} from elsewhere"
        );
    }
    assert_eq!(it.state("/a").await, Some(EntryState::Fresh));
    for path in [
        "/cache",
        "/cache/entries",
        "/cache/entry?key=/a",
        "/cache/locks",
    ] {
        let (status, page) = it.get(path, "guest").await;
        assert_eq!(status, 200, "{path}");
        assert!(
            !page.contains("method=\"post\"") && page.contains("change nothing"),
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn hostile_texts_are_escaped_everywhere() {
    let it = Site::new();
    let long = format!("part/{}", "ä".repeat(2000));
    for key in [HOSTILE, &long] {
        let policy = Refresh::every(DAY);
        let content = it
            .site
            .content(key, &policy, async || Ok::<_, String>(HOSTILE));
        content.await.expect("is stored");
    }
    let label = it.site.locks().label(HOSTILE);
    let _lease = label.lock(HOSTILE).action(HOSTILE).await.expect("is free");
    it.site.invalidate_tag(HOSTILE).await.expect("is stored");
    // By now, the task that collects the latest events has seen all of them.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let key = serde_urlencoded::to_string([("key", HOSTILE)]).expect("is encoded");
    for path in [
        "/cache",
        "/cache/entries",
        "/cache/locks",
        &format!("/cache/entry?{key}"),
    ] {
        for user in ["operator", "guest"] {
            let (status, page) = it.get(path, user).await;
            assert_eq!(status, 200, "{path}");
            let shown = page.replace("&lt;script&gt;alert(1)", "SHOWN");
            assert!(shown.contains("SHOWN"), "{path} shows the text");
            for raw in [
                "<script>alert",
                "\u{202e}",
                "\u{1b}",
                "'&\\u{",
                "</pre>\"",
                "\"'&amp;</",
            ] {
                assert!(!page.contains(raw), "{path} has {raw:?}");
            }
        }
    }
    let (status, page) = it
        .get(
            &format!("/cache/entries?prefix={}", "%22%3E%3Cscript%3E"),
            "guest",
        )
        .await;
    assert!(status == 200 && !page.contains("\"><script>"));
    let (_, page) = it.get("/cache/entries", "operator").await;
    assert!(
        !page.contains(&"ä".repeat(150)),
        "a long key is cut in the list"
    );
}

#[tokio::test(start_paused = true)]
async fn pages_forbid_scripts_frames_and_caches() {
    let it = Site::new();
    it.visit().await;
    for path in PAGES.into_iter().filter(|path| !path.ends_with("live")) {
        let request = Request::get(path).header("user", "operator");
        let response = it
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        let value = |name| response.headers().get(name).and_then(|it| it.to_str().ok());
        let policy = value("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("script-src 'unsafe"),
            "{path}"
        );
        let sandboxed = policy.starts_with("sandbox;");
        assert_eq!(sandboxed, path.contains("preview"), "{path}");
        assert_eq!(value("cache-control"), Some("private, no-store"));
        assert_eq!(value("x-content-type-options"), Some("nosniff"));
    }
    let (_, page) = it.get("/cache/entry?key=/a", "guest").await;
    assert!(page.contains("<iframe sandbox=\"\"") && page.contains("&lt;script&gt;alert(2)"));
    assert!(!page.contains("style=") && !page.contains("onclick"));
}

#[tokio::test(start_paused = true)]
async fn buttons_act_on_what_was_seen() {
    let it = Site::new();
    it.visit().await;
    let fence = it.fence("/a").await;
    let act = async |act: &str, fence: &str, confirmed: &str| {
        let path = format!("/cache/act/entry?key=/a&fence={fence}");
        let form = [("act", act), ("confirmed", confirmed)];
        it.post(&path, &form, "operator").await
    };

    let (status, _) = act("invalidate", "1", "false").await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::CONFLICT, Some(EntryState::Fresh))
    );
    let (status, _) = act("invalidate", &fence, "false").await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::SEE_OTHER, Some(EntryState::Stale))
    );
    let (status, _) = act("regenerate", &fence, "false").await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::SEE_OTHER, Some(EntryState::Fresh))
    );
    let (status, _) = act("purge", &fence, "true").await;
    assert_eq!(status, StatusCode::CONFLICT, "there is a newer version");
    let fence = it.fence("/a").await;
    let (status, page) = act("purge", &fence, "false").await;
    assert!(
        status == 200 && page.contains("Purge removes"),
        "is asked first"
    );
    assert!(it.state("/a").await.is_some());
    let (status, _) = act("purge", &fence, "true").await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::SEE_OTHER, None)
    );

    it.visit().await;
    let (_, page) = it.get("/cache/many?what=tag&name=books", "operator").await;
    assert!(page.contains("Stored entries that match: 1."), "{page}");
    let (_, page) = it.get("/cache/many?what=prefix&name=", "operator").await;
    assert!(
        page.contains("every stored entry of the site: 1."),
        "{page}"
    );
    assert_eq!(it.state("/a").await, Some(EntryState::Fresh));
    let (status, _) = it
        .post("/cache/act/many?what=tag&name=books", &[], "operator")
        .await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::SEE_OTHER, Some(EntryState::Stale))
    );
    let purge = "what=prefix&name=/a&act=purge";
    let (_, page) = it.get(&format!("/cache/many?{purge}"), "operator").await;
    assert!(page.contains("removed now"), "{page}");
    let act = format!("/cache/act/many?{purge}");
    let (status, _) = it.post(&act, &[], "operator").await;
    assert_eq!(
        (status, it.state("/a").await),
        (StatusCode::SEE_OTHER, None)
    );
}

/// Each button acts on the version that was seen, and one run may serve both operators.
#[tokio::test(start_paused = true)]
async fn two_operators_regenerate_one_page_at_once() {
    let it = Site::new();
    it.visit().await;
    let path = format!("/cache/act/entry?key=/a&fence={}", it.fence("/a").await);
    let act = || it.post(&path, &[("act", "regenerate")], "operator");
    let (one, other) = tokio::join!(act(), act());
    assert_eq!([one.0, other.0], [StatusCode::SEE_OTHER; 2]);
    assert_eq!(it.state("/a").await, Some(EntryState::Fresh));
}

/// Content has no request, and neither has a page without the application's router.
#[tokio::test(start_paused = true)]
async fn entry_without_a_request_is_invalidated_by_the_button() {
    let it = Site::new();
    let made = async || Ok::<_, std::io::Error>("the top ten");
    let content = it.site.content("top-10", Refresh::every(DAY), made);
    content.await.expect("is made");
    let path = format!(
        "/cache/act/entry?key=top-10&fence={}",
        it.fence("top-10").await
    );
    let done = it.post(&path, &[("act", "regenerate")], "operator").await;
    assert_eq!(done.0, StatusCode::SEE_OTHER);
    assert_eq!(it.state("top-10").await, Some(EntryState::Stale));
}

#[tokio::test(start_paused = true)]
async fn lock_is_broken_only_with_the_fence_that_was_seen() {
    let it = Site::new();
    let locks = it.site.locks();
    let lease = locks.lock("import").await.expect("is free");
    let fence = lease.fence().0;
    let act = async |fence: i64, confirmed: &str| {
        let path = format!("/cache/act/lock?kind=lock&name=import&fence={fence}");
        it.post(&path, &[("confirmed", confirmed)], "operator")
            .await
    };
    let (_, page) = act(fence, "false").await;
    assert!(page.contains("may still be at work"), "is asked first");
    assert_eq!(act(fence - 1, "true").await.0, StatusCode::CONFLICT);
    assert_eq!(act(fence, "true").await.0, StatusCode::SEE_OTHER);
    assert!(locks.try_lock("import").await.expect("answers").is_some());
}

#[tokio::test(start_paused = true)]
async fn full_store_is_a_warning() {
    let database = perennial_testing::Database::new();
    let builder = Perennial::builder().store_capacity(4260);
    let site = database.open(builder).expect("opens");
    let checked = async || {
        let report = Report::read(&site).await.expect("answers");
        let check = report
            .checks
            .into_iter()
            .find(|check| check.id == "capacity");
        check.expect("is checked")
    };
    for (key, result, percent) in [
        ("one", Verdict::Ok, "take 50 %"),
        ("other", Verdict::Warning, "take 100 %"),
    ] {
        let content = async || Ok::<_, std::io::Error>("x");
        site.content(key, Refresh::every(DAY), content)
            .await
            .expect("is stored");
        let check = checked().await;
        assert_eq!(check.result, result, "{check:?}");
        assert!(check.text.contains(percent), "{check:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn figures_have_a_schema_and_the_stream_ends_with_the_shutdown() {
    let it = Site::new();
    it.visit().await;
    it.visit().await;
    // The figures of the process have been stored.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lease = it.site.locks().lock("import").await.expect("is free");
    let json = async |path| -> serde_json::Value {
        serde_json::from_str(&it.get(path, "guest").await.1).expect("is JSON")
    };
    let overview = json("/cache/overview.json").await;
    assert_eq!(overview["schema"], 1);
    let report = &overview["report"];
    let stored = (
        &report["pages"],
        &report["stale"],
        &report["latest"][0]["key"],
    );
    assert_eq!(stored, (&1.into(), &0.into(), &"/a".into()));
    assert_eq!(report["processes"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["checks"][0]["result"], "ok");
    let entries = json("/cache/entries.json?state=fresh").await;
    assert_eq!(
        (&entries["schema"], &entries["next"]),
        (&1.into(), &serde_json::Value::Null)
    );
    assert_eq!(entries["entries"][0]["key"], "/a");
    assert_eq!(entries["entries"][0]["history"][0]["reason"], "miss");
    let locks = json("/cache/locks.json").await;
    let locks = locks["locks"].as_array().expect("is a list").iter();
    assert!(locks.map(|lock| &lock["name"]).any(|name| name == "import"));
    lease.release().await.expect("is released");

    let request = Request::get("/cache/live").header("user", "guest");
    let stream = it
        .send(request.body(Body::empty()).expect("a request"))
        .await;
    assert_eq!(stream.headers()[header::CONTENT_TYPE], "text/event-stream");
    let site = it.site.clone();
    let shutdown = it.shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        site.purge("/a").await.expect("is purged");
        tokio::time::sleep(Duration::from_secs(5)).await;
        shutdown.cancel();
    });
    let (_, text) = text(stream).await;
    assert!(text.matches("event: report").count() >= 2, "{text}");
    assert!(text.contains(">1</strong> stored pages"), "{text}");
    assert!(
        text.contains("event: happened\ndata: \"purged /a\""),
        "{text}"
    );
}

#[tokio::test]
async fn page_explains_whether_a_page_is_cached_and_generates_nothing() {
    let site = Site::new();
    for (path, user, expected) in [
        ("", "operator", "Write the path"),
        ("/a", "operator", "the request generates the first one"),
        ("/nowhere", "operator", "There is no such route"),
        ("/%20%3Cscript%3E", "operator", "is not a path"),
        ("/a", "guest", "only a user with full access"),
        ("/import", "guest", "only a user with full access"),
    ] {
        let (status, text) = site.get(&format!("/cache/explain?path={path}"), user).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(text.contains(expected), "{path}: {text}");
        assert!(!text.contains("<script>"), "{path}");
    }
    assert!(site.site.entry("/a").await.expect("answers").is_none());
    site.get("/a", "guest").await;
    // No layer answers for this path, so an explanation would run the handler. A guest may not
    // cause that.
    assert_eq!(site.imports.load(SeqCst), 0);
    let (_, text) = site.get("/cache/explain?path=/import", "operator").await;
    for shown in ["200 OK", "The route has no layer"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let (_, text) = site.get("/cache/explain?path=/a", "operator").await;
    for shown in ["hit", "is fresh", ">/a</a>", "books"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

/// The button's request has no cookie, so that it gets another page of the same path.
#[tokio::test(start_paused = true)]
async fn page_whose_request_is_not_known_is_regenerated_by_the_next_one() {
    let site = Site::new();
    let visit = async || {
        let request = Request::get("/prices").header("currency", "EUR");
        let request = request.body(Body::empty()).expect("a request");
        text(site.send(request).await).await.1
    };
    assert_eq!(visit().await, "currency=EUR 1");
    let (key, button) = ("/prices?currency=EUR", [("act", "regenerate")]);
    let fence = site.fence(key).await;
    let query = serde_urlencoded::to_string([("key", key), ("fence", &fence)]);
    let action = format!("/cache/act/entry?{}", query.expect("is encoded"));
    let response = site.send(post(&action, &button, "operator")).await;
    let place = response.headers()[header::LOCATION].to_str();
    let place = place.expect("is text").to_owned();
    assert!(place.ends_with("done=next-request"), "{place}");
    assert_eq!(site.state(key).await, Some(EntryState::Stale));
    assert_eq!(visit().await, "currency=EUR 2");
}

/// Each line is a path and the body of a form, which an operator sends.
#[test]
fn any_form_and_query_is_answered_and_escaped() {
    let path = prop_oneof![
        Just("/cache/act/entry"),
        Just("/cache/act/many"),
        Just("/cache/act/lock"),
        Just("/cache/many"),
        Just("/cache/entry"),
        Just("/cache/preview"),
        Just("/cache/explain"),
        Just("/cache/entries"),
        Just("/cache/locks"),
    ];
    let name = prop_oneof![
        Just("key"),
        Just("fence"),
        Just("act"),
        Just("what"),
        Just("name"),
        Just("kind"),
        Just("confirmed"),
        Just("path"),
        Just("after"),
        Just("state"),
        Just("prefix"),
    ];
    let value = prop_oneof![
        Just("/a".to_owned()),
        Just("invalidate".to_owned()),
        Just("purge".to_owned()),
        Just("regenerate".to_owned()),
        Just("tag".to_owned()),
        Just("true".to_owned()),
        Just("9223372036854775808".to_owned()),
        Just("-1".to_owned()),
        Just(SCRIPT.to_owned()),
        "[ -~]{0,12}",
        "%[0-9a-f]{2}",
    ];
    let pairs = || proptest::collection::vec((name.clone(), value.clone()), 0..4);
    let line = (path, pairs(), pairs()).prop_map(|(path, query, form)| {
        let [query, form] =
            [query, form].map(|it| serde_urlencoded::to_string(it).expect("is text"));
        format!("{path}?{query} {form}")
    });
    let inputs = proptest::collection::vec(line, 1..4);
    fuzz::lines(include_str!("corpus/forms.txt"), inputs, async |input| {
        let it = Site::new();
        it.visit().await;
        for line in input {
            let (path, form) = line.split_once(' ').unwrap_or((line, ""));
            for method in ["GET", "POST"] {
                let body = if method == "GET" { "" } else { form };
                let request = Request::builder()
                    .method(method)
                    .uri(path)
                    .header("user", "operator");
                let request = request
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .header(header::HOST, "site.example");
                let request = request
                    .body(Body::from(body.to_owned()))
                    .expect("a request");
                let response = it.send(request).await;
                let headers = response.headers().clone();
                let (status, page) = text(response).await;
                assert!(
                    !status.is_server_error(),
                    "{method} {line}: {status} {page}"
                );
                // When axum rejects a request, its response repeats the value, as plain text, so that no
                // browser takes it for a page.
                let plain = headers
                    .get(header::CONTENT_TYPE)
                    .is_some_and(|it| it == "text/plain; charset=utf-8");
                let as_it_is = plain && headers[header::X_CONTENT_TYPE_OPTIONS] == "nosniff";
                assert!(
                    as_it_is || !page.contains(SCRIPT),
                    "{method} {line}: {headers:?}"
                );
            }
        }
    });
}

/// What no page may contain as it is.
const SCRIPT: &str = "<script>alert(1)</script>";
