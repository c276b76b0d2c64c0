//! A test suite to copy. Each test has a site and a database of its own, in memory, and a clock that
//! only the test moves: no test waits, and none depends on another.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use perennial::{
    DAY, Mode, Perennial,
    event::{Event, Outcome},
};
use perennial_testing::{Database, advance};
use tested_site::{Shop, app};
use tower::ServiceExt;

/// A site for one test.
struct Site {
    database: Database,
    site: Perennial,
    shop: Shop,
    app: Router,
}

impl Site {
    fn new() -> Self {
        let database = Database::new();
        // Whatever the environment says.
        let builder = Perennial::builder().mode(Mode::On);
        let site = database.open(builder).expect("opens");
        let shop = Shop::default();
        let app = app(&site, shop.clone());
        Self {
            database,
            site,
            shop,
            app,
        }
    }

    async fn ask(&self, method: &str, path: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let response = self.app.clone().oneshot(request).await;
        let (head, body) = response.expect("is infallible").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        (head.status, String::from_utf8_lossy(&body).into_owned())
    }

    async fn visit(&self, path: &str) -> String {
        let (_, body) = self.ask("GET", path).await;
        // Without the form.
        body.lines().next().unwrap_or_default().to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_is_generated_once_a_month() {
    let site = Site::new();
    for _ in 0..3 {
        assert_eq!(site.visit("/books").await, "<h1>0 books</h1>");
    }
    assert_eq!(site.database.generations("/books"), 1);
    site.shop.add_book();
    advance(29 * DAY).await;
    assert_eq!(site.visit("/books").await, "<h1>0 books</h1>");
    advance(2 * DAY).await;
    assert_eq!(site.visit("/books").await, "<h1>1 books</h1>");
    assert_eq!(site.database.generations("/books"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_book_is_on_the_list_at_once() {
    let site = Site::new();
    site.visit("/books").await;
    assert_eq!(site.ask("POST", "/books").await.0, StatusCode::SEE_OTHER);
    assert_eq!(site.visit("/books").await, "<h1>1 books</h1>");
}

#[tokio::test(start_paused = true)]
async fn visitors_get_the_old_list_while_the_shop_fails() {
    let site = Site::new();
    let mut events = site.site.subscribe();
    site.visit("/books").await;
    site.shop.close(true);
    advance(31 * DAY).await;
    assert_eq!(site.visit("/books").await, "<h1>0 books</h1>");
    let failed = std::iter::from_fn(|| events.try_next()).any(
        |event| matches!(event, Event::Regenerated(ended) if ended.outcome == Outcome::Failed),
    );
    assert!(failed, "the failure is an event");
    // The next try comes after the cooldown.
    site.shop.close(false);
    site.shop.add_book();
    assert_eq!(site.visit("/books").await, "<h1>0 books</h1>");
    advance(Duration::from_secs(30)).await;
    assert_eq!(site.visit("/books").await, "<h1>1 books</h1>");
}

#[tokio::test(start_paused = true)]
async fn without_an_old_list_visitors_see_the_failure() {
    let site = Site::new();
    site.shop.close(true);
    let (status, body) = site.ask("GET", "/books").await;
    assert_eq!((status.as_u16(), &*body), (500, "the shop is closed"));
    assert_eq!(
        site.ask("GET", "/totals").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test(start_paused = true)]
async fn the_database_may_fail() {
    let site = Site::new();
    site.visit("/books").await;
    site.visit("/totals").await;
    site.database.hang();
    advance(31 * DAY).await;
    assert_eq!(site.visit("/books").await, "<h1>0 books</h1>");
    assert_eq!(site.visit("/totals").await, "0 in all");
    site.database.recover();
    site.shop.add_book();
    advance(Duration::from_secs(60)).await;
    assert_eq!(site.visit("/books").await, "<h1>1 books</h1>");
}

#[tokio::test(start_paused = true)]
async fn two_processes_generate_a_value_once() {
    let site = Site::new();
    assert_eq!(site.visit("/totals").await, "0 in all");
    let other = site.database.open(Perennial::builder().mode(Mode::On));
    let other = app(&other.expect("opens"), site.shop.clone());
    let request = Request::get("/totals").body(Body::empty());
    let response = other.oneshot(request.expect("a request")).await;
    assert_eq!(response.expect("is infallible").status(), StatusCode::OK);
    assert_eq!(site.database.generations("totals"), 1);
}
