//! What visitors can cause to be stored, over a week of virtual time. The numbers are those of the
//! guide ("How much space"), with a small part of the default limit of keys, and of the visitors.

use std::time::Duration;

use axum::{Router, extract::Request, http::StatusCode};
use http::HeaderName;
use perennial::{Builder, ErrorKind, Key, Perennial, Refresh, layer::RefreshLayer};
use tokio::time::{Instant, sleep};

use perennial_testkit::{
    patient,
    virtual_time::{Shared, here},
};

/// The default is 10,000.
const KEYS: usize = 20;

const HOUR: Duration = Duration::from_hours(1);
const WEEK: Duration = Duration::from_hours(24 * 7);

/// The pause between two requests of a crawler whose requests are never refused: as many as fit
/// into two periods of half an hour.
const CRAWLER: Duration = Duration::from_secs(3600 / KEYS as u64 + 1);

struct Rows {
    pages: usize,
    locks: usize,
    bytes: u64,
}

struct Site {
    shared: Shared,
    site: Perennial,
    app: &'static Router,
}

impl Site {
    /// `/missing/…` and `/gone/…` are no pages, `/broken/…` fails, and `/private/…` is not stored.
    /// Each other path and query is a page of 1,000 bytes.
    fn new(builder: Builder, layered: impl Fn(RefreshLayer) -> RefreshLayer) -> Self {
        Self::of(Shared::new(), builder, layered)
    }

    fn of(
        shared: Shared,
        builder: Builder,
        layered: impl Fn(RefreshLayer) -> RefreshLayer,
    ) -> Self {
        let site = shared.open(builder);
        let page = async |request: Request| {
            let status = match request.uri().path().split('/').nth(1) {
                Some("missing") => StatusCode::NOT_FOUND,
                Some("gone") => StatusCode::GONE,
                Some("broken") => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::OK,
            };
            let control = if request.uri().path().starts_with("/private/") {
                "private"
            } else {
                "no-cache"
            };
            (status, [("cache-control", control)], vec![b'x'; 1000])
        };
        let layer = site.layer(Refresh::every(perennial::DAY)).max_keys(KEYS);
        let app = here(Router::new().fallback(page).layer(layered(layer)));
        Self { shared, site, app }
    }

    async fn get(&self, path: &str) -> perennial_testkit::Reply {
        perennial_testkit::get(self.app, path).await
    }

    async fn rows(&self) -> Rows {
        let counted = self.site.counted().await.expect("answers");
        Rows {
            pages: counted.pages as usize,
            locks: self.shared.page_locks(),
            bytes: counted.weight(),
        }
    }

    /// Lets a crawler ask for a path for each number, and somebody for a page, during a week.
    /// Returns the most rows that there were at the end of an hour.
    async fn week(&self, path: impl Fn(usize) -> String) -> Rows {
        let begun = Instant::now();
        let (mut number, mut hour) = (0, HOUR);
        let mut most = self.rows().await;
        while begun.elapsed() < WEEK {
            self.get(&path(number)).await;
            number += 1;
            self.get("/real").await;
            sleep(CRAWLER).await;
            if begun.elapsed() >= hour {
                hour += HOUR;
                let rows = self.rows().await;
                most.pages = most.pages.max(rows.pages);
                most.locks = most.locks.max(rows.locks);
                most.bytes = most.bytes.max(rows.bytes);
            }
        }
        assert!(number > 3_000, "{number}");
        most
    }
}

#[tokio::test(start_paused = true)]
async fn crawler_of_unknown_paths_leaves_the_rows_of_two_hours() {
    let site = Site::new(patient(), |layer| layer);
    let once = site.week(|number| match number % 2 {
        0 => format!("/missing/{number}"),
        _ => format!("/gone/{number}"),
    });
    let once = once.await;
    assert!(once.pages <= 3 * KEYS, "{}", once.pages);
    assert!(once.locks <= 3 * KEYS, "{}", once.locks);
    let twice = site.week(|number| format!("/missing/twice/{}", number / 2));
    let twice = twice.await;
    assert!(twice.pages <= 6 * KEYS, "{}", twice.pages);
    assert!(twice.locks <= 6 * KEYS, "{}", twice.locks);
    // The keys of the crawler do not affect the site's real page, which was generated once a day,
    // in two weeks.
    assert_eq!(site.shared.generations("/real"), 14);
}

#[tokio::test(start_paused = true)]
async fn crawler_of_paths_that_store_nothing_leaves_the_locks_of_two_hours() {
    for kind in ["broken", "private"] {
        let site = Site::new(patient(), |layer| layer);
        let rows = site.week(|number| format!("/{kind}/{number}")).await;
        assert_eq!(rows.pages, 1, "{kind}");
        assert!(rows.locks <= 3 * KEYS, "{kind}: {}", rows.locks);
    }
}

#[tokio::test(start_paused = true)]
async fn restarted_process_removes_what_a_crawler_has_left_before() {
    let builder = || patient().revision("1");
    let before = Site::new(builder(), |layer| layer);
    for number in 0..KEYS / 2 {
        before.get(&format!("/missing/{number}")).await;
    }
    let after = Site::of(before.shared.clone(), builder(), |layer| layer);
    for _ in 0..25 {
        sleep(HOUR / 10).await;
        after.get("/real").await;
    }
    assert_eq!(after.rows().await.pages, 1);
}

/// A scanner asks for thousands of paths within minutes, each day.
#[tokio::test(start_paused = true)]
async fn scanner_leaves_the_rows_of_the_keys_that_are_admitted() {
    let site = Site::new(patient(), |layer| layer);
    for day in 0..7 {
        for number in 0..20 * KEYS {
            site.get(&format!("/missing/{day}/{number}")).await;
            site.get(&format!("/gone/{day}/{}", number / 2)).await;
        }
        let rows = site.rows().await;
        // At most `KEYS` keys are stored after a single request, and at most as many that were
        // requested again.
        assert!(rows.pages <= 2 * KEYS, "day {day}: {}", rows.pages);
        for _ in 0..24 {
            sleep(HOUR).await;
            site.get("/real").await;
        }
        assert_eq!(site.rows().await.pages, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn invented_queries_of_a_page_fill_the_store_up_to_its_capacity() {
    const CAPACITY: u64 = 1 << 20;
    let site = Site::new(patient().store_capacity(CAPACITY), |layer| layer);
    let rows = site.week(|number| format!("/page?q={number}")).await;
    // Pages that were published in the minute before the next check may exceed the capacity.
    assert!(rows.bytes <= CAPACITY + 3 * 3048, "{}", rows.bytes);
    assert!(rows.pages as u64 <= CAPACITY / 2048, "{}", rows.pages);
    assert_eq!(site.shared.generations("/real"), 7);
}

/// Returns the path and the header of a request whose key has this length.
type OfLength = fn(usize) -> (String, String);

/// RFC 9110 §4.1 recommends to support URIs of 8,000 bytes: they are answered, and not stored.
#[tokio::test(start_paused = true)]
async fn a_key_has_four_kibibytes() {
    fn x(length: usize) -> String {
        "x".repeat(length)
    }
    const THEME: HeaderName = HeaderName::from_static("x-theme");
    let plain = Site::new(patient(), |layer| layer);
    let keyed = Site::new(patient(), |layer| layer.key(Key::new().header(THEME)));
    let by_function = Site::new(patient(), |layer| {
        layer.key(Key::by(|parts| {
            let theme = parts.headers.get(THEME)?.to_str().ok()?;
            Some([("theme", theme.to_owned())])
        }))
    });
    let cases: [(&Site, &str, OfLength); 5] = [
        (&plain, "a path", |length| {
            (format!("/{}", x(length - 1)), String::new())
        }),
        (&plain, "a query", |length| {
            (format!("/?{}", x(length - 2)), String::new())
        }),
        (&plain, "encodings of three bytes", |length| {
            (
                format!("/?{}{}", "+".repeat(900), x(length - 2702)),
                String::new(),
            )
        }),
        (&keyed, "a header", |length| {
            ("/".into(), x(length - "/#&x-theme=".len()))
        }),
        (&by_function, "a function", |length| {
            ("/".into(), x(length - "/?theme=".len()))
        }),
    ];
    for (site, kind, of_length) in cases {
        let before = site.rows().await;
        for (length, is_stored) in [(4096, true), (4097, false), (8000, false), (60_000, false)] {
            let (path, theme) = of_length(length);
            for _ in 0..2 {
                let reply =
                    perennial_testkit::request(site.app, "GET", &path, &[("x-theme", &theme)])
                        .await;
                assert_eq!((reply.status, reply.body.len()), (200, 1000), "{kind}");
                let status = reply.header("cache-status");
                assert_eq!(
                    status.ends_with("detail=no-key"),
                    !is_stored,
                    "{kind}: {status}"
                );
            }
        }
        let rows = site.rows().await;
        assert_eq!(rows.pages - before.pages, 1, "{kind}");
        assert_eq!(rows.locks - before.locks, 1, "{kind}");
    }
}

/// RFC 9111 §4.4: the page is invalidated, though this request itself is answered by the service.
#[tokio::test(start_paused = true)]
async fn unsafe_request_with_a_long_header_of_the_key_invalidates() {
    const THEME: HeaderName = HeaderName::from_static("x-theme");
    let site = Site::new(patient(), |layer| {
        layer.key(Key::new().header(THEME)).invalidate_on_unsafe()
    });
    for (length, generations) in [(10, 1), (5000, 2), (60_000, 3)] {
        site.get("/page").await;
        assert_eq!(site.shared.generations("/page"), generations);
        let theme = "x".repeat(length);
        let reply =
            perennial_testkit::request(site.app, "POST", "/page", &[("x-theme", &theme)]).await;
        assert_eq!(reply.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_content_has_four_kibibytes() {
    let site = Shared::new().site();
    let content = async |length| {
        let make = async || Ok::<_, std::io::Error>("content");
        let policy = Refresh::every(perennial::DAY);
        let content = site.content(&"x".repeat(length), policy, make).await;
        content.map_err(|error| (error.kind(), error.to_string()))
    };
    assert!(content(4096).await.is_ok());
    let (kind, text) = content(4097).await.expect_err("is too long");
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(
        text.contains("4097 bytes") && text.contains("digest"),
        "{text}"
    );
}
