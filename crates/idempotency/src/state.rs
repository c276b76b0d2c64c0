//! The decisions about a request with an `Idempotency-Key`, as functions of the database's answers: no I/O, and
//! no clock. `check/` tries all possible orders of these answers.

use perennial_store::{Begun, Error, RequestProgress};

use crate::key::differing_parts;

/// The answer to a request for which the service does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestAnswer<C> {
    /// The stored response.
    Replay(C),
    /// The request was done, and its response is not stored.
    NotStored,
    /// The key belongs to another request, which differs in these parts.
    OtherRequest(Vec<&'static str>),
    /// The first request with the key may still be running.
    InProgress,
    /// The first request with the key began, and its end is not known.
    Unknown,
    /// The database fails, so nothing is done.
    Unavailable,
}

/// Decides what to do after the last `Begin` of a request with this fingerprint. `begun` is `None` if the reply
/// was lost. Returns the answer, or `None` if the service has to run.
pub(super) fn begun<C>(fingerprint: &str, begun: Option<Begun<C>>) -> Option<RequestAnswer<C>> {
    Some(match begun {
        None => RequestAnswer::Unavailable,
        Some(Begun::Own) => return None,
        Some(Begun::Other {
            fingerprint: first,
            progress,
        }) => match progress {
            _ if first != fingerprint => {
                RequestAnswer::OtherRequest(differing_parts(&first, fingerprint))
            }
            RequestProgress::Running => RequestAnswer::InProgress,
            RequestProgress::Unknown => RequestAnswer::Unknown,
            RequestProgress::Done(response) => {
                response.map_or(RequestAnswer::NotStored, RequestAnswer::Replay)
            }
        },
    })
}

/// The step after a `Finish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The response or the note is stored.
    Stored,
    /// Send the same `Finish` again, after a pause.
    Retry,
    /// Send a `Finish` without the response: the note that the request was done.
    Note,
    /// Leave the row as it is. Without a response in it, the outcome of the request is unknown.
    Leave,
}

/// Decides what to do after a `Finish`, which has stored either a response, or only that the request is done.
/// If `late` is true, the time for attempts is over.
///
/// A `Finish` checks the owner of the row, and not the time. So it may store its response however late it
/// comes. If requests may run again, the next run takes the row over, and the `Finish` of the previous one is
/// refused.
pub(super) fn finished(reply: &Result<bool, Error>, has_response: bool, late: bool) -> Ending {
    match reply {
        Ok(true) => Ending::Stored,
        Ok(false) => Ending::Leave,
        // A short note may get through where a response breaks the connection or takes too long.
        Err(error) if has_response && (late || error.is_rejected_value()) => Ending::Note,
        Err(_) if late => Ending::Leave,
        Err(_) => Ending::Retry,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use perennial_store::error::RejectedValue;

    #[test]
    fn finish_is_repeated_until_its_time_is_over() {
        let replies = [
            Ok(true),
            Ok(false),
            Err(Error::operation(
                "finish",
                RejectedValue("is too large".into()),
            )),
            Err(Error::timeout("finish", Duration::from_secs(1))),
        ];
        // For each reply above, the expected next step.
        for (has_response, late, expected) in [
            (true, false, "Stored Leave Note Retry"),
            (true, true, "Stored Leave Note Note"),
            (false, false, "Stored Leave Retry Retry"),
            (false, true, "Stored Leave Leave Leave"),
        ] {
            let next = replies.each_ref();
            let next = next.map(|reply| format!("{:?}", finished(reply, has_response, late)));
            assert_eq!(next.join(" "), expected, "{has_response} {late}");
        }
    }
}
