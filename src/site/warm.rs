//! Requests that the application sends through its own router: to fill the cache, to regenerate pages, and to
//! explain an answer. [`own_request`](crate::layer) tells the layers about them.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use perennial_store::Error;
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
};
use tower_service::Service;

use super::Perennial;
use crate::{
    cache::{
        Cache,
        listing::explain::Explanation,
        parts::{self, RunContext},
    },
    event::{Bypass, Event, Served},
    layer::{
        future::oneshot,
        refresh::own_request::{OwnRequest, Purpose},
    },
    timing::WARM_CONCURRENCY,
};

/// A page for [`Perennial::warm`]: a path, a whole URI (if the host is part of the key), or a
/// request, whose URI and headers count.
#[derive(Clone, Debug)]
pub struct Visit {
    path: String,
    /// `None` means that the text is not a path.
    request: Option<Request<()>>,
}

impl From<Request<()>> for Visit {
    fn from(request: Request<()>) -> Self {
        Self {
            path: request.uri().to_string(),
            request: Some(request),
        }
    }
}

impl From<String> for Visit {
    fn from(path: String) -> Self {
        let uri = path.parse().ok();
        let uri = uri.filter(|uri: &Uri| uri.path().starts_with('/'));
        let request = uri.map(|uri| {
            let mut request = Request::new(());
            *request.uri_mut() = uri;
            request
        });
        Self { path, request }
    }
}

impl From<&str> for Visit {
    fn from(path: &str) -> Self {
        path.to_owned().into()
    }
}

impl From<&String> for Visit {
    fn from(path: &String) -> Self {
        path.clone().into()
    }
}

impl Perennial {
    /// Regenerates the missing and the stale pages among these, by GET requests through the
    /// application's router with its layers, four at a time.
    ///
    /// If several processes do so at the start, one generates each page. Returns each path with the answer,
    /// which is also an [event](Event::Warmed); `None` means that no layer answered. The pages are read into
    /// memory as far as they fit ([`Builder::memory_capacity`](crate::Builder::memory_capacity)), so that
    /// they outlast an outage of the database; do so in a task of its own, so that the start does not wait.
    ///
    /// The layers know these requests by an extension. A middleware that builds a new request without the
    /// extensions makes it a visitor's, with the answer `None`.
    ///
    /// | answer | meaning |
    /// |---|---|
    /// | `Hit` | there is a fresh version, and memory has it |
    /// | `Generated`, `Collapsed` | a new version was generated |
    /// | `Stale`, `Unavailable` | another request generates the page, it is in cooldown, or the database is unavailable |
    /// | `Failed` | the generator has failed |
    /// | `Bypass` | the response is not cached; `NoKey`: perhaps the given text is no path |
    ///
    /// # Cancel safety
    ///
    /// Dropping the future sends no further requests. Running regenerations continue.
    pub async fn warm<S>(
        &self,
        service: S,
        pages: impl IntoIterator<Item = impl Into<Visit>>,
    ) -> Vec<(String, Option<Served>)>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        self.visit(service, pages, Purpose::Warm).await
    }

    /// Regenerates these pages now, also fresh ones, as [`warm`](Self::warm) does missing ones.
    ///
    /// Invalidates each page, in the variant of the request, and visits it. A visit waits for a regeneration
    /// that is under way, here or in another process, for the policy's
    /// [`timeout`](crate::Refresh::timeout) at most, and then for its own.
    ///
    /// The answers are those of [`warm`](Self::warm). After `Stale`, `Unavailable` and `Failed` the page stays
    /// invalidated, and the next visitor's request regenerates it, unless the database has refused the
    /// invalidation itself, which is in the log.
    ///
    /// # Cancel safety
    ///
    /// As for [`warm`](Self::warm). Pages whose visits have begun stay invalidated.
    pub async fn regenerate<S>(
        &self,
        service: S,
        pages: impl IntoIterator<Item = impl Into<Visit>>,
    ) -> Vec<(String, Option<Served>)>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        self.visit(service, pages, Purpose::Regenerate).await
    }

    /// Explains the answer that a visitor of this page would get now, through the application's router with
    /// its layers. A layer that answers generates and stores nothing. `None` means that no layer answered, so
    /// the request ran the page's own handler, if there is one; or a middleware has built a new request
    /// without the extensions, so the request was a visitor's for the layer.
    ///
    /// [`Builder::explain_token`](crate::Builder::explain_token) does the same from outside.
    ///
    /// # Errors
    ///
    /// The page is not in memory and the database fails, or the text is no path.
    pub async fn explain<S>(
        &self,
        service: S,
        page: impl Into<Visit>,
    ) -> Result<Option<Explanation>, Error>
    where
        S: Service<Request<Empty<Bytes>>>,
    {
        let Visit { path, request } = page.into();
        let Some(request) = request else {
            return Err(Error::invalid(format!(
                "{path:?} is no path: write one such as /books?page=1"
            )));
        };
        let own_request = OwnRequest::new(Purpose::Explain);
        let _ = oneshot(service, get(request, &own_request)).await;
        own_request.explanation().transpose()
    }

    async fn visit<S>(
        &self,
        service: S,
        pages: impl IntoIterator<Item = impl Into<Visit>>,
        purpose: Purpose,
    ) -> Vec<(String, Option<Served>)>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        let visits: Vec<Visit> = pages.into_iter().map(Into::into).collect();
        let of = visits.len();
        let at_once = Arc::new(Semaphore::new(WARM_CONCURRENCY));
        // The tasks below are not in this one's generator.
        let caller = parts::current();
        let (mut tasks, mut paths) = (JoinSet::new(), HashMap::new());
        for Visit { path, request } in visits {
            let (service, at_once) = (service.clone(), Arc::clone(&at_once));
            let (cache, caller) = (Arc::clone(&self.cache), caller.clone());
            let task = tasks.spawn(async move {
                // The semaphore is never closed.
                let _turn = at_once.acquire_owned().await;
                match request {
                    Some(request) => answer(&cache, caller, service, request, purpose).await,
                    None => Some(Served::Bypass(Bypass::NoKey)),
                }
            });
            paths.insert(task.id(), path);
        }
        let mut answers = Vec::with_capacity(of);
        while let Some(done) = tasks.join_next_with_id().await {
            // The service itself has panicked.
            let failed = |panic: JoinError| (panic.id(), Some(Served::Failed));
            let (task, served) = done.unwrap_or_else(failed);
            let path = paths.remove(&task).unwrap_or_default();
            self.cache.observer().emit(Event::Warmed {
                path: path.as_str().into(),
                served,
                done: answers.len() + 1,
                of,
            });
            answers.push((path, served));
        }
        answers
    }
}

/// Returns a GET with the URI and the headers of this request, and the mark of the application.
fn get(from: Request<()>, own_request: &OwnRequest) -> Request<Empty<Bytes>> {
    let (from, ()) = from.into_parts();
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = from.uri;
    *request.headers_mut() = from.headers;
    request.extensions_mut().insert(own_request.clone());
    request
}

/// Returns the layer's answer to a GET like this request.
async fn answer<S>(
    cache: &Cache,
    caller: Option<Arc<RunContext>>,
    service: S,
    from: Request<()>,
    purpose: Purpose,
) -> Option<Served>
where
    S: Service<Request<Empty<Bytes>>>,
{
    let own_request = OwnRequest::new(purpose);
    let visit = oneshot(service, get(from, &own_request));
    match cache.permitted(caller, visit).await {
        Ok(_) => own_request.served(),
        Err(_) => Some(Served::Failed),
    }
}
