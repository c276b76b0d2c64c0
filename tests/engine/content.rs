//! Content that is not a whole response is generated and cached as pages are.

use std::{error::Error as _, time::Duration};

use perennial::{Error, ErrorKind, Perennial, Refresh};

use perennial_testkit::{Folder, Origin, patient, until};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn failure_has_its_source_for_all_waiters_and_replaces_no_old_version() {
    let folder = Folder::new();
    let site = folder.site().await;
    let policy = Refresh::every(SHORT).cooldown(LONG);
    let failing = |key: &'static str| {
        let (site, policy) = (site.clone(), policy.clone());
        async move {
            site.content(key, policy, || async {
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
