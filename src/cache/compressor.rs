//! Compresses pages that have come into memory. Until a page is compressed, it is served
//! uncompressed.
//!
//! A process compresses one page at a time, so that the other cores stay free for visitors. There is no queue:
//! if another page is being compressed, nothing happens, and a later request for the page tries again.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::{runtime::Handle, sync::Semaphore, task};

use crate::{
    cache::{
        Page,
        content::{
            Representation,
            codings::{Codings, Encoded},
        },
        environment::Environment,
        memory::Memory,
    },
    holes::HolePlaces,
    http::{
        compression::{self, Coding},
        gzip_pieces::GzipPieces,
    },
};

pub(crate) struct Compressor {
    environment: Environment,
    memory: Arc<Memory>,
    turn: Arc<Semaphore>,
}

impl Compressor {
    pub(crate) fn new(environment: Environment, memory: Arc<Memory>) -> Self {
        Self {
            environment,
            memory,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the best representation for a request. Until the codings of a version are made, all
    /// visitors get the plain content.
    pub(crate) fn represent<'a>(&self, page: &'a Page, request: &HeaderMap) -> &'a Representation {
        let plain = &page.body.plain;
        let Some(codings) = &page.body.codings else {
            return plain;
        };
        let Some(best) = compression::best(request, &Coding::ALL) else {
            return plain;
        };
        if codings.are_made() {
            return codings.get(best).unwrap_or(plain);
        }
        self.compress(page);
        plain
    }

    /// Returns the compressed pieces of a page with holes, if the request accepts them. Until they are made, all
    /// visitors get the plain content.
    pub(crate) fn pieces(&self, page: &Page, request: &HeaderMap) -> Option<Arc<GzipPieces>> {
        let codings = page.body.codings.as_ref()?;
        compression::best(request, &[Coding::Gzip])?;
        if !codings.are_made() {
            self.compress(page);
        }
        codings.pieces().cloned()
    }

    /// Starts the compression of a page if no other compression is running. Otherwise a later
    /// request starts it, so that no queue of pages forms.
    pub(crate) fn compress(&self, page: &Page) {
        let (Some(codings), Ok(runtime)) = (&page.body.codings, Handle::try_current()) else {
            return;
        };
        if codings.are_made() || self.environment.is_shutting_down() {
            return;
        }
        let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() else {
            return;
        };
        let (memory, codings) = (Arc::clone(&self.memory), Arc::clone(codings));
        let (key, content) = (page.meta.key().to_owned(), page.response());
        let holes = page.holes().cloned();
        runtime.spawn(async move {
            compress_now(&memory, &key, content, holes, &codings).await;
            drop(turn);
        });
    }
}

async fn compress_now(
    memory: &Memory,
    key: &str,
    content: Response<Bytes>,
    holes: Option<Arc<HolePlaces>>,
    codings: &Arc<Codings>,
) {
    let is_for = |cached: &Page| {
        let cached = cached.body.codings.as_ref();
        cached.is_some_and(|cached| Arc::ptr_eq(cached, codings))
    };
    let plain = content.body().len();
    let encoded = task::spawn_blocking(move || Encoded::of(&content, holes.as_deref()));
    // If the encoder has panicked, none of its output is kept. Perennial remembers that the page has no
    // compressed form, because another attempt would panic again.
    let encoded = encoded.await.unwrap_or_default();
    let (br, gzip) = match &encoded {
        Encoded::Whole(codings) => {
            let [br, gzip] = &**codings;
            let length = |coded: &Option<Response<Bytes>>| coded.as_ref().map(|it| it.body().len());
            (length(br), length(gzip))
        }
        Encoded::Pieces(pieces) => (None, pieces.as_ref().map(GzipPieces::weight)),
        Encoded::Nothing => (None, None),
    };
    tracing::debug!(target: "perennial::compression", key, plain, br, gzip, "compressed");
    memory.change(key, |cached| {
        if is_for(cached) {
            codings.put(encoded, cached.meta.stored.modified);
        }
    });
}
