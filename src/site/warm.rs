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
    event::{Event, Served},
    layer::{
        future::oneshot,
        refresh::own_request::{OwnRequest, Purpose},
    },
    timing::WARM_CONCURRENCY,
};

/// A page for [`Perennial::warm`], [`Perennial::regenerate`] and [`Perennial::explain`]: a path such as
/// `/books?page=1`, a whole URI where the host is part of the key, or a request, whose URI and headers count.
#[derive(Clone, Debug)]
pub struct Visit {
    path: String,
    /// `None` means that the text is not a path.
    request: Option<Request<()>>,
}

/// The result of [`Perennial::warm`] or [`Perennial::regenerate`] for one page.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Warmed {
    /// The path or URI that was given.
    pub path: String,
    /// How the layer has answered. After [`Served::Hit`], [`Served::Generated`] and [`Served::Collapsed`], a
    /// fresh version is in the database and in the memory of this process. It is an error if the given text is
    /// not a path, if there is no layer around the route, or if the service has failed or panicked.
    pub result: Result<Served, Error>,
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
    /// Regenerates the missing and the stale pages among these, by GET requests through the application's router with
    /// its layers, four at a time.
    ///
    /// Use it after a deploy or at startup, so that no visitor waits for a first version. If several processes
    /// do so, one generates each page, and the others wait for it, for the
    /// [`generator_timeout`](crate::Refresh::generator_timeout) at most. The pages are read into memory as far
    /// as they fit ([`Builder::memory_capacity`](crate::Builder::memory_capacity)), so that they outlast an
    /// outage of the database. Run it in a task of its own, so that startup does not have to wait for it.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial, app: axum::Router) {
    /// tokio::spawn(async move {
    ///     for page in site.warm(app, ["/", "/best-sellers", "/books?page=1"]).await {
    ///         match page.result {
    ///             Ok(served) => println!("{}: {served}", page.path),
    ///             Err(error) => eprintln!("{}: {error:#}", page.path),
    ///         }
    ///     }
    /// });
    /// # }
    /// ```
    ///
    /// | result | meaning |
    /// |---|---|
    /// | `Hit` | there is a fresh version, and memory has it |
    /// | `Generated`, `Collapsed` | a new version was generated |
    /// | `Stale` | there is an old version, and another request generates the next one, or it is in cooldown |
    /// | `Unavailable` | there is none: the page is in cooldown, or its generator takes too long |
    /// | `Failed` | the generator has failed |
    /// | `Bypass` | the response is not cached |
    ///
    /// Each result is an [event](crate::event::Event::Warmed) as well. The layers know these requests by an extension. A
    /// middleware that makes a new request without the extensions makes it a visitor's, which is an error here.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future sends no further requests. Running regenerations continue.
    pub async fn warm<S>(
        &self,
        service: S,
        pages: impl IntoIterator<Item = impl Into<Visit>>,
    ) -> Vec<Warmed>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        self.visit(service, pages, Purpose::Warm).await
    }

    /// Regenerates these pages now, whether they are fresh or not. Use it after a change that visitors should not
    /// have to wait for.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial, app: axum::Router) -> Result<(), perennial::Error> {
    /// for page in site.regenerate(app, ["/best-sellers"]).await {
    ///     println!("{}: {}", page.path, page.result?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Each page is invalidated, in the variant of the request, and then visited through the application's
    /// router with its layers, as [`warm`](Self::warm) does. If a regeneration of the page is under way, here
    /// or in another process, the visit first waits for that one, and then for its own, but no longer than the
    /// policy's [`generator_timeout`](crate::Refresh::generator_timeout).
    ///
    /// The results are those of [`warm`](Self::warm). After `Stale`, `Unavailable` and `Failed` the page stays
    /// invalidated, so that the next visitor's request regenerates it. The page stays as it was only if the
    /// database has refused the invalidation itself. The log says so.
    ///
    /// # Cancel safety
    ///
    /// As for [`warm`](Self::warm). Pages whose visits have begun stay invalidated.
    pub async fn regenerate<S>(
        &self,
        service: S,
        pages: impl IntoIterator<Item = impl Into<Visit>>,
    ) -> Vec<Warmed>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        self.visit(service, pages, Purpose::Regenerate).await
    }

    /// Explains the answer that a visitor of this page would get now. The question goes through the
    /// application's router with its layers, and the layer that answers it generates and stores nothing.
    ///
    /// The result is `None` if no layer has answered. Then the request has run the page's own handler, if there
    /// is one. The reason may also be a middleware that builds a new request without the extensions of the old
    /// one: the layer then takes the question for an ordinary visit.
    ///
    /// [`Builder::explain_token`](crate::Builder::explain_token) does the same from outside.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// # let app = axum::Router::<()>::new();
    /// if let Some(explanation) = site.explain(app, "/books?page=1").await? {
    ///     println!("{}", explanation.served);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The page is not in memory and the database fails, or the given text is not a path.
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
            return Err(no_path(&path));
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
    ) -> Vec<Warmed>
    where
        S: Service<Request<Empty<Bytes>>> + Clone + Send + 'static,
        S::Future: Send,
    {
        let visits: Vec<Visit> = pages.into_iter().map(Into::into).collect();
        let of = visits.len();
        let at_once = Arc::new(Semaphore::new(WARM_CONCURRENCY));
        // The tasks below do not run inside the generator that may be calling this, so its context is passed to
        // them.
        let caller = parts::current();
        let (mut tasks, mut paths) = (JoinSet::new(), HashMap::new());
        for Visit { path, request } in visits {
            let (service, at_once) = (service.clone(), Arc::clone(&at_once));
            let (cache, caller, text) = (Arc::clone(&self.cache), caller.clone(), path.clone());
            let task = tasks.spawn(async move {
                let request = request.ok_or_else(|| no_path(&text))?;
                let again = (service.clone(), request.clone(), caller.clone());
                // The semaphore is never closed.
                let turn = at_once.acquire().await;
                let first = answer(&cache, caller, service, request, purpose).await;
                drop(turn);
                match first {
                    Ok(Served::Unavailable) if purpose == Purpose::Warm => {}
                    first => return first,
                }
                // The semaphore serves its waiters in order. So each process first tries all its pages once,
                // and several processes share the work; only then does each wait for the pages that another
                // process is still generating.
                let _turn = at_once.acquire().await;
                let (service, request, caller) = again;
                answer(&cache, caller, service, request, Purpose::Await).await
            });
            paths.insert(task.id(), path);
        }
        let mut answers = Vec::with_capacity(of);
        while let Some(done) = tasks.join_next_with_id().await {
            // The service itself has panicked.
            let failed = |panic: JoinError| (panic.id(), Err(Error::generator(panic)));
            let (task, result) = done.unwrap_or_else(failed);
            let path = paths.remove(&task).unwrap_or_default();
            self.cache.observer().emit(Event::Warmed {
                path: path.as_str().into(),
                served: result.as_ref().ok().copied(),
                done: answers.len() + 1,
                of,
            });
            answers.push(Warmed { path, result });
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

fn no_path(text: &str) -> Error {
    Error::invalid(format!(
        "{text:?} is not a path: write one such as /books?page=1"
    ))
}

/// Returns the layer's answer to a GET like this request.
async fn answer<S>(
    cache: &Cache,
    caller: Option<Arc<RunContext>>,
    service: S,
    from: Request<()>,
    purpose: Purpose,
) -> Result<Served, Error>
where
    S: Service<Request<Empty<Bytes>>>,
{
    let own_request = OwnRequest::new(purpose);
    let path = from.uri().to_string();
    let visit = oneshot(service, get(from, &own_request));
    let answer = match purpose {
        // A visit that only waits for another process generates nothing here, so it takes no permit.
        Purpose::Await => visit.await,
        _ => cache.permitted(caller, visit).await,
    };
    match answer {
        Ok(_) => own_request.served().ok_or_else(|| {
            Error::invalid(format!(
                "no layer has answered the request for {path:?}: put one around the route, and let no middleware make a new \
                 request without the extensions of this one"
            ))
        }),
        Err(_) => Err(Error::generator(format!(
            "the service has failed on the request for {path:?}"
        ))),
    }
}
