//! Content that is not a whole response is generated and cached as pages are.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use perennial::{Error, ErrorKind, Perennial, Refresh};
use tower::ServiceExt;

use crate::support::{Folder, Origin, patient, until};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn failure_has_its_source_for_all_waiters_and_replaces_no_old_version() {
    let folder = Folder::new();
    let site = folder.site().await;
    let policy = Refresh::every(SHORT).cooldown(LONG);
    let failing = |key: &'static str| {
        let site = site.clone();
        async move {
            site.content(key, &policy, || async {
                tokio::time::sleep(SHORT).await;
                Err::<&str, _>(std::io::Error::other("the shelf is empty"))
            })
            .await
        }
    };
    let (one, two) = tokio::join!(failing("cold"), failing("cold"));
    for error in [one.expect_err("fails"), two.expect_err("fails")] {
        assert_eq!(error.kind(), ErrorKind::Generator, "{error}");
        let source = error.source().expect("is kept");
        assert_eq!(source.to_string(), "the shelf is empty");
    }
    let error = failing("cold").await.expect_err("is in cooldown");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    let made = site
        .content("warm", &policy, || async { Ok::<_, Error>("fine") })
        .await;
    made.expect("is made");
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(failing("warm").await.expect("is served").text(), "fine");
}

#[tokio::test]
async fn a_key_that_cannot_be_used_and_content_that_is_too_large_are_errors() {
    let folder = Folder::new();
    let builder = patient().max_body(10);
    let site = builder.open(&folder.url()).await.expect("opens");
    let policy = Refresh::every(LONG);
    for key in ["", "/", "/best-sellers"] {
        let made = site
            .content(key, &policy, || async { Ok::<_, Error>("fine") })
            .await;
        assert_eq!(made.expect_err(key).kind(), ErrorKind::Invalid);
    }
    let made = site
        .content("large", &policy, || async { Ok::<_, Error>(vec![0; 11]) })
        .await;
    let error = made.expect_err("is too large");
    assert!(
        format!("{error:#}").contains("11 bytes") && format!("{error:#}").contains("max_body"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_who_leaves_cancels_nothing() {
    let folder = Folder::new();
    let (site, origin) = (folder.site().await, Origin::default());
    let policy = Refresh::every(LONG);
    let content = async || {
        let origin = origin.clone();
        let run = async move || Ok::<_, Error>(origin.run("it").await.1);
        site.content("sidebar", &policy, run).await
    };
    origin.hold();
    tokio::select! {
        _ = content() => unreachable!("it is held"),
        () = until("it generates", async || origin.begun() == 1) => {}
    }
    origin.let_go();
    assert_eq!(content().await.expect("is made").text(), "run 1 of it");
    assert_eq!(origin.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_panics_is_a_failure_of_the_generator() {
    let site = perennial_testing::Database::new().open(Perennial::builder());
    let site = site.expect("opens");
    let policy = Refresh::every(LONG);
    let panics = || -> std::future::Ready<Result<String, Error>> { panic!("on purpose") };
    let failed = site.content("sidebar", &policy, panics).await;
    assert_eq!(failed.expect_err("panics").kind(), ErrorKind::Generator);
    perennial_testing::advance(Duration::from_secs(2)).await;
    let fine = site.content("sidebar", &policy, || async { Ok::<_, Error>("fine") });
    assert_eq!(fine.await.expect("is made").text(), "fine");
}

/// A page with a part that takes longer than the soft timeout: the page that is generated from the
/// old part does not last.
#[tokio::test(start_paused = true)]
async fn a_page_with_a_stale_part_is_stale_soon() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let runs = Arc::new(AtomicUsize::new(0));
    let part = {
        let (site, runs) = (site.clone(), Arc::clone(&runs));
        move || {
            let (site, runs) = (site.clone(), Arc::clone(&runs));
            async move {
                let list = site.content("list", Refresh::every(LONG), async move || {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    Ok::<_, Error>(format!("list {}", runs.fetch_add(1, SeqCst) + 1))
                });
                list.await.expect("is generated").to_string()
            }
        }
    };
    let app = Router::new().route("/", get(part).layer(site.layer(Refresh::every(LONG))));
    let visit = async || body(&app).await;
    assert_eq!(visit().await, "list 1");
    perennial_testing::advance(LONG).await;
    // The page is generated from the old list, after the list's soft timeout.
    assert_eq!(visit().await, "list 1");
    perennial_testing::advance(Duration::from_secs(2)).await;
    assert_eq!(visit().await, "list 1");
    perennial_testing::advance(Duration::from_secs(3)).await;
    assert_eq!(visit().await, "list 2");
    // The page without a stale part lasts.
    let generations = database.generations("/");
    perennial_testing::advance(LONG / 2).await;
    assert_eq!(visit().await, "list 2");
    assert_eq!(database.generations("/"), generations);
}

#[tokio::test(start_paused = true)]
async fn a_stale_part_does_not_lengthen_a_declared_interval() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let page = {
        let site = site.clone();
        move || {
            let site = site.clone();
            async move {
                let list = site.content_or("list", Refresh::every(LONG), "soon", async || {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Ok::<_, Error>("the list")
                });
                let list = list.await.expect("is there").to_string();
                ([("cache-control", "max-age=1")], list)
            }
        }
    };
    let policy = Refresh::from_headers(LONG);
    let app = Router::new().route("/", get(page).layer(site.layer(policy)));
    for generations in 1..=2 {
        assert_eq!(body(&app).await, "soon");
        assert_eq!(database.generations("/"), generations);
        perennial_testing::advance(Duration::from_secs(2)).await;
    }
}

async fn body(app: &Router) -> String {
    let request = Request::get("/").body(Body::empty()).expect("a request");
    let response = app.clone().oneshot(request).await.expect("infallible");
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}
