//! The figures that the processes of a site share.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    http::{StatusCode, Uri},
};
use perennial::{
    DAY, Perennial, Refresh,
    event::{FailedRegeneration, Outcome},
};
use perennial_testing::{Database, advance};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn process(database: &Database, revision: &str) -> Perennial {
    let opened = database.open(Perennial::builder().revision(revision));
    opened.expect("opens")
}

async fn visit(site: &Perennial) {
    let content = async || Ok::<_, Infallible>("content");
    site.content("key", DAY, content).await.expect("is made");
}

/// Returns the revisions of the listed processes, with the number of pages that they have stored.
async fn listed(site: &Perennial) -> Vec<(String, u64)> {
    let processes = site.processes().await.expect("answers").into_iter();
    let figures = processes.map(|it| {
        assert!(it.label.contains(':') && !it.version.is_empty(), "{it:?}");
        (
            it.revision.expect("is set"),
            it.stats.regenerations(Outcome::Stored),
        )
    });
    let mut figures: Vec<_> = figures.collect();
    figures.sort();
    figures
}

fn pairs<const N: usize>(pairs: [(&str, u64); N]) -> Vec<(String, u64)> {
    pairs
        .map(|(revision, stored)| (revision.to_owned(), stored))
        .to_vec()
}

#[tokio::test(start_paused = true)]
async fn each_process_sees_the_figures_of_all_that_share_theirs() {
    let database = Database::new();
    let [one, two, silent] = ["1", "2", "3"].map(|revision| process(&database, revision));
    advance(60 * SECOND).await;
    assert!(listed(&one).await.is_empty(), "nobody shares anything");
    one.share_stats();
    one.share_stats();
    two.share_stats();
    visit(&one).await;
    visit(&two).await;
    visit(&silent).await;
    advance(11 * SECOND).await;
    for site in [&one, &two, &silent] {
        assert_eq!(listed(site).await, pairs([("1", 1), ("2", 0)]));
    }
    // An idle process stays in the list.
    advance(2 * HOUR).await;
    let processes = silent.processes().await.expect("answers");
    assert_eq!(processes.len(), 2);
    for process in processes {
        assert!(process.silent_for <= 10 * SECOND, "{process:?}");
        assert!(process.up_for >= 2 * HOUR, "{process:?}");
    }
}

/// Otherwise the figures of the last hour would begin anew with each deploy.
#[tokio::test(start_paused = true)]
async fn process_that_ended_or_crashed_keeps_its_last_figures_for_an_hour() {
    let database = Database::new();
    let [one, ended, crashed] = ["1", "2", "3"].map(|revision| process(&database, revision));
    for site in [&one, &ended, &crashed] {
        site.share_stats();
    }
    advance(SECOND).await;
    assert_eq!(listed(&one).await.len(), 3);
    visit(&ended).await;
    ended.shutdown().await;
    // Dropped without a shutdown.
    drop((ended, crashed));
    advance(HOUR / 2).await;
    assert_eq!(listed(&one).await, pairs([("1", 0), ("2", 1), ("3", 0)]));
    for process in one.processes().await.expect("answers") {
        let revision = process.revision.as_deref();
        let is_silent = process.silent_for >= HOUR / 2 - 11 * SECOND;
        assert_eq!(is_silent, revision != Some("1"), "{process:?}");
        assert_eq!(process.ended, revision == Some("2"), "{process:?}");
        let regenerations: u64 = process.last_hour.iter().map(|it| it.regenerations).sum();
        assert_eq!(regenerations, u64::from(process.ended), "{process:?}");
    }
    advance(HOUR).await;
    assert_eq!(listed(&one).await, pairs([("1", 0)]));
    let late = process(&database, "4");
    late.share_stats();
    advance(SECOND).await;
    assert_eq!(listed(&one).await, pairs([("1", 0), ("4", 0)]));
}

#[tokio::test(start_paused = true)]
async fn database_that_fails_delays_the_figures_and_the_shutdown_alone() {
    let database = Database::new();
    let site = process(&database, "1");
    database.fail();
    site.share_stats();
    advance(60 * SECOND).await;
    assert!(site.processes().await.is_err());
    visit(&site).await;
    database.recover();
    advance(11 * SECOND).await;
    assert_eq!(listed(&site).await.len(), 1);
    database.fail();
    site.shutdown().await;
    database.recover();
    // No write comes after the shutdown.
    let late = process(&database, "2");
    advance(60 * SECOND).await;
    let listed = late.processes().await.expect("answers");
    assert!(listed[0].silent_for >= 60 * SECOND, "{listed:?}");
}

#[tokio::test(start_paused = true)]
async fn process_gives_signs_of_life_while_its_shutdown_waits() {
    let database = Database::new();
    let [ending, other] = ["1", "2"].map(|revision| process(&database, revision));
    ending.share_stats();
    let slow = async || {
        tokio::time::sleep(25 * SECOND).await;
        Ok::<_, Infallible>("content")
    };
    let content = ending.content("slow", DAY, slow);
    let sees = async {
        advance(SECOND).await;
        let shutdown = ending.shutdown();
        let during = async {
            advance(20 * SECOND).await;
            other.processes().await.expect("answers")
        };
        tokio::join!(shutdown, during).1
    };
    let (_, during) = tokio::join!(content, sees);
    assert!(
        !during[0].ended && during[0].silent_for <= 11 * SECOND,
        "{during:?}"
    );
    let after = other.processes().await.expect("answers");
    assert!(after[0].ended, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_waited_are_counted_apart() {
    let database = Database::new();
    let site = process(&database, "1");
    site.share_stats();
    let page = async |uri: Uri| match uri.path() {
        "/page" => Ok("a page"),
        _ => Err(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let policy = Refresh::every(20 * SECOND).in_background();
    let app = Router::new().fallback(page).layer(site.layer(policy));
    // The page is generated, then it is a hit, and `/fails` fails without an old version. After
    // that, the page is stale and is served at once.
    for path in ["/page", "/page", "/fails"] {
        perennial_testkit::get(&app, path).await;
    }
    advance(21 * SECOND).await;
    perennial_testkit::get(&app, "/page").await;
    advance(11 * SECOND).await;
    let processes = site.processes().await.expect("answers");
    let minutes = processes[0].last_hour.iter();
    let figures = minutes.fold([0; 4], |[requests, hits, stale, waited], it| {
        let waited = waited + it.waited;
        [
            requests + it.requests,
            hits + it.hits,
            stale + it.stale,
            waited,
        ]
    });
    assert_eq!(figures, [4, 1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn latest_failures_of_a_process_stay_known_after_their_cooldown() {
    let database = Database::new();
    let site = process(&database, "1");
    site.share_stats();
    let fails = async |error: String| {
        let key = format!("key of {}", error.chars().take(5).collect::<String>());
        let failed = site.content(&key, DAY, async || Err::<&str, _>(error));
        assert!(failed.await.is_err());
    };
    for number in 0..5 {
        fails(format!("{number}")).await;
    }
    advance(HOUR).await;
    fails("long".repeat(100)).await;
    visit(&site).await;
    advance(MINUTE).await;
    let processes = site.processes().await.expect("answers");
    let failures = &processes[0].failures;
    let errors: Vec<_> = failures.iter().map(|it| it.error.as_str()).collect();
    assert_eq!(errors[1..], ["4", "3", "2", "1"]);
    assert!(errors[0].starts_with("longlong") && errors[0].chars().count() == 201);
    assert_eq!(failures[4].key, "key of 1");
    let ago = |failure: &FailedRegeneration| failure.ago.as_secs();
    assert!((60..=71).contains(&ago(&failures[0])), "{failures:?}");
    assert!((3660..=3671).contains(&ago(&failures[1])), "{failures:?}");
    assert!(failures[0].is_of(&failures[0].key) && !failures[0].is_of("key of 4"));

    // A page that fails again and again displaces no other one.
    for _ in 0..3 {
        fails("4".to_owned()).await;
        advance(HOUR).await;
    }
    let processes = site.processes().await.expect("answers");
    let failures = processes[0].failures.iter();
    let errors: Vec<_> = failures.map(|it| &it.error[..1]).collect();
    assert_eq!(errors, ["4", "l", "3", "2", "1"]);
    advance(24 * HOUR).await;
    let processes = site.processes().await.expect("answers");
    assert_eq!(processes[0].failures, [], "a day has passed");
}

#[tokio::test(start_paused = true)]
async fn figures_of_the_last_hour_are_those_of_its_minutes() {
    let database = Database::new();
    let site = process(&database, "1");
    site.share_stats();
    let last_hour = async || {
        let processes = site.processes().await.expect("answers");
        let minutes = processes[0].last_hour.iter();
        let minutes = minutes.map(|it| (it.regenerations, it.failures));
        minutes.collect::<Vec<_>>()
    };
    visit(&site).await;
    advance(3 * MINUTE).await;
    let fails = async || Err::<&str, _>("is broken");
    assert!(site.content("other", DAY, fails).await.is_err());
    advance(MINUTE).await;
    assert_eq!(
        last_hour().await,
        [(1, 0), (1, 1)],
        "idle minutes are left out"
    );
    advance(57 * MINUTE).await;
    assert_eq!(last_hour().await, [(1, 1)], "the first one is an hour old");
    advance(HOUR).await;
    assert_eq!(last_hour().await, []);
}
