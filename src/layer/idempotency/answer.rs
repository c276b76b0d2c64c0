//! The responses to requests for which the service does not run.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::{
    layer::{ResponseBody, idempotency::state::Answer, problem::problem},
    timing::{RETRY_AFTER_FAILURE, RETRY_IN_PROGRESS},
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

impl Answer<Response<Bytes>> {
    /// `name`: the name of the request's row, for the log.
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
                "the first request with this `Idempotency-Key` was done, and its response is not stored",
                None,
            ),
            Self::OtherRequest => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "another request had this `Idempotency-Key`, with another body, query or `Content-Type`: send a new key for each new request, and repeat a request unchanged",
                None,
            ),
            Self::OtherTarget => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "another request had this `Idempotency-Key`, with another method, host or path: send a new key for each new request, and repeat a request unchanged",
                None,
            ),
            Self::InProgress => (
                StatusCode::CONFLICT,
                "the first request with this `Idempotency-Key` is still being served: repeat the request later",
                Some(RETRY_IN_PROGRESS),
            ),
            Self::UnknownOutcome => {
                tracing::warn!(
                    name,
                    "the outcome of a request with an `Idempotency-Key` is unknown, as its process or its service failed, or is slow: find out whether the request was done; if not, `IdempotencyLayer::forget` lets the request run"
                );
                (
                    StatusCode::CONFLICT,
                    "the first request with this `Idempotency-Key` was begun, and its outcome is unknown, so the request does not run again. Ask the operator of this service; with a new key the request runs again",
                    None,
                )
            }
            // The store has logged the failure.
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the `Idempotency-Key` cannot be stored at the moment, so the request is not done",
                Some(RETRY_AFTER_FAILURE),
            ),
        };
        problem(status, detail, &[], retry_in).map(ResponseBody::stored)
    }
}
