//! The first requests, before visitors come.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Empty;
use tokio::{sync::Semaphore, task::JoinSet};
use tower_service::Service;

use super::Perennial;
use crate::{
    event::{Bypass, Event, Served},
    layer::{future::oneshot, refresh::warm::warming},
    timing::WARMING_AT_ONCE,
};

impl Perennial {
    /// Regenerates the missing and the stale pages among these paths, before visitors ask for them:
    /// sends a GET request for each path to the service, four at a time.
    ///
    /// The service is the application's router with its layers. Several processes may do the same at
    /// the start: one process generates each page, and the others do not wait for it. A page that is
    /// fresh in the database is read into memory.
    ///
    /// Returns each path with the layer's answer, in the order in which the answers came. Each answer
    /// is also an [event](Event::Warmed).
    ///
    /// | answer | meaning |
    /// |---|---|
    /// | `Hit` | there is a fresh version, and memory has it |
    /// | `Generated` | this process has generated a new version |
    /// | `Stale`, `Unavailable` | another process generates the page, or the page is in cooldown |
    /// | `Failed` | the generator has failed |
    /// | `Bypass` | the response is not cached; with `NoLayer` the path has no layer, with `NoKey` the text is no path |
    ///
    /// ```
    /// # use axum::Router;
    /// # async fn f(site: perennial::Perennial, app: Router) {
    /// for (path, served) in site.warm(app, ["/", "/best-sellers", "/books?page=1"]).await {
    ///     println!("{path}: {served}");
    /// }
    /// # }
    /// ```
    ///
    /// A path is written as in a request, or as a whole URI (`http://example.com/books`) if the host
    /// is part of the key. The requests have no headers: of a page with
    /// [headers in its key](crate::Key::header), the variant without these headers is generated. A
    /// service for requests with another body type than axum's routers needs tower's `map_request`
    /// around it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future sends no further requests. The regenerations that have begun continue.
    pub async fn warm<S, ResBody>(
        &self,
        service: S,
        paths: impl IntoIterator<Item: AsRef<str>>,
    ) -> Vec<(String, Served)>
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<ResBody>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        ResBody: Send + 'static,
    {
        let paths: Vec<String> = paths
            .into_iter()
            .map(|path| path.as_ref().to_owned())
            .collect();
        let of = paths.len();
        let at_once = Arc::new(Semaphore::new(WARMING_AT_ONCE));
        let mut tasks = JoinSet::new();
        for path in paths {
            let (service, at_once) = (service.clone(), Arc::clone(&at_once));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _permit = at_once.acquire_owned().await;
                let served = visit(service, &path).await;
                (path, served)
            });
        }
        let mut answers = Vec::with_capacity(of);
        while let Some(done) = tasks.join_next().await {
            // A panic of the service itself has been reported by the panic hook.
            let Ok((path, served)) = done else { continue };
            self.pages.observer().emit(Event::Warmed {
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

async fn visit<S, ResBody>(service: S, path: &str) -> Served
where
    S: Service<Request<Empty<Bytes>>, Response = Response<ResBody>>,
{
    let Ok(uri) = path.parse::<Uri>() else {
        return Served::Bypass(Bypass::NoKey);
    };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    let (response, served) = warming(oneshot(service, request)).await;
    match response {
        Ok(_) => served,
        Err(_) => Served::Failed,
    }
}
