//! The response to a request that is not passed to the service: a stored response, or a problem (RFC 9457)
//! that says what the client can do.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};

use perennial_store::{Store, StoreEvent, http_util::problem};

use crate::{
    body::{ResponseBody, full_body},
    state::RequestAnswer,
    timing::{RETRY_AFTER_FAILURE, RETRY_IN_PROGRESS},
};

const NOT_STORED: &str = "The first request with this `Idempotency-Key` was done. Its response could not be stored, so it cannot be repeated.";
const IN_PROGRESS: &str = "The first request with this `Idempotency-Key` is still being served. Repeat the request later.";
const UNKNOWN: &str = "The first request with this `Idempotency-Key` was begun, and nobody knows whether it was done. Ask the operator of this service. With a new key, the request runs again.";
const UNAVAILABLE: &str = "The `Idempotency-Key` cannot be stored at the moment, so nothing was done. Repeat the request later.";

/// Returns the text for a client whose request differs from the first one with the same key.
fn other_request(parts: &[&str]) -> String {
    let parts = match parts {
        [] => "other contents".to_owned(),
        [one] => format!("another {one}"),
        [before @ .., last] => format!("another {} and {last}", before.join(", ")),
    };
    format!(
        "The first request with this `Idempotency-Key` had {parts}. Send a new key for each new request, and repeat a request unchanged."
    )
}

/// Returns a response that does not depend on the request's row.
pub(super) fn refusal<E>(status: StatusCode, detail: &str) -> Response<ResponseBody<E>> {
    problem(status, detail, &[], None).map(full_body)
}

impl RequestAnswer<Response<Bytes>> {
    /// `name` is the name of the request's row, for the log, and `logs` says whether to log an unknown
    /// outcome.
    pub(super) fn into_response(
        self,
        name: &str,
        store: &Store,
        logs: impl FnOnce() -> bool,
    ) -> Response<Bytes> {
        let (status, detail, retry_in) = match self {
            Self::Replay(mut response) => {
                let replayed = HeaderValue::from_static("true");
                let headers = response.headers_mut();
                headers.insert("idempotency-replayed", replayed);
                store.notify(&StoreEvent::Replayed { name });
                return response;
            }
            Self::NotStored => (StatusCode::CONFLICT, NOT_STORED.to_owned(), None),
            Self::OtherRequest(parts) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                other_request(&parts),
                None,
            ),
            Self::InProgress => (
                StatusCode::CONFLICT,
                IN_PROGRESS.to_owned(),
                Some(RETRY_IN_PROGRESS),
            ),
            Self::Unknown => {
                if logs() {
                    tracing::warn!(
                        name,
                        "the outcome of a request with an `Idempotency-Key` is unknown, as its process or its service failed, or is slow: \
                         find out whether the request was done; if not, `IdempotencyLayer::forget` lets the request run (logged once a minute)"
                    );
                }
                (StatusCode::CONFLICT, UNKNOWN.to_owned(), None)
            }
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                UNAVAILABLE.to_owned(),
                Some(RETRY_AFTER_FAILURE),
            ),
        };
        problem(status, &detail, &[], retry_in)
    }
}
