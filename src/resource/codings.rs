//! The content codings of a version. Each coding is made once, at the first request for it;
//! meanwhile visitors get another representation.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, Response, header};
use tokio::{runtime::Handle, sync::Semaphore, task};

use crate::{
    http::{
        compression::{self, Accepted, Coding},
        fields,
    },
    resource::{Engine, Page, Representation, View},
};

/// The queue of the compressions of a process.
pub(super) struct Compressions {
    /// The permit for the one compression at a time: the other cores belong to the visitors.
    running: Semaphore,
    /// The permits for the running compression and the waiting ones. Beyond them, a later request
    /// asks again.
    queued: Arc<Semaphore>,
}

impl Default for Compressions {
    fn default() -> Self {
        Self {
            running: Semaphore::new(1),
            queued: Arc::new(Semaphore::new(1000)),
        }
    }
}

/// The codings of a content, shared by all versions with the same content.
#[derive(Default)]
pub(crate) struct Codings([CodingSlot; 3]);

/// The content in one coding.
#[derive(Default)]
struct CodingSlot {
    /// The compressed content. `None`: compression would make the content no smaller.
    representation: OnceLock<Option<Representation>>,
    /// The compression is running or queued.
    started: AtomicBool,
    /// A visitor has requested this coding.
    requested: AtomicBool,
}

impl Codings {
    /// Returns the content with its `Vary`, and an empty slot for each coding. `None`: the content
    /// is not compressible.
    pub(super) fn of(mut content: Response<Bytes>) -> (Response<Bytes>, Option<Arc<Self>>) {
        if !compression::is_compressible(&content) {
            return (content, None);
        }
        fields::add_vary(content.headers_mut(), &header::ACCEPT_ENCODING);
        (content, Some(Arc::default()))
    }

    fn slot(&self, coding: Coding) -> &CodingSlot {
        &self.0[coding as usize]
    }

    fn get(&self, coding: Coding) -> Option<&Representation> {
        self.slot(coding).representation.get()?.as_ref()
    }

    pub(super) fn put(&self, coding: Coding, made: Option<Response<Bytes>>) {
        // The slot is empty: the compression runs once.
        let _ = self
            .slot(coding)
            .representation
            .set(made.map(Representation::new));
    }

    pub(super) fn weight(&self) -> usize {
        let made = Coding::ALL
            .into_iter()
            .filter_map(|coding| self.get(coding));
        size_of::<Self>() + made.map(Representation::weight).sum::<usize>()
    }
}

/// Sets a mark and returns true if the mark was set before.
fn mark(mark: &AtomicBool) -> bool {
    // The mark is usually set already, and then no cache line is written that other cores read.
    mark.load(Relaxed) || mark.swap(true, Relaxed)
}

impl Engine {
    /// Returns the best available representation for a request. If the best coding is missing, its
    /// compression starts; content that compression would make no smaller is returned plain.
    pub(crate) fn represent<'a>(
        self: &Arc<Self>,
        page: &'a Page,
        request: &HeaderMap,
    ) -> &'a Representation {
        let Some(codings) = &page.codings else {
            return &page.plain;
        };
        let accepted = Accepted::of(request);
        let Some(best) = accepted.best(|_| true) else {
            return &page.plain;
        };
        let slot = codings.slot(best);
        mark(&slot.requested);
        let made = match slot.representation.get() {
            Some(made) => made.as_ref(),
            None => {
                self.compress(page, best);
                let other = accepted.best(|it| codings.get(it).is_some());
                other.and_then(|other| codings.get(other))
            }
        };
        made.unwrap_or(&page.plain)
    }

    /// Compresses a page in the codings that visitors requested of the page before.
    pub(super) fn compress_like(self: &Arc<Self>, before: &Page, page: &Page) {
        let Some(before) = &before.codings else {
            return;
        };
        for coding in Coding::ALL {
            if before.slot(coding).requested.load(Relaxed) {
                self.compress(page, coding);
            }
        }
    }

    /// Starts the compression once. A page that has left memory by then is skipped; a later request
    /// may ask again.
    fn compress(self: &Arc<Self>, page: &Page, coding: Coding) {
        let (Some(codings), Ok(runtime)) = (&page.codings, Handle::try_current()) else {
            return;
        };
        let Ok(queued) = Arc::clone(&self.compressions.queued).try_acquire_owned() else {
            return;
        };
        if self.is_closing() || mark(&codings.slot(coding).started) {
            return;
        }
        let codings = Arc::clone(codings);
        // The task does not hold the version, which may have to leave memory while the task waits.
        let (engine, key) = (Arc::clone(self), page.key().to_owned());
        runtime.spawn(async move {
            engine.compress_now(&key, &codings, coding).await;
            let slot = codings.slot(coding);
            slot.started
                .store(slot.representation.get().is_some(), Relaxed);
            drop(queued);
        });
    }

    async fn compress_now(&self, key: &str, codings: &Arc<Codings>, coding: Coding) {
        let Ok(_permit) = self.compressions.running.acquire().await else {
            return;
        };
        let is_for = |cached: &Page| {
            let cached = cached.codings.as_ref();
            cached.is_some_and(|cached| Arc::ptr_eq(cached, codings))
        };
        let content = match self.memory.get(key) {
            Some(View::Version(cached)) if is_for(&cached.content) => {
                cached.content.response().clone()
            }
            _ => return,
        };
        let made = task::spawn_blocking(move || coding.encoded(&content)).await;
        // An encoder that panics would panic again.
        let made = made.ok().flatten();
        let bytes = made.as_ref().map(|made| made.body().len());
        tracing::debug!(
            target: "perennial::compression",
            key, coding = coding.token(), bytes, "compressed"
        );
        self.memory.change(key, |cached| {
            if is_for(cached) {
                codings.put(coding, made);
            }
        });
    }
}
