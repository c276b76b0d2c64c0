//! The decisions about a request with an `Idempotency-Key`. Pure: no I/O, and the time is an
//! argument.
//!
//! Each state is a type, and each event a method that ends the state:
//!
//! | state | event | next state |
//! |---|---|---|
//! | [`Request`] | the store was probed | [`Free`], or an [`Answer`] |
//! | [`Free`] | the lock was tried | the lease of a service that runs, or an [`Answer`] |
//! | [`Storing`] | a publish was answered | as [`Next`] says |
//!
//! If the process dies before the service has answered, or the service panics or returns an error,
//! the lock's row keeps its owner. The outcome of such a request is unknown.

use std::time::Duration;

use crate::{
    error::Error,
    layer::idempotency::fingerprint::Fingerprint,
    store::LockState,
    timing::{PROBE_VALID, RESPONSE_RETRY, RESPONSE_RETRY_AT_SHUTDOWN},
};

/// The number of refused publishes after which a lease counts as overtaken. The node that refuses a
/// publish may lag behind the node that granted the lease.
const REFUSALS: u32 = 6;

/// A request before its key is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) fingerprint: &'a Fingerprint,
    /// The age up to which a stored response is replayed.
    pub(super) lifetime: Duration,
    /// Requests with an unknown outcome run again.
    pub(super) run_again: bool,
}

/// The rows of a key.
#[derive(Clone, Debug)]
pub(super) struct Found<C> {
    pub(super) stored: Option<Stored<C>>,
    /// The stored response is unreadable.
    pub(super) unreadable: bool,
    pub(super) lock: LockState,
}

/// The note about a completed request.
#[derive(Clone, Debug)]
pub(super) struct Stored<C> {
    /// The fence of the lease under which the service ran.
    pub(super) fence: i64,
    pub(super) age: Duration,
    pub(super) fingerprint: Fingerprint,
    /// `None`: the response could not be stored.
    pub(super) response: Option<C>,
}

/// The answer to a request without a run of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer<C> {
    /// The stored response.
    Replay(C),
    /// The request was done, and its response is not stored.
    NotStored,
    /// The key belongs to a request with another method, body, query or media type.
    OtherRequest,
    /// The key belongs to another caller.
    OtherCaller,
    /// The first request with the key may still be running.
    InProgress,
    /// The first request with the key began, and its process has not noted the end.
    UnknownOutcome,
    /// The database fails: nothing is done.
    Unavailable,
}

/// A request that may run if the lock can be acquired while the lock's fence is still `seen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Free {
    pub(super) seen: i64,
}

impl Request<'_> {
    pub(super) fn probed<C, E>(&self, probed: Result<Found<C>, E>) -> Result<Free, Answer<C>> {
        let Ok(found) = probed else {
            return Err(Answer::Unavailable);
        };
        let lock = found.lock;
        let is_free = match found.stored {
            _ if found.unreadable => return Err(Answer::NotStored),
            Some(stored) if stored.age <= self.lifetime => return Err(self.repeated(stored)),
            // With the entry's fence, no request has acquired the lock since the completed one,
            // which may not have released it.
            Some(stored) => !lock.owned || stored.fence == lock.fence,
            None => !lock.owned,
        };
        if !lock.remaining.is_zero() {
            Err(Answer::InProgress)
        } else if is_free || self.run_again {
            Ok(Free { seen: lock.fence })
        } else {
            Err(Answer::UnknownOutcome)
        }
    }

    fn repeated<C>(&self, stored: Stored<C>) -> Answer<C> {
        if stored.fingerprint.caller != self.fingerprint.caller {
            Answer::OtherCaller
        } else if stored.fingerprint.request != self.fingerprint.request {
            Answer::OtherRequest
        } else {
            stored.response.map_or(Answer::NotStored, Answer::Replay)
        }
    }
}

impl Free {
    /// Returns the lease under which the service runs. A lease that was acquired too long after the
    /// probe is dropped, which releases the lock.
    ///
    /// `took`: the time since the probe was sent.
    pub(super) fn tried<L, C, E>(
        self,
        took: Duration,
        tried: Result<Option<L>, E>,
    ) -> Result<L, Answer<C>> {
        match tried {
            Ok(Some(lease)) if took <= PROBE_VALID => Ok(lease),
            Ok(_) => Err(Answer::InProgress),
            Err(_) => Err(Answer::Unavailable),
        }
    }
}

/// A completed request whose response is being stored.
///
/// A publish compares owner and fence, not the expiry, and no other process acquires a lock that
/// has expired and still has an owner. So a note is right however late it is stored. If requests
/// [run again](Request::run_again), the next run takes the lock over, and the note is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Storing<L, C> {
    pub(super) lease: L,
    /// `None`: only the note that the request was done is stored.
    pub(super) response: Option<C>,
    /// The end of the tries.
    pub(super) until: Duration,
    /// The number of refused publishes.
    pub(super) refused: u32,
}

/// The answer of the database to a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    Stored,
    /// The lock is not this lease's, as far as the answering node knows.
    Refused,
    /// The database does not take the response.
    Unfit,
    /// Any other error, or no answer.
    Away,
}

impl From<&Result<bool, Error>> for Published {
    fn from(published: &Result<bool, Error>) -> Self {
        match published {
            Ok(true) => Self::Stored,
            Ok(false) => Self::Refused,
            Err(error) if error.is_unfit() => Self::Unfit,
            Err(_) => Self::Away,
        }
    }
}

/// The step after a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next<L, C> {
    /// Release the lock: the note is stored.
    Release(L),
    /// Publish again after a pause. The client does not wait for that.
    Retry(Storing<L, C>),
    /// Publish at once, now without the response.
    RetryWithoutResponse(Storing<L, C>),
    /// Leave the lock without a release: its lease expires, and its row keeps the owner. The lock
    /// of a request that ran is never released without a note: its key would be new.
    Leave(L),
}

impl<L, C> Storing<L, C> {
    /// `response`: `None` if the response cannot be stored.
    pub(super) fn new(lease: L, response: Option<C>, now: Duration) -> Self {
        Self {
            lease,
            response,
            until: now + RESPONSE_RETRY,
            refused: 0,
        }
    }

    /// `closing`: the process is shutting down.
    pub(super) fn published(
        mut self,
        now: Duration,
        published: Published,
        closing: bool,
    ) -> Next<L, C> {
        if closing {
            self.until = self.until.min(now + RESPONSE_RETRY_AT_SHUTDOWN);
        }
        let (late, whole) = (now > self.until, self.response.is_some());
        match published {
            Published::Stored => Next::Release(self.lease),
            Published::Refused => {
                self.refused += 1;
                if late || self.refused >= REFUSALS {
                    Next::Leave(self.lease)
                } else {
                    Next::Retry(self)
                }
            }
            // A short note may get through where a response breaks the connection or takes too
            // long.
            Published::Unfit | Published::Away
                if whole && (late || published == Published::Unfit) =>
            {
                self.response = None;
                Next::RetryWithoutResponse(self)
            }
            Published::Unfit | Published::Away if late => Next::Leave(self.lease),
            Published::Unfit | Published::Away => Next::Retry(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Unfit;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn failing_or_unreadable_store_does_not_let_a_request_run() {
        let request = Request {
            fingerprint: &Fingerprint::default(),
            lifetime: SECOND,
            run_again: true,
        };
        let unreadable = Found::<()> {
            stored: None,
            unreadable: true,
            lock: LockState::default(),
        };
        assert_eq!(
            request.probed(Ok::<_, ()>(unreadable)),
            Err(Answer::NotStored)
        );
        assert_eq!(
            request.probed(Err::<Found<()>, _>(())),
            Err(Answer::Unavailable)
        );
        let tried = |took, lease| Free { seen: 0 }.tried::<_, (), _>(took, lease);
        assert_eq!(tried(PROBE_VALID, Ok(Some(7))), Ok(7));
        assert_eq!(tried(SECOND, Ok(None)), Err(Answer::InProgress));
        assert_eq!(tried(SECOND, Err(())), Err(Answer::Unavailable));
    }

    #[test]
    fn publish_is_repeated_until_its_time_is_over() {
        let answers = [
            Ok(true),
            Ok(false),
            Err(Error::step("publish", Unfit("is too large".into()))),
            Err(Error::timeout("publish", SECOND)),
        ];
        // For each answer above, the expected next step.
        for (whole, late, refused, expected) in [
            (true, false, 0, "release retry without retry"),
            (true, false, REFUSALS - 1, "release leave without retry"),
            (true, true, 0, "release leave without without"),
            (false, false, 0, "release retry retry retry"),
            (false, false, REFUSALS - 1, "release leave retry retry"),
            (false, true, 0, "release leave leave leave"),
        ] {
            let next = answers.each_ref().map(|answer| {
                let mut storing = Storing::new((), whole.then_some(()), SECOND);
                storing.refused = refused;
                let now = SECOND + RESPONSE_RETRY + if late { SECOND } else { Duration::ZERO };
                match storing.published(now, Published::from(answer), false) {
                    Next::Release(()) => "release",
                    Next::Retry(_) => "retry",
                    Next::RetryWithoutResponse(_) => "without",
                    Next::Leave(()) => "leave",
                }
            });
            assert_eq!(next.join(" "), expected, "{whole} {late} {refused}");
        }
    }

    #[test]
    fn shutdown_shortens_the_time_for_publishes_once() {
        let mut storing = Storing::new((), Some(()), Duration::ZERO);
        for now in [SECOND, 2 * SECOND] {
            match storing.published(now, Published::Away, true) {
                Next::Retry(next) => storing = next,
                next => panic!("{next:?}"),
            }
            assert_eq!(storing.until, SECOND + RESPONSE_RETRY_AT_SHUTDOWN);
        }
    }
}
