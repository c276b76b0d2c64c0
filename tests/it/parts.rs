//! Parts of pages, through several levels: staleness, and the limit of regenerations at once.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use perennial::{Builder, Error, Perennial, Refresh};
use tower::ServiceExt;

const HOUR: Refresh = Refresh::every(Duration::from_hours(1));
const SECOND: Duration = Duration::from_secs(1);

/// A page with the part `middle`, which has the part `lowest`. The lowest part is the datum of its
/// generation, and takes two seconds.
#[derive(Clone)]
struct Levels {
    site: Perennial,
    datum: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    as_values: bool,
    placeholder: bool,
}

impl Levels {
    fn of(database: &perennial_testing::Database, builder: Builder) -> Self {
        Self {
            site: database.open(builder).expect("opens"),
            datum: Arc::new(AtomicUsize::new(1)),
            fails: Arc::default(),
            as_values: false,
            placeholder: false,
        }
    }

    async fn lowest(self) -> Result<String, Error> {
        let Self {
            site, datum, fails, ..
        } = self;
        let generate = move || async move {
            tokio::time::sleep(2 * SECOND).await;
            match fails.load(SeqCst) {
                true => Err("there is no datum"),
                false => Ok(datum.load(SeqCst).to_string()),
            }
        };
        if self.as_values {
            let value = site.value::<String, _, _>("lowest", HOUR, generate).await;
            return value.map(|value| value.to_string());
        }
        let content = match self.placeholder {
            true => site.content_or("lowest", HOUR, "soon", generate).await,
            false => site.content("lowest", HOUR, generate).await,
        };
        content.map(|content| content.to_string())
    }

    async fn middle(self) -> Result<String, Error> {
        let (site, as_values) = (self.site.clone(), self.as_values);
        let generate = move || async move {
            let lowest = self.lowest().await.unwrap_or_else(|_| "none".into());
            Ok::<_, Infallible>(format!("a[{lowest}]"))
        };
        if as_values {
            let value = site.value::<String, _, _>("middle", HOUR, generate).await;
            return value.map(|value| value.to_string());
        }
        let content = site.content("middle", HOUR, generate).await;
        content.map(|content| content.to_string())
    }

    fn app(&self) -> Router {
        let levels = self.clone();
        let page = move || {
            let levels = levels.clone();
            async move {
                let middle = levels.middle().await.expect("is generated");
                format!("page[{middle}]")
            }
        };
        let layer = self.site.layer(HOUR);
        Router::new().route("/", get(page).layer(layer))
    }

    async fn invalidate_all(&self) {
        for name in ["lowest", "middle", "/"] {
            self.site.invalidate(name).await.expect("is invalidated");
        }
    }
}

async fn visit(app: &Router) -> String {
    let request = Request::get("/").body(Body::empty()).expect("a request");
    let response = app.clone().oneshot(request).await.expect("infallible");
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

/// Visits the page once a second for a time, and returns the last answer.
async fn visit_for(app: &Router, time: Duration) -> String {
    for _ in 0..time.as_secs() {
        visit(app).await;
        perennial_testing::advance(SECOND).await;
    }
    visit(app).await
}

#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_has_a_stale_part() {
    for as_values in [false, true] {
        let database = perennial_testing::Database::new();
        let mut levels = Levels::of(&database, Perennial::builder());
        levels.as_values = as_values;
        let app = levels.app();
        assert_eq!(visit_for(&app, 10 * SECOND).await, "page[a[1]]");
        levels.datum.store(2, SeqCst);
        levels.invalidate_all().await;
        assert_eq!(visit_for(&app, 20 * SECOND).await, "page[a[2]]");
        // The page of fresh parts lasts.
        let generations = database.generations("/");
        visit_for(&app, 60 * SECOND).await;
        assert_eq!(database.generations("/"), generations);
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_has_a_placeholder() {
    let database = perennial_testing::Database::new();
    let mut levels = Levels::of(&database, Perennial::builder());
    levels.placeholder = true;
    let app = levels.app();
    assert_eq!(visit(&app).await, "page[a[soon]]");
    assert_eq!(visit_for(&app, 20 * SECOND).await, "page[a[1]]");
}

/// The handler serves a page without the part that has failed.
#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_lacks_a_part_that_failed() {
    for as_values in [false, true] {
        let database = perennial_testing::Database::new();
        let mut levels = Levels::of(&database, Perennial::builder());
        levels.as_values = as_values;
        levels.fails.store(true, SeqCst);
        let app = levels.app();
        assert_eq!(visit(&app).await, "page[a[none]]");
        levels.fails.store(false, SeqCst);
        assert_eq!(visit_for(&app, 60 * SECOND).await, "page[a[1]]");
    }
}

/// The parts run on the permit of the page, at any depth.
#[tokio::test(start_paused = true)]
async fn stale_parts_are_regenerated_with_a_limit_of_one() {
    for as_values in [false, true] {
        let database = perennial_testing::Database::new();
        let mut levels = Levels::of(&database, Perennial::builder().max_regenerations(1));
        levels.as_values = as_values;
        let app = levels.app();
        assert_eq!(visit_for(&app, 10 * SECOND).await, "page[a[1]]");
        levels.datum.store(2, SeqCst);
        levels.invalidate_all().await;
        assert_eq!(visit_for(&app, 30 * SECOND).await, "page[a[2]]");
    }
}

/// A part that outlasts its page keeps the permit: it is a generator that runs.
#[tokio::test(start_paused = true)]
async fn a_part_that_outlasts_its_page_keeps_the_permit() {
    let database = perennial_testing::Database::new();
    let levels = Levels::of(&database, Perennial::builder().max_regenerations(1));
    let other = || {
        let site = levels.site.clone();
        let datum = Arc::clone(&levels.datum);
        async move {
            let generate =
                move || async move { Ok::<_, Infallible>(datum.load(SeqCst).to_string()) };
            let content = site.content("other", HOUR, generate).await;
            content.expect("is generated").to_string()
        }
    };
    let middle = || levels.clone().middle();
    assert_eq!(middle().await.expect("is generated"), "a[1]");
    assert_eq!(other().await, "1");
    levels.datum.store(2, SeqCst);
    levels.invalidate_all().await;
    levels
        .site
        .invalidate("other")
        .await
        .expect("is invalidated");
    // After the soft timeout of the lowest part, the middle part is generated from the old datum.
    assert_eq!(middle().await.expect("is served"), "a[1]");
    assert_eq!(other().await, "1");
    perennial_testing::advance(3 * SECOND).await;
    assert_eq!(other().await, "2");
}
