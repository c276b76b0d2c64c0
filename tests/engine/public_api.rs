//! The shape of the public API.

use std::collections::HashSet;

use axum::Router;
use futures_util::StreamExt;
use perennial::{
    Builder, Content, Error, ErrorKind, Key, Mode, Perennial, Refresh, RefreshAfter, Tags,
    entries::{Entry, EntryFilter, EntryPage, EntryState, PastVersion},
    event::{Bypass, Event, Events, LockLoss, Outcome, Reason, Regeneration, Served, Stats},
    layer::{
        InvalidateLayer, InvalidateService, RefreshLayer, RefreshService, ResponseBody,
        ResponseFuture,
    },
    locks::{Fence, Holder, Lease, LockInfo, LockKind, LockName, Locks},
    sql::Database,
};
use perennial_idempotency::{IdempotencyLayer, IdempotencyService, Scope};
use perennial_jobs::{
    Claim, Claims, ExclusiveLayer, ExclusiveService, Once, OnceOutcome, SessionLock, Value,
};

#[test]
fn public_types_are_send_and_sync() {
    // A tuple is if its members are.
    fn shared<T: Send + Sync + 'static>() {}
    shared::<(
        Builder,
        Content,
        Error,
        ErrorKind,
        Event,
        Key,
        Mode,
        Perennial,
        Refresh,
    )>();
    shared::<(
        RefreshAfter,
        Tags,
        Entry,
        EntryFilter,
        EntryPage,
        EntryState,
        PastVersion,
    )>();
    shared::<(
        Bypass,
        Events,
        LockLoss,
        Outcome,
        Reason,
        Regeneration,
        Served,
        Stats,
    )>();
    shared::<(
        InvalidateLayer,
        InvalidateService<Router>,
        RefreshLayer,
        RefreshService<Router>,
    )>();
    shared::<(
        Claim,
        Claims,
        ExclusiveLayer,
        ExclusiveService<Router>,
        Fence,
        Holder,
    )>();
    shared::<(
        IdempotencyLayer,
        IdempotencyService<Router>,
        Scope,
        Lease,
        LockInfo,
        LockKind,
    )>();
    shared::<(
        LockName,
        Locks,
        Once,
        OnceOutcome<()>,
        SessionLock,
        Database,
        Value,
    )>();
    shared::<perennial_testing::Database>();
    fn sent<T: Send + 'static>() {}
    sent::<ResponseBody<axum::body::Body>>();
    sent::<ResponseFuture<axum::body::Body, Error>>();
}

#[test]
fn texts_and_lists_are_given_in_any_form() {
    let owned = String::from("page");
    let _ = (
        Key::new().query(["page"]),
        Key::new().query([&owned]),
        Key::path(),
    );
    let tags: Tags = ["a", "b"].into_iter().collect();
    assert_eq!(tags, Tags::new([String::from("a"), "b".into()]));
    assert_eq!(tags.iter().collect::<Vec<_>>(), ["a", "b"]);
    let name = LockName::from(["sync", "a/b"]);
    assert_eq!(name.to_string(), "sync/a%2Fb");
    let read = name.to_string().parse::<LockName>();
    assert_eq!(read, Ok(name));
    assert_eq!("42".parse(), Ok(Fence(42)));
    assert_eq!(Fence(42).to_string(), "42");
    let names: HashSet<_> = [ErrorKind::Lost, ErrorKind::Taken].into();
    assert!(names.contains(&"lost".parse().expect("a kind")));
}

#[test]
#[should_panic(expected = "a key by name")]
fn query_of_a_key_by_name_panics() {
    let _ = Key::name("home").query(["page"]);
}

#[tokio::test(start_paused = true)]
async fn setting_out_of_range_is_an_error_of_the_opening() {
    let database = perennial_testing::Database::new();
    for (builder, part) in [
        (
            Perennial::builder().statement_timeout(std::time::Duration::ZERO),
            "statement timeout",
        ),
        (Perennial::builder().revision(""), "revision is empty"),
        (Perennial::builder().store_capacity(0), "store_capacity"),
        (
            Perennial::builder().revision("2").revision_of_executable(),
            "two revisions",
        ),
    ] {
        let error = database.open(builder).expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_a_stream() {
    let site = perennial_testing::Database::new()
        .open(Perennial::builder())
        .expect("opens");
    let events = site.subscribe();
    site.purge("/a").await.expect("is done");
    drop(site);
    let purged = events.filter(|event| std::future::ready(matches!(event, Event::Purged { .. })));
    assert_eq!(purged.count().await, 1);
}

#[tokio::test(start_paused = true)]
async fn operators_read_json() {
    let site = perennial_testing::Database::new()
        .open(Perennial::builder())
        .expect("opens");
    let mut events = site.subscribe();
    let lease = site
        .locks()
        .lock("job")
        .action("sync")
        .await
        .expect("is free");
    let json = |value: serde_json::Result<serde_json::Value>| value.expect("is serialized");
    let event = json(serde_json::to_value(events.try_next().expect("an event")));
    assert_eq!(
        (&event["event"], &event["kind"]),
        (&"lock-acquired".into(), &"lock".into())
    );
    assert_eq!(event["fence"], lease.fence().0);
    let locks = json(serde_json::to_value(
        site.locks().list().await.expect("answers"),
    ));
    assert_eq!(locks[0]["holder"]["action"], "sync");
    assert_eq!(locks[0]["age_s"], 0.0);
    let stats = json(serde_json::to_value(site.stats()));
    assert_eq!(stats["requests"]["bypass: private"], 0);
    let outcome: Outcome = serde_json::from_str("\"not-stored: vary\"").expect("a word");
    assert_eq!(outcome, Outcome::NotStored(Bypass::Vary));
}
