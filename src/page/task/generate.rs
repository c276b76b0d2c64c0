use std::{sync::Arc, time::SystemTime};

use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::{Action, Task};
use crate::{
    clock::micros,
    extensions::{RefreshAfter, Tags},
    page::{
        Answer, Event, Failure, Generator, Metadata, Page, Pages, Version,
        flight::{AsOf, Generated, Origin},
        parts::{self, Inherited},
    },
};

impl Pages {
    /// Runs a generator for one caller, and stores nothing.
    pub(crate) async fn unstored(&self, key: &str, generator: Generator) -> Answer {
        match generator.await {
            Generated::Content(response) => {
                let page = Page::new(key, response, Metadata::default(), None);
                let version = Version::new(Arc::new(page), 0, self.now(), Origin::Unsaved);
                Answer::Version(version.into())
            }
            Generated::Failed(failure) => Answer::Failed(failure),
            Generated::NotStored(why, _) => Answer::Pass(why),
        }
    }
}

impl Task {
    /// Runs the generator in a task of its own.
    pub(super) fn generate(&mut self, as_of: AsOf) -> Action {
        let Some(generator) = self.given.run.take() else {
            // A flight has one step that runs the generator.
            return Box::pin(std::future::pending());
        };
        let run = parts::watched(generator, self.permit.clone(), self.policy.timeout);
        let task = tokio::spawn(run.in_current_span());
        let mut task = AbortOnDropHandle::new(task);
        let key = self.key.clone();
        let before = self.flight.newest().map(|newest| Arc::clone(&newest.page));
        let fence = self.lease.as_ref().map(|lease| lease.fence().0);
        self.started(fence);
        let (pages, policy) = (Arc::clone(&self.pages), self.policy);
        let started = pages.now();
        // Without a lease, the database has not told the time.
        let began = fence.unwrap_or_else(unix_micros);
        Box::pin(async move {
            let (generated, inherited) = match (&mut task).await {
                Ok(generated) => generated,
                Err(panic) => (Generated::Failed(Failure::new(panic)), Inherited::default()),
            };
            let took = pages.now() - started;
            let generated = match generated {
                Generated::Content(mut response) => {
                    let before = before.as_deref();
                    if let Some(fence) = fence {
                        response = Page::dated(response, fence, before);
                    }
                    let AsOf { epoch, revision } = as_of;
                    let said = response.extensions();
                    let tags: Tags = said.get().cloned().unwrap_or_default();
                    let Tags(tags) = tags.and(inherited.tags.iter());
                    let refresh_after = said.get().map(|RefreshAfter(after)| *after);
                    let metadata = Metadata {
                        epoch,
                        revision,
                        tags,
                        refresh_after,
                        parts_last: inherited.left().filter(|_| !policy.outlives_parts),
                        parts: inherited.keys.into_iter().collect(),
                        of_all: inherited.of_all,
                        is_provisional: inherited.is_provisional,
                        took,
                    };
                    let mut page = Page::new(&key, response, metadata, before);
                    let times = [began, began.saturating_add(micros(took))];
                    page.meta.timed(&policy, times);
                    Generated::Content(Arc::new(page))
                }
                Generated::NotStored(why, tags) => Generated::NotStored(why, tags),
                Generated::Failed(failure) => Generated::Failed(failure),
            };
            (Event::Generated(generated), None)
        })
    }
}

/// Returns the microseconds since 1970 by this process's clock.
fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    micros(since.unwrap_or_default())
}
