//! The note that a request was done, with its response, and the tries to store it.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::{sync::oneshot, time::Instant};
use tracing::Instrument;

use crate::{
    error::Error,
    layer::idempotency::{known::Notes, run::Keyed},
    locks::Lease,
    store::Edition,
    timing::{Backoff, RESPONSE_RETRY, RESPONSE_RETRY_AT_SHUTDOWN},
};

/// The refusals after which the lease counts as overtaken. The node that refuses may lag behind the node that granted the lease.
const REFUSALS: u32 = 6;

/// The shortest and the longest pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The database's answer to a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Stored,
    /// The lock is not this lease's, as far as the answering node knows.
    Refused,
    /// The database does not take this content.
    Unfit,
    /// Any other error, or no answer.
    Away,
}

impl From<&Result<bool, Error>> for Answer {
    fn from(published: &Result<bool, Error>) -> Self {
        match published {
            Ok(true) => Self::Stored,
            Ok(false) => Self::Refused,
            Err(error) if error.is_unfit() => Self::Unfit,
            Err(_) => Self::Away,
        }
    }
}

/// The tries so far, the latest included.
#[derive(Clone, Copy, Debug)]
struct Tries {
    refused: u32,
    /// The latest try was to store the response, and not only that the request was done.
    whole: bool,
    /// The time for tries is over.
    late: bool,
}

/// The step after a publish's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The note is stored: the lock has served its purpose.
    Release,
    /// Try again after a pause.
    Again,
    /// Try at once without the response.
    Without,
    /// Leave the lock to expire with its owner: nobody knows what came of the request. The lock of a request that ran is never
    /// released without a note, as its key would be new.
    Leave,
}

fn next(answer: Answer, tries: Tries) -> Next {
    match answer {
        Answer::Stored => Next::Release,
        Answer::Refused if tries.refused >= REFUSALS || tries.late => Next::Leave,
        Answer::Refused => Next::Again,
        Answer::Unfit if tries.whole => Next::Without,
        Answer::Unfit | Answer::Away if !tries.late => Next::Again,
        // A short note may get through where a response breaks the connection or takes too long.
        Answer::Unfit | Answer::Away if tries.whole => Next::Without,
        Answer::Unfit | Answer::Away => Next::Leave,
    }
}

impl Keyed {
    /// Notes that the request was done, with the response, if that can be stored. Returns after the first try.
    ///
    /// A publish compares owner and fence, not the expiry, and nobody else takes a lock that expired with its owner (unless the
    /// layer runs requests again, whose next run then takes over). So a note is right however late it comes. Meanwhile the lease
    /// is extended, so that a repeat is told to ask again. A lease that ended while the database was away stays as it is: the
    /// statement that could revive it gets through no sooner than the note.
    pub(super) async fn done(self, lease: Lease, response: Option<Response<Bytes>>) {
        let (trying, tried) = oneshot::channel::<()>();
        let tasks = self.layer.locks.tasks().clone();
        tasks.spawn(self.note(lease, response, trying).in_current_span());
        // Ends when the sender is dropped.
        let _ = tried.await;
    }

    async fn note(
        self,
        lease: Lease,
        mut response: Option<Response<Bytes>>,
        trying: oneshot::Sender<()>,
    ) {
        let name = self.name.as_str();
        let (begun, mut closing, mut trying) = (Instant::now(), None, Some(trying));
        let (mut refused, mut backoff) = (0, Backoff::new(PAUSE.0, PAUSE.1));
        loop {
            let published = self.publish(&lease, response.as_ref()).await;
            let answer = Answer::from(&published);
            if self.layer.locks.tasks().is_closed() {
                closing.get_or_insert_with(Instant::now);
            }
            refused += u32::from(answer == Answer::Refused);
            let tries = Tries {
                refused,
                whole: response.is_some(),
                late: begun.elapsed() > RESPONSE_RETRY
                    || closing
                        .is_some_and(|closing| closing.elapsed() > RESPONSE_RETRY_AT_SHUTDOWN),
            };
            match (next(answer, tries), published) {
                (Next::Release, _) => {
                    // A release that fails is tried once more; then the lease runs out, which changes nothing for repeats.
                    let _ = lease.released_when_dropped().release().await;
                    return;
                }
                (Next::Without, published) => {
                    let error = published.err().map(tracing::field::display);
                    tracing::warn!(
                        name,
                        error,
                        "the database does not take a response: repeats are told that the request was done, and do not get the response"
                    );
                    response = None;
                    continue;
                }
                (Next::Leave, Ok(_)) => {
                    tracing::warn!(
                        name,
                        "a response could not be stored, as the lock of its request was taken over or broken"
                    );
                    return;
                }
                (Next::Leave, Err(error)) => {
                    tracing::error!(
                        name,
                        %error,
                        "a response could not be stored, nor that its request was done: repeats are told that it is not known"
                    );
                    return;
                }
                (Next::Again, _) => {}
            }
            drop(trying.take());
            backoff.random_pause().await;
        }
    }

    async fn publish(
        &self,
        lease: &Lease,
        response: Option<&Response<Bytes>>,
    ) -> Result<bool, Error> {
        let notes = Notes {
            asked: self.asked.clone(),
            kept: response.is_some(),
        };
        let nothing = Response::default();
        let edition = Edition {
            content: response.unwrap_or(&nothing),
            notes: &notes.encode(),
            keep: self.layer.lifetime,
        };
        let (store, name) = (self.layer.locks.store(), self.name.as_str());
        store
            .call("publish", |store| {
                store.publish(name, lease.row(), &edition)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_request_that_ran_is_released_only_when_its_note_is_stored() {
        let answers = [Answer::Stored, Answer::Refused, Answer::Unfit, Answer::Away];
        for (whole, late, refused, expected) in [
            (
                true,
                false,
                1,
                [Next::Release, Next::Again, Next::Without, Next::Again],
            ),
            (
                true,
                false,
                REFUSALS,
                [Next::Release, Next::Leave, Next::Without, Next::Again],
            ),
            (
                true,
                true,
                1,
                [Next::Release, Next::Leave, Next::Without, Next::Without],
            ),
            (
                false,
                false,
                1,
                [Next::Release, Next::Again, Next::Again, Next::Again],
            ),
            (
                false,
                false,
                REFUSALS,
                [Next::Release, Next::Leave, Next::Again, Next::Again],
            ),
            (
                false,
                true,
                1,
                [Next::Release, Next::Leave, Next::Leave, Next::Leave],
            ),
        ] {
            let tries = Tries {
                refused,
                whole,
                late,
            };
            assert_eq!(
                answers.map(|answer| next(answer, tries)),
                expected,
                "{tries:?}"
            );
        }
    }
}
