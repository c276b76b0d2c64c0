//! The decisions about a request with an `Idempotency-Key`. Pure: no I/O, and the time is an
//! argument.
//!
//! | state | event | next step |
//! |---|---|---|
//! | [`Attempt`] | the reply to `Begin`, or its loss | [`Next`] |
//! | [`Attempt`] | the service has done nothing | `Forget`, and a later one if [`may_return`](Attempt::may_return) |
//! | [`Storing`] | the reply to `Finish`, or its loss | [`Ending`] |
//!
//! If the process dies before the service has answered, or the service panics or returns an error,
//! the row stays as it is. The outcome of such a request is unknown.

use std::time::Duration;

use super::key::have_one_target;
use crate::{
    error::Error,
    store::{Begun, Progress},
    timing::{RESPONSE_RETRY, RESPONSE_RETRY_AT_SHUTDOWN},
};

/// A request between its first `Begin` and the end of its service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Attempt {
    /// The reply to an earlier `Begin` was lost: the store may carry the `Begin` out later.
    pub(super) lost: bool,
}

/// The step after a `Begin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next<C> {
    /// Call the service.
    Run,
    /// Send the same `Begin` again, with the same owner.
    Repeat(Attempt),
    /// Answer without a call of the service. `forget`: a `Begin` may have been carried out, or may
    /// be carried out later, so that its row has to be removed.
    Answer { answer: Answer<C>, forget: bool },
}

/// The answer to a request without a run of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer<C> {
    /// The stored response.
    Replay(C),
    /// The request was done, and its response is not stored.
    NotStored,
    /// The key belongs to a request with another body, query or media type.
    OtherRequest,
    /// The key belongs to a request with another method, host or path.
    OtherTarget,
    /// The first request with the key may still be running.
    InProgress,
    /// The first request with the key began, and its end is not known.
    UnknownOutcome,
    /// The database fails: nothing is done.
    Unavailable,
}

/// The loss of the reply to a `Begin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The `Begin` may be sent again.
    Repeatable,
    /// The request has waited long enough.
    Last,
}

impl Attempt {
    /// `fingerprint`: of this request.
    pub(super) fn begun<C>(self, fingerprint: &str, begun: Result<Begun<C>, Loss>) -> Next<C> {
        let answer = match begun {
            Ok(Begun::Own) => return Next::Run,
            Err(Loss::Repeatable) => return Next::Repeat(Self { lost: true }),
            Err(Loss::Last) => {
                return Next::Answer {
                    answer: Answer::Unavailable,
                    forget: true,
                };
            }
            Ok(Begun::Other {
                fingerprint: first,
                progress,
            }) => match progress {
                _ if !have_one_target(&first, fingerprint) => Answer::OtherTarget,
                _ if first != fingerprint => Answer::OtherRequest,
                Progress::Running => Answer::InProgress,
                Progress::Unknown => Answer::UnknownOutcome,
                Progress::Done(response) => response.map_or(Answer::NotStored, Answer::Replay),
            },
        };
        Next::Answer {
            answer,
            forget: self.lost,
        }
    }

    /// Returns true if the row of a request that has done nothing may return after a `Forget`.
    /// `forgotten`: the `Forget` was answered.
    pub(super) fn may_return(self, forgotten: bool) -> bool {
        self.lost || !forgotten
    }
}

/// A completed request whose response is being stored.
///
/// A `Finish` compares the owner, and no time. So the response is the right one however late it is
/// stored. If requests run again, the next run takes the row over, and the `Finish` is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Storing<C> {
    /// `None`: only the note that the request was done is stored.
    pub(super) response: Option<C>,
    /// The end of the tries.
    pub(super) until: Duration,
}

/// The reply of the store to a `Finish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    Stored,
    /// The row is another owner's, or is gone.
    Refused,
    /// The database does not take the response.
    Unfit,
    /// Any other error, or no reply.
    Away,
}

impl From<&Result<bool, Error>> for Finished {
    fn from(finished: &Result<bool, Error>) -> Self {
        match finished {
            Ok(true) => Self::Stored,
            Ok(false) => Self::Refused,
            Err(error) if error.is_unfit() => Self::Unfit,
            Err(_) => Self::Away,
        }
    }
}

/// The step after a `Finish`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending<C> {
    /// The response or the note is stored.
    Stored,
    /// Send a `Finish` again: at once if it is now without the response, and otherwise after a
    /// pause. The client does not wait for the pause.
    Retry(Storing<C>),
    /// Leave the row as it is: the outcome of the request is unknown.
    Leave,
}

impl<C> Storing<C> {
    /// `response`: `None` if the response cannot be stored.
    pub(super) fn new(response: Option<C>, now: Duration) -> Self {
        Self {
            response,
            until: now + RESPONSE_RETRY,
        }
    }

    /// `closing`: the process is shutting down.
    pub(super) fn finished(
        mut self,
        now: Duration,
        finished: Finished,
        closing: bool,
    ) -> Ending<C> {
        if closing {
            self.until = self.until.min(now + RESPONSE_RETRY_AT_SHUTDOWN);
        }
        let (late, whole) = (now > self.until, self.response.is_some());
        match finished {
            Finished::Stored => return Ending::Stored,
            Finished::Refused => return Ending::Leave,
            // A short note may get through where a response breaks the connection or takes too
            // long.
            _ if whole && (late || finished == Finished::Unfit) => self.response = None,
            _ if late => return Ending::Leave,
            Finished::Unfit | Finished::Away => {}
        }
        Ending::Retry(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Unfit;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn finish_is_repeated_until_its_time_is_over() {
        let replies = [
            Ok(true),
            Ok(false),
            Err(Error::step("finish", Unfit("is too large".into()))),
            Err(Error::timeout("finish", SECOND)),
        ];
        // For each reply above, the expected next step.
        for (whole, late, expected) in [
            (true, false, "stored leave without retry"),
            (true, true, "stored leave without without"),
            (false, false, "stored leave retry retry"),
            (false, true, "stored leave leave leave"),
        ] {
            let next = replies.each_ref().map(|reply| {
                let storing = Storing::new(whole.then_some(()), SECOND);
                let now = SECOND + RESPONSE_RETRY + if late { SECOND } else { Duration::ZERO };
                match storing.finished(now, Finished::from(reply), false) {
                    Ending::Stored => "stored",
                    Ending::Retry(next) if next.response.is_none() && whole => "without",
                    Ending::Retry(_) => "retry",
                    Ending::Leave => "leave",
                }
            });
            assert_eq!(next.join(" "), expected, "{whole} {late}");
        }
    }

    #[test]
    fn shutdown_shortens_the_time_for_a_finish_once() {
        let mut storing = Storing::new(Some(()), Duration::ZERO);
        for now in [SECOND, 2 * SECOND] {
            match storing.finished(now, Finished::Away, true) {
                Ending::Retry(next) => storing = next,
                next => panic!("{next:?}"),
            }
            assert_eq!(storing.until, SECOND + RESPONSE_RETRY_AT_SHUTDOWN);
        }
    }
}
