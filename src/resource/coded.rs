//! A version in content codings: each made once, when it is first asked for, while visitors get what there is.

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

/// Bounds the compressions of a process.
pub(super) struct Compressions {
    /// One at a time: the other cores are the visitors'.
    running: Semaphore,
    /// That one, and those that wait for it. Where more are asked for, they are to be asked for again.
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

/// Shared by versions of the same content.
#[derive(Default)]
pub(crate) struct Coded([Place; 3]);

/// The content in one coding.
#[derive(Default)]
struct Place {
    /// `None`: it would be no smaller.
    made: OnceLock<Option<Representation>>,
    /// It is made, or about to be.
    begun: AtomicBool,
    /// It has been asked for.
    asked: AtomicBool,
}

impl Coded {
    /// Content, which says that it may be had in codings if it may, and the place for those.
    pub(super) fn of(mut content: Response<Bytes>) -> (Response<Bytes>, Option<Arc<Self>>) {
        if !compression::is_compressible(&content) {
            return (content, None);
        }
        fields::say_vary(content.headers_mut(), &header::ACCEPT_ENCODING);
        (content, Some(Arc::default()))
    }

    fn place(&self, coding: Coding) -> &Place {
        &self.0[coding as usize]
    }

    fn get(&self, coding: Coding) -> Option<&Representation> {
        self.place(coding).made.get()?.as_ref()
    }

    pub(super) fn put(&self, coding: Coding, made: Option<Response<Bytes>>) {
        // Nobody else does: it is begun once.
        let _ = self.place(coding).made.set(made.map(Representation::new));
    }

    pub(super) fn weight(&self) -> usize {
        let made = Coding::ALL
            .into_iter()
            .filter_map(|coding| self.get(coding));
        size_of::<Self>() + made.map(Representation::weight).sum::<usize>()
    }
}

/// Sets a mark; returns whether it was set.
fn mark(mark: &AtomicBool) -> bool {
    // Mostly it is, and nothing is written that other cores read.
    mark.load(Relaxed) || mark.swap(true, Relaxed)
}

impl Engine {
    /// The representation that a request accepts best, of those that there are. One that it would rather have is made from now on; if
    /// that would be no smaller, it gets the content as it is.
    pub(crate) fn represent<'a>(
        self: &Arc<Self>,
        page: &'a Page,
        request: &HeaderMap,
    ) -> &'a Representation {
        let Some(coded) = &page.coded else {
            return &page.plain;
        };
        let accepted = Accepted::of(request);
        let Some(best) = accepted.best(|_| true) else {
            return &page.plain;
        };
        let place = coded.place(best);
        mark(&place.asked);
        let made = match place.made.get() {
            Some(made) => made.as_ref(),
            None => {
                self.code(page, best);
                let other = accepted.best(|it| coded.get(it).is_some());
                other.and_then(|other| coded.get(other))
            }
        };
        made.unwrap_or(&page.plain)
    }

    /// Makes a page in those codings that the one before it was asked for in.
    pub(super) fn code_like(self: &Arc<Self>, before: &Page, page: &Page) {
        let Some(before) = &before.coded else {
            return;
        };
        for coding in Coding::ALL {
            if before.place(coding).asked.load(Relaxed) {
                self.code(page, coding);
            }
        }
    }

    /// Once; what is not in memory any more when it is its turn is left, and may be asked for again.
    fn code(self: &Arc<Self>, page: &Page, coding: Coding) {
        let (Some(coded), Ok(runtime)) = (&page.coded, Handle::try_current()) else {
            return;
        };
        let Ok(queued) = Arc::clone(&self.compressions.queued).try_acquire_owned() else {
            return;
        };
        if self.is_closing() || mark(&coded.place(coding).begun) {
            return;
        }
        let coded = Arc::clone(coded);
        // Not the version: while it waits, that may have to make room for others.
        let (engine, key) = (Arc::clone(self), page.key().to_owned());
        runtime.spawn(async move {
            engine.make(&key, &coded, coding).await;
            let place = coded.place(coding);
            place.begun.store(place.made.get().is_some(), Relaxed);
            drop(queued);
        });
    }

    async fn make(&self, key: &str, coded: &Arc<Coded>, coding: Coding) {
        let Ok(_permit) = self.compressions.running.acquire().await else {
            return;
        };
        let is_for = |held: &Page| {
            let held = held.coded.as_ref();
            held.is_some_and(|held| Arc::ptr_eq(held, coded))
        };
        let content = match self.memory.get(key) {
            Some(View::Version(held)) if is_for(&held.content) => held.content.response().clone(),
            _ => return,
        };
        let made = task::spawn_blocking(move || coding.encoded(&content)).await;
        // An encoder that panics would do so again.
        let made = made.ok().flatten();
        let bytes = made.as_ref().map(|made| made.body().len());
        tracing::debug!(key, coding = coding.token(), bytes, "compressed");
        self.memory.change(key, |held| {
            if is_for(held) {
                coded.put(coding, made);
            }
        });
    }
}
