//! The first requests, before visitors come.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Empty;
use tokio::{sync::Semaphore, task::JoinSet};
use tower_service::Service;

use super::Perennial;
use crate::{
    event::{Event, Warmed},
    layer::{future::oneshot, refresh::warm::warming},
    timing::WARMING_AT_ONCE,
};

/// The result of [`Perennial::warm`]: the outcome for each path, in the order in which they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmReport {
    /// Path and outcome.
    pub paths: Vec<(Arc<str>, Warmed)>,
}

impl WarmReport {
    /// Returns the number of paths with this outcome.
    pub fn count(&self, outcome: Warmed) -> usize {
        self.paths.iter().filter(|(_, it)| *it == outcome).count()
    }
}

impl Perennial {
    /// Regenerates the missing and the stale pages among these paths, before visitors ask for them:
    /// sends a GET request for each path to the service, four at a time.
    ///
    /// The service is the application's router with its layers. Several processes may do the same at
    /// the start: one process generates each page, and the others do not wait for it. A page that is
    /// fresh in the database is read into memory. Each outcome is an [event](Event::Warmed).
    ///
    /// ```
    /// # use axum::Router;
    /// # async fn f(site: perennial::Perennial, app: Router) {
    /// use perennial::event::Warmed;
    ///
    /// let report = site.warm(app, ["/", "/best-sellers", "/books?page=1"]).await;
    /// println!("{} generated", report.count(Warmed::Generated));
    /// for (path, outcome) in report.paths {
    ///     println!("{path}: {outcome}");
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
    ) -> WarmReport
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<ResBody>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Send,
        ResBody: Send + 'static,
    {
        let paths: Vec<Arc<str>> = paths.into_iter().map(|path| path.as_ref().into()).collect();
        let of = paths.len();
        let at_once = Arc::new(Semaphore::new(WARMING_AT_ONCE));
        let mut tasks = JoinSet::new();
        for path in paths {
            let (service, at_once) = (service.clone(), Arc::clone(&at_once));
            tasks.spawn(async move {
                // The semaphore is never closed.
                let _permit = at_once.acquire_owned().await;
                let outcome = visit(service, &path).await;
                (path, outcome)
            });
        }
        let mut report = WarmReport::default();
        while let Some(done) = tasks.join_next().await {
            // A panic of the service itself has been reported by the panic hook.
            let Ok((path, outcome)) = done else { continue };
            report.paths.push((Arc::clone(&path), outcome));
            self.engine.observer().emit(Event::Warmed {
                path,
                outcome,
                done: report.paths.len(),
                of,
            });
        }
        report
    }
}

async fn visit<S, ResBody>(service: S, path: &str) -> Warmed
where
    S: Service<Request<Empty<Bytes>>, Response = Response<ResBody>>,
{
    let Ok(uri) = path.parse::<Uri>() else {
        return Warmed::NotCached { detail: "no-path" };
    };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    let (response, outcome) = warming(oneshot(service, request)).await;
    match response {
        Ok(_) => outcome,
        Err(_) => Warmed::Failed,
    }
}
