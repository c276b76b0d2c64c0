//! The content codings of a version, which are made once.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::{runtime::Handle, task};

use crate::{
    cache::{Cache, Page, content::Representation, metadata::LastModified},
    http::compression::{self, Coding},
};

/// The codings of a content, shared by all versions with the same content.
#[derive(Default)]
pub(crate) struct Codings {
    /// The content in each coding; `None`: compression would make the content no smaller.
    made: OnceLock<[Option<Representation>; Coding::ALL.len()]>,
}

impl Codings {
    /// Returns the codings of a content, to be made. `None`: the content is not compressible.
    pub(crate) fn of(content: &Response<Bytes>) -> Option<Arc<Self>> {
        compression::is_compressible(content).then(Arc::default)
    }

    /// Takes the codings of the content with this date.
    pub(crate) fn put(
        &self,
        made: [Option<Response<Bytes>>; Coding::ALL.len()],
        modified: Option<LastModified>,
    ) {
        // The compression runs once.
        let made = made.map(|it| it.map(|it| Representation::new(it, modified)));
        let _ = self.made.set(made);
    }

    pub(crate) fn weight(&self) -> usize {
        let made = self.made.get().into_iter().flatten().flatten();
        size_of::<Self>() + made.map(Representation::weight).sum::<usize>()
    }
}

impl Cache {
    /// Returns the best representation for a request. Until the codings of a version are made, all
    /// visitors get the plain content.
    pub(crate) fn represent<'a>(
        self: &Arc<Self>,
        page: &'a Page,
        request: &HeaderMap,
    ) -> &'a Representation {
        let Some(codings) = &page.body.codings else {
            return &page.body.plain;
        };
        let Some(best) = compression::best(request) else {
            return &page.body.plain;
        };
        match codings.made.get() {
            Some(made) => made[best as usize].as_ref().unwrap_or(&page.body.plain),
            None => {
                self.compress(page);
                &page.body.plain
            }
        }
    }

    /// Starts the compression of a page if no other compression is running. Otherwise a later
    /// request starts it, so that no queue of pages forms.
    pub(crate) fn compress(self: &Arc<Self>, page: &Page) {
        let (Some(codings), Ok(runtime)) = (&page.body.codings, Handle::try_current()) else {
            return;
        };
        if codings.made.get().is_some() || self.is_closing() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.compressing).try_acquire_owned() else {
            return;
        };
        let (cache, codings) = (Arc::clone(self), Arc::clone(codings));
        let (key, content) = (page.meta.key.to_string(), page.response().clone());
        runtime.spawn(async move {
            cache.compress_now(&key, content, &codings).await;
            drop(permit);
        });
    }

    async fn compress_now(&self, key: &str, content: Response<Bytes>, codings: &Arc<Codings>) {
        let is_for = |cached: &Page| {
            let cached = cached.body.codings.as_ref();
            cached.is_some_and(|cached| Arc::ptr_eq(cached, codings))
        };
        let plain = content.body().len();
        let made = task::spawn_blocking(move || Coding::ALL.map(|coding| coding.encoded(&content)));
        // An encoder that panics would panic again.
        let made = made.await.unwrap_or_default();
        let [br, gzip] = made
            .each_ref()
            .map(|it| it.as_ref().map(|it| it.body().len()));
        tracing::debug!(target: "perennial::compression", key, plain, br, gzip, "compressed");
        self.memory.change(key, |cached| {
            if is_for(cached) {
                codings.put(made, cached.meta.stored.modified);
            }
        });
    }
}
