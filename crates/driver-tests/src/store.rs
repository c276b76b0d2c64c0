//! Calls to a store, in the form in which the tests of its contract make them.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use perennial_store::{
    Backend, Call, CallFuture, Epoch, Fence, Invalidated, LeaseRow, LockKind, LockName, NewEntry,
    Operation, Probe, Publish, TryLock, driver::DriverError, error::BoxError,
};

use crate::HANG;

/// The metadata of [`entry`].
pub const METADATA: &str = r#"{"tags":["a &b"]}"#;

/// Returns the name of a page's lock.
pub fn page(key: &str) -> LockName {
    LockName::of(LockKind::Page, key)
}

/// Makes a call that the store answers.
pub async fn ask<O: Operation>(store: &dyn Backend, operation: O) -> O::Answer {
    store.ask(operation).await.expect("answers")
}

/// A store that tries again if its pool has no connection in time. A busy server is slow to accept one, and in this
/// case nothing has been sent.
pub struct Patient(pub Box<dyn Backend>);

impl fmt::Debug for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patient").finish_non_exhaustive()
    }
}

impl Backend for Patient {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(async move {
            let begun = Instant::now();
            loop {
                match self.0.call(call.clone()).await {
                    Err(error) if is_late(&error) && begun.elapsed() < HANG => {}
                    answer => return answer,
                }
            }
        })
    }
}

fn is_late(error: &BoxError) -> bool {
    let error = error.downcast_ref::<DriverError>();
    error.is_some_and(DriverError::is_late)
}

/// Takes a lock that is free, as a new owner.
pub async fn lock(store: &dyn Backend, name: impl Into<LockName>, length: Duration) -> LeaseRow {
    let (name, owner) = (name.into(), uuid());
    let fence = store.ask(TryLock::new(&name, &owner, length, None)).await;
    let fence = fence.expect("answers").fence.expect("is free");
    LeaseRow { name, owner, fence }
}

/// An owner that no other acquisition has.
pub fn uuid() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("owner-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

/// Content with this body, and with headers that are hard to store.
pub fn content(body: &str) -> Response<Bytes> {
    let mut content = Response::new(Bytes::from(body.to_owned()));
    *content.status_mut() = StatusCode::NOT_FOUND;
    let headers = content.headers_mut();
    headers.append("x-twice", HeaderValue::from_static("a"));
    headers.append(
        "x-twice",
        HeaderValue::from_bytes(b"\xfc: b").expect("a value"),
    );
    content
}

/// Returns an entry with this content, with an interval of a minute and a retention of an hour.
pub fn entry(content: &Response<Bytes>) -> NewEntry {
    NewEntry {
        content: content.clone(),
        renews: None,
        epoch: Epoch(7),
        interval: Duration::from_secs(60),
        metadata: METADATA.to_owned(),
        history: "1 a line\n".to_owned(),
        retention: Duration::from_secs(3600),
        lasting: true,
    }
}

/// Publishes [`entry`] with this content.
pub async fn publish(store: &dyn Backend, lease: &LeaseRow, content: &Response<Bytes>) -> bool {
    ask(store, Publish::new(lease, entry(content))).await
}

/// The stored fence and body of a page.
pub async fn stored(store: &dyn Backend, name: &LockName) -> Option<(Fence, Bytes)> {
    let entry = ask(store, Probe::new(name, Fence::NONE)).await.entry;
    entry.map(|entry| (entry.fence, entry.content.into_body()))
}

/// Publishes with this lease, and says that the content is unchanged since the version with the
/// fence `known`, so that no content is sent. Returns whether it was published.
pub async fn renew(store: &dyn Backend, lease: &LeaseRow, known: Fence) -> bool {
    let content = content("is not sent");
    let entry = NewEntry {
        renews: Some(known),
        ..entry(&content)
    };
    ask(store, Publish::new(lease, entry)).await
}

/// Returns the first `most` names invalidated after `since`.
pub async fn invalidated(store: &dyn Backend, since: Epoch, most: usize) -> Vec<(String, Epoch)> {
    let synced = ask(store, Invalidated::new("", since, most, Vec::new())).await;
    synced.names
}
