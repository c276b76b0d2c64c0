//! A version is published under the fence.

use super::*;
use crate::resource::version::same_content;

impl Regeneration {
    /// Publishes under the fence. Where the database fails or takes its time, the version is served unsaved, and the publish tried
    /// again for as long as a lease, but not longer than [`PUBLISH_RETRY`], and only while it may be served.
    pub(super) async fn publish(&mut self, lease: Lease, content: Response<Bytes>, basis: Basis) {
        let content = self.dated(content, lease.fence());
        let fence = lease.row().fence;
        // The age counts from the first try: its answer may be what is lost.
        let published_at = self.engine.clock.now();
        let new = self.made(content.clone(), fence, published_at, basis);
        let keep = new
            .interval(&self.policy)
            .saturating_add(self.engine.settings.retention);
        let give_up = published_at + self.policy.lease.min(PUBLISH_RETRY);
        let mut backoff = Backoff::new(Duration::from_millis(100), RECHECK);
        let mut unsaved = false;
        loop {
            let (engine, old) = (Arc::clone(&self.engine), self.version.clone());
            let published = {
                let mut publish = pin!(try_publish(&engine, &lease, old.as_deref(), &new, keep));
                match tokio::time::timeout(engine.store.patience(), &mut publish).await {
                    Ok(published) => published,
                    Err(_) => {
                        if !unsaved {
                            self.serve_unsaved(content.clone(), published_at, basis);
                            unsaved = true;
                        }
                        publish.await
                    }
                }
            };
            match published {
                Ok(true) => {
                    self.hold(self.made(content, fence, published_at, basis).own());
                    self.end_with_newest();
                    break;
                }
                Ok(false) => {
                    tracing::warn!(
                        key = self.key,
                        "the publish was refused: another process has taken the lock over"
                    );
                    if !unsaved {
                        self.end_after_refusal(content, published_at, basis).await;
                    }
                    break;
                }
                Err(_) if !unsaved => {
                    self.serve_unsaved(content.clone(), published_at, basis);
                    unsaved = true;
                }
                Err(_) if give_up < self.engine.clock.now() => break,
                Err(_) => {}
            }
            if self.servable().is_none() {
                // Who comes now is to begin anew.
                break;
            }
            backoff.pause().await;
        }
        // As above: unreleased, it expires.
        let _ = lease.release().await;
    }

    /// Says since when a response with a validator has been as it is (`Last-Modified`, RFC 9110 §8.8.2), unless it says that itself: the
    /// same one keeps its date, another one has that of its lease, by the clock of the database.
    pub(super) fn dated(&self, mut content: Response<Bytes>, fence: i64) -> Response<Bytes> {
        let headers = content.headers();
        if !headers.contains_key(header::ETAG) || headers.contains_key(header::LAST_MODIFIED) {
            return content;
        }
        let before = self
            .version
            .as_ref()
            .map(|version| version.content().headers());
        let same = before.filter(|before| before.get(header::ETAG) == headers.get(header::ETAG));
        let date = match same.and_then(|before| before.get(header::LAST_MODIFIED)) {
            Some(date) => Some(date.clone()),
            None => http_date(fence),
        };
        if let Some(date) = date {
            content.headers_mut().insert(header::LAST_MODIFIED, date);
        }
        content
    }

    /// Somebody else has published, or is about to. Those who have nothing get what was made here.
    pub(super) async fn end_after_refusal(
        &mut self,
        content: Response<Bytes>,
        made: Tick,
        basis: Basis,
    ) {
        let before = self.version.as_ref().map(|version| version.fence);
        // Failing to is no harm: then there is nothing newer.
        let _ = self.probe().await;
        let newer = self.version.as_ref().map(|version| version.fence) != before;
        if !newer && self.servable().is_none() {
            self.hold_unsaved(content, made, basis);
        }
        self.end_with_newest();
    }
}

/// Publishes under the fence, or renews the old version where the new one is the same.
async fn try_publish(
    engine: &Engine,
    lease: &Lease,
    old: Option<&Version>,
    new: &Version,
    keep: Duration,
) -> Result<bool, Error> {
    let (store, row) = (&engine.store, lease.row());
    let notes = new.notes().encode();
    let edition = Edition {
        content: new.content(),
        notes: &notes,
        keep,
    };
    if let Some(old) = old
        && !old.is_unsaved()
        && same_content(old.content(), new.content())
        && store
            .call("renew", |store| {
                store.renew(new.key(), row, &edition, old.fence)
            })
            .await?
    {
        return Ok(true);
    }
    store
        .call("publish", |store| store.publish(new.key(), row, &edition))
        .await
}

/// The date of microseconds since 1970, if they are such: another store's fences may count something else.
fn http_date(micros: i64) -> Option<HeaderValue> {
    let since = clock::duration(micros);
    if since < 30 * YEAR || since > 8000 * YEAR {
        return None;
    }
    let date = HttpDate::from(SystemTime::UNIX_EPOCH.checked_add(since)?);
    HeaderValue::try_from(date.to_string()).ok()
}
