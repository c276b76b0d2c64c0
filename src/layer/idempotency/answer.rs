//! The responses to requests for which the service does not run.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::{
    layer::{ResponseBody, idempotency::state::Answer, problem::problem},
    timing::{REPEAT_LATER, REPEAT_SOON},
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

impl Answer<Response<Bytes>> {
    /// `name`: the name of the lock, for the log.
    pub(super) fn into_response<B>(self, name: &str) -> Response<ResponseBody<B>> {
        let (status, detail, retry_in) = match self {
            Self::Replay(response) => {
                let mut response = response.map(ResponseBody::stored);
                let replayed = HeaderValue::from_static("true");
                response.headers_mut().insert(REPLAYED, replayed);
                return response;
            }
            Self::NotStored => (
                StatusCode::CONFLICT,
                "the first request with this `Idempotency-Key` was done, and its response is not kept",
                None,
            ),
            Self::OtherRequest => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "this `Idempotency-Key` was another request's, with another body, query or `Content-Type`: send a new one for each thing to be done, and the same request if it is the same thing",
                None,
            ),
            Self::OtherCaller => {
                tracing::warn!(
                    name,
                    "an `Idempotency-Key` came again with other credentials or to another host; where credentials may change, tell callers apart by `IdempotencyLayer::scope`"
                );
                (
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "this `Idempotency-Key` was sent by somebody else, with other credentials or to another host: if it was yours, send it as you did then; a new one would have the thing done again",
                    None,
                )
            }
            Self::InProgress => (
                StatusCode::CONFLICT,
                "the first request with this `Idempotency-Key` is still being served: ask again",
                Some(REPEAT_SOON),
            ),
            Self::UnknownOutcome => {
                tracing::warn!(
                    name,
                    "nobody knows what has come of a request with an `Idempotency-Key`, as whoever did it is no more: find out, and if it was not done, `Locks::break_lock` on this name, of `LockKind::Request`, lets it be done"
                );
                (
                    StatusCode::CONFLICT,
                    "the first request with this `Idempotency-Key` was begun, and it is not known what has come of it: it is not done again. Ask whoever runs this service; a new key would have it done again",
                    None,
                )
            }
            // The store has logged the failure.
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "it can't be noted at the moment that this is being done, and so it is not done",
                Some(REPEAT_LATER),
            ),
        };
        problem(status, detail, &[], retry_in)
    }
}
