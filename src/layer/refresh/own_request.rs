//! Requests that the application sends through its own router, by `warm`, `regenerate` and `explain`. They
//! carry an extension that distinguishes them from visitors' requests. Through it, the layers also report their
//! answers.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Extensions;
use perennial_store::{Error, locked};

use crate::{
    cache::{Generated, listing::explain::Explanation},
    event::Served,
    policy::Refresh,
};

/// The purpose of a request of the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Purpose {
    /// A missing or a stale page is regenerated, and a stored one is read into memory.
    Warm,
    /// A visit by `warm` that waits for a page which another process is generating.
    Await,
    /// Also a fresh page is regenerated.
    Regenerate,
    /// The layer reports what a visitor would get, and generates nothing.
    Explain,
}

/// The extension of such a request.
#[derive(Clone, Debug)]
pub(crate) struct OwnRequest {
    purpose: Purpose,
    answers: Arc<Answers>,
}

/// What the layers have answered so far.
#[derive(Debug, Default)]
struct Answers {
    /// The answer of the layer that was the last to answer, which is the outermost one.
    served: Mutex<Option<Served>>,
    explanation: Mutex<Option<Result<Explanation, Error>>>,
    /// A generator of the request has failed, panicked, or run out of time.
    has_failed: AtomicBool,
}

impl OwnRequest {
    pub(crate) fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            answers: Arc::default(),
        }
    }

    /// Returns the extension of a request of the application, or `None` if the request is a visitor's.
    #[inline]
    pub(super) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Returns the layer's answer, or `None` if no layer has answered.
    pub(crate) fn served(&self) -> Option<Served> {
        // A call of `warm` or `regenerate` gets the failure, even if an old version was served.
        if self.answers.has_failed.load(Relaxed) {
            return Some(Served::Failed);
        }
        *locked(&self.answers.served)
    }

    /// Returns the layer's explanation, or `None` if no layer has answered.
    pub(crate) fn explanation(&self) -> Option<Result<Explanation, Error>> {
        locked(&self.answers.explanation).take()
    }

    pub(super) fn note_served(&self, served: Served) {
        *locked(&self.answers.served) = Some(served);
    }

    pub(super) fn note_explanation(&self, explanation: Result<Explanation, Error>) {
        *locked(&self.answers.explanation) = Some(explanation);
    }

    /// Returns the policy for this request, which waits for its own generator, and for no other process unless its
    /// purpose says so.
    pub(super) fn policy(&self, policy: &Refresh) -> Refresh {
        let follower_wait = match self.purpose {
            Purpose::Await => policy.generator_timeout,
            Purpose::Warm | Purpose::Regenerate | Purpose::Explain => Duration::ZERO,
        };
        policy
            .clone()
            .leader_wait(policy.generator_timeout)
            .follower_wait(follower_wait)
    }

    /// Runs a generator of this request, and notes its failure.
    pub(super) async fn watch(self, generator: impl Future<Output = Generated>) -> Generated {
        // The flag is set before the generator runs and taken back afterwards, because a panic or a
        // timeout ends the generator without a result.
        self.answers.has_failed.store(true, Relaxed);
        let generated = generator.await;
        let has_failed = matches!(generated, Generated::Failed(_));
        self.answers.has_failed.store(has_failed, Relaxed);
        generated
    }
}
