//! Requests with an idempotency key: one owner begins each, and its response stays.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use perennial_store::{Backend, Begin, Begun, Finish, Forget, PruneRequests, RequestProgress};
use tokio::task::JoinSet;

use crate::{
    TestDatabase,
    store::{ask, content},
};

const HOUR: Duration = Duration::from_secs(3600);

fn begin(name: &str, owner: &str) -> Begin {
    Begin::new(name, owner, "print", HOUR, 24 * HOUR, None)
}

/// Returns the state of a request: one word, or the body of its response.
async fn begun(store: &dyn Backend, begin: Begin) -> String {
    let fingerprint_sent = begin.fingerprint.clone();
    match ask(store, begin).await {
        Begun::Own => "own".to_owned(),
        Begun::Other { fingerprint, .. } if fingerprint != fingerprint_sent => fingerprint,
        Begun::Other { progress, .. } => match progress {
            RequestProgress::Running => "running".to_owned(),
            RequestProgress::Unknown => "unknown".to_owned(),
            RequestProgress::Done(None) => "not stored".to_owned(),
            RequestProgress::Done(Some(response)) => {
                let body = response.into_body();
                std::str::from_utf8(&body).expect("text").to_owned()
            }
        },
    }
}

async fn finish(store: &dyn Backend, name: &str, owner: &str, body: Option<&str>) -> bool {
    let finish = Finish::new(name, owner, body.map(content), 24 * HOUR);
    ask(store, finish).await
}

async fn forgotten(store: &dyn Backend, name: &str, owner: Option<&str>) -> bool {
    let forget = Forget::new(name, owner.map(str::to_owned));
    ask(store, forget).await
}

pub async fn request_is_begun_by_one_owner(db: impl TestDatabase) {
    let store = db.store().await;
    for round in 0..5 {
        let mut owners = JoinSet::new();
        for owner in 0..16 {
            let (store, name) = (store.clone(), format!("r{round}"));
            owners.spawn(async move { begun(&*store, begin(&name, &format!("o{owner}"))).await });
        }
        let replies = owners.join_all().await;
        let own = replies.iter().filter(|reply| *reply == "own");
        assert_eq!(own.count(), 1, "{replies:?}");
        let running = replies.iter().filter(|reply| *reply == "running");
        assert_eq!(running.count(), 15, "{replies:?}");
    }
    let other = Begin::new("r0", "late", "another print", HOUR, HOUR, None);
    assert_eq!(begun(&*store, other).await, "print");
}

pub async fn request_is_taken_over_only_after_its_time(db: impl TestDatabase) {
    let store = db.store().await;
    let again = |owner: &str, fingerprint: &str, hours| {
        Begin::new("r", owner, fingerprint, HOUR, 96 * HOUR, Some(hours * HOUR))
    };
    assert_eq!(begun(&*store, again("a", "print", 3)).await, "own");
    db.shift_clock(2 * 3600).await;
    assert_eq!(begun(&*store, begin("r", "b")).await, "unknown");
    assert_eq!(begun(&*store, again("b", "print", 3)).await, "unknown");
    assert_eq!(begun(&*store, again("b", "other", 1)).await, "print");
    assert_eq!(begun(&*store, again("b", "print", 1)).await, "own");
    assert!(!finish(&*store, "r", "a", Some("late")).await);
    assert_eq!(begun(&*store, again("c", "print", 1)).await, "running");
    assert!(finish(&*store, "r", "b", Some("paid")).await);
    db.shift_clock(12 * 3600).await;
    assert_eq!(begun(&*store, again("c", "print", 1)).await, "paid");
    // When the retention of the response is over, the key counts as new.
    db.shift_clock(13 * 3600).await;
    assert_eq!(begun(&*store, begin("r", "c")).await, "own");
    assert!(finish(&*store, "r", "c", Some("paid again")).await);
    assert_eq!(begun(&*store, begin("r", "d")).await, "paid again");
}

pub async fn first_response_of_the_owner_stays(db: impl TestDatabase) {
    let store = db.store().await;
    assert!(
        !finish(&*store, "r", "a", Some("none")).await,
        "nobody has begun it"
    );
    for _ in 0..2 {
        assert_eq!(begun(&*store, begin("r", "a")).await, "own");
    }
    assert!(!finish(&*store, "r", "b", Some("not mine")).await);
    assert!(finish(&*store, "r", "a", Some("paid")).await);
    for later in [None, Some("other")] {
        assert!(finish(&*store, "r", "a", later).await, "as before");
        assert!(!finish(&*store, "r", "b", later).await);
    }
    for owner in ["a", "b"] {
        assert_eq!(begun(&*store, begin("r", owner)).await, "paid");
    }
    assert_eq!(begun(&*store, begin("s", "a")).await, "own");
    assert!(finish(&*store, "s", "a", None).await);
    assert!(finish(&*store, "s", "a", Some("late")).await);
    assert_eq!(begun(&*store, begin("s", "b")).await, "not stored");
}

pub async fn request_that_has_not_finished_is_forgotten_by_its_owner(db: impl TestDatabase) {
    let store = db.store().await;
    for operator in [false, true] {
        let owner = (!operator).then_some("a");
        assert!(!forgotten(&*store, "r", owner).await);
        assert_eq!(begun(&*store, begin("r", "a")).await, "own");
        assert!(!forgotten(&*store, "r", Some("b")).await);
        assert!(forgotten(&*store, "r", owner).await);
        assert_eq!(
            begun(&*store, begin("r", "b")).await,
            "own",
            "the key is new"
        );
        assert!(finish(&*store, "r", "b", None).await);
        assert!(!forgotten(&*store, "r", Some("b")).await, "it is done");
        assert!(!forgotten(&*store, "r", None).await, "it is done");
        db.shift_clock(25 * 3600).await;
        assert_eq!(begun(&*store, begin("r", "c")).await, "own");
        assert!(forgotten(&*store, "r", None).await);
    }
}

pub async fn requests_are_pruned_in_batches(db: impl TestDatabase) {
    let store = db.store().await;
    for n in 0..10 {
        let name = format!("r{n}");
        assert_eq!(begun(&*store, begin(&name, "a")).await, "own");
        let retention = if n < 7 { HOUR } else { 9 * HOUR };
        let finish = Finish::new(&name, "a", None, retention);
        assert!(ask(&*store, finish).await);
    }
    assert_eq!(begun(&*store, begin("unfinished", "a")).await, "own");
    db.shift_clock(2 * 3600).await;
    // A request that has begun again keeps its row: the old retention no longer counts.
    assert_eq!(begun(&*store, begin("r0", "b")).await, "own");
    for expected in [4, 2, 0] {
        let pruned = ask(&*store, PruneRequests::new(4)).await;
        assert_eq!(pruned, expected);
    }
    for (name, expected) in [("r0", "running"), ("r1", "own"), ("r7", "not stored")] {
        assert_eq!(begun(&*store, begin(name, "c")).await, expected, "{name}");
    }
    assert_eq!(begun(&*store, begin("unfinished", "b")).await, "unknown");
}

pub async fn requests_have_any_name_and_any_response(db: impl TestDatabase) {
    let store = db.store().await;
    let long = "x".repeat(10_000);
    let body = Bytes::from(vec![0xff_u8; 300_000]);
    for name in ["", "a'$1\\ ?", "\u{e4}\0", &long, "A", "a", "a "] {
        assert_eq!(
            begun(&*store, begin(name, "o'$2\\")).await,
            "own",
            "{name:?}"
        );
        let response = content("").map(|_| body.clone());
        let finish = Finish::new(name, "o'$2\\", Some(response.clone()), HOUR);
        assert!(ask(&*store, finish).await);
        let Begun::Other {
            progress: RequestProgress::Done(Some(stored)),
            ..
        } = ask(&*store, begin(name, "b")).await
        else {
            panic!("{name:?} is not stored");
        };
        assert_eq!(stored.status(), response.status());
        assert_eq!(stored.headers(), response.headers());
        assert_eq!(stored.body(), response.body());
    }
    let empty = Response::new(Bytes::new());
    assert_eq!(begun(&*store, begin("empty", "a")).await, "own");
    let finish = Finish::new("empty", "a", Some(empty), HOUR);
    assert!(ask(&*store, finish).await);
    assert_eq!(begun(&*store, begin("empty", "b")).await, "");
    // Longer than any deadline.
    let forever = Begin::new(
        "ever",
        "a",
        "print",
        Duration::MAX,
        Duration::MAX,
        Some(Duration::MAX),
    );
    for owner in ["a", "b"] {
        let mut forever = forever.clone();
        forever.owner = owner.to_owned();
        let expected = if owner == "a" { "own" } else { "running" };
        assert_eq!(begun(&*store, forever).await, expected);
    }
}
