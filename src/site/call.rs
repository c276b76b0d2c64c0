//! The application's calls for content.

use std::{
    borrow::Cow,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;

use crate::{
    error::{BoxError, Error},
    policy::Refresh,
    resource::{
        Answer, Engine, Failure, Freshness, Generated, Generator, Page, Version, Work, parts,
    },
    timing::RECHECK,
};

/// A run of a generator, which a call makes if it starts the regeneration.
pub struct Run(pub(super) Generator);

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

/// A request of the application for a version: a future that looks at memory first.
pub(super) struct Call<'a, G> {
    engine: &'a Arc<Engine>,
    pub(super) key: Cow<'a, str>,
    policy: Refresh,
    /// `None` after the first poll.
    generate: Option<G>,
    pub(super) readable: Option<fn(&Page) -> bool>,
    pub(super) has_placeholder: bool,
    visit: Option<Pin<Box<dyn Future<Output = Answer> + Send + 'a>>>,
}

impl<'a, G> Call<'a, G> {
    pub(super) fn new(engine: &'a Arc<Engine>, key: &'a str, policy: Refresh, generate: G) -> Self {
        Self {
            engine,
            key: key.into(),
            policy: engine.applied(policy),
            generate: Some(generate),
            readable: None,
            has_placeholder: false,
            visit: None,
        }
    }
}

/// Nothing in it is pinned but the boxed future.
impl<G> Unpin for Call<'_, G> {}

impl<'a, G: FnOnce() -> Run + Send + 'a> Future for Call<'a, G> {
    type Output = Result<Arc<Version>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let version = ready!(self.answer(context));
        parts::provisional(|| match &version {
            Ok(version) => {
                let facts = self.engine.facts(&self.key, &self.policy);
                version.content.is_provisional() || version.freshness(&facts) > Freshness::Early
            }
            Err(_) => true,
        });
        Poll::Ready(version)
    }
}

impl<'a, G: FnOnce() -> Run + Send + 'a> Call<'a, G> {
    fn answer(&mut self, context: &mut Context<'_>) -> Poll<Result<Arc<Version>, Error>> {
        let visit = match (&mut self.visit, self.generate.take()) {
            (Some(visit), _) => visit,
            (None, Some(generate)) => {
                let key = &*self.key;
                if key.is_empty() || key.starts_with('/') {
                    return Poll::Ready(Err(Error::invalid(format!(
                        "the key {key:?} cannot be used for content: write a name that does not begin with `/`, as in \
                         `sidebar/top-10` (keys of routes begin with `/`)"
                    ))));
                }
                let engine = self.engine;
                if engine.is_off() {
                    let (key, generator) = (self.key.clone(), generate().0);
                    let visit = async move { engine.unstored(&key, generator).await };
                    let visit = self.visit.insert(Box::pin(visit));
                    return Poll::Ready(version(ready!(visit.as_mut().poll(context))));
                }
                if let Ok(answer) = engine.look(key, &self.policy, engine.now()) {
                    return Poll::Ready(version(answer));
                }
                let (key, policy) = (self.key.clone(), self.policy);
                let (readable, has_placeholder) = (self.readable, self.has_placeholder);
                let work = move || Work {
                    generator: generate().0,
                    source: None,
                    begun: true,
                    layer: Arc::clone(&engine.content_layer),
                    is_requested: false,
                    readable,
                    retention: None,
                };
                let visit =
                    async move { engine.visit(&key, &policy, has_placeholder, work).await.0 };
                self.visit.insert(Box::pin(visit))
            }
            (None, None) => panic!("polled after its end"),
        };
        Poll::Ready(version(ready!(visit.as_mut().poll(context))))
    }
}

fn version(answer: Answer) -> Result<Arc<Version>, Error> {
    match answer {
        Answer::Version(version) => Ok(version),
        Answer::Failed(failure) => Err(Error::generator(failure.error)),
        Answer::Unavailable { retry_in } => Err(Error::unavailable(retry_in)),
        // No regeneration begins during a shutdown.
        Answer::Pass(_) => Err(Error::unavailable(RECHECK)),
    }
}

/// Returns the result of a generator, if its size allows storing.
pub(super) fn stored(generated: Result<Response<Bytes>, BoxError>, max_body: usize) -> Generated {
    match generated {
        Ok(response) if response.body().len() > max_body => {
            let length = response.body().len();
            let error = format!(
                "the content has {length} bytes, more than the limit of {max_body} (`Builder::max_body`)"
            );
            Generated::Failed(Failure::new(error))
        }
        // A copy has the content's own size, even if the content is a part of a larger buffer.
        Ok(response) => Generated::Content(response.map(|body| Bytes::copy_from_slice(&body))),
        Err(error) => Generated::Failed(Failure::new(error)),
    }
}
