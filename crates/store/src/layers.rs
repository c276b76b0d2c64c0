//! What the Tower layers of several crates share.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// Implements the accessors of a service with an inner service, as in tower-http.
#[doc(hidden)]
#[macro_export]
macro_rules! of_inner {
    ($service:ident, $layer:ident) => {
        impl<S> $service<S> {
            /// Wraps a service in a layer.
            pub fn new(inner: S, layer: $layer) -> Self {
                Self { inner, layer }
            }

            /// Returns the inner service.
            pub fn get_ref(&self) -> &S {
                &self.inner
            }

            /// Returns the inner service, to be changed.
            pub fn get_mut(&mut self) -> &mut S {
                &mut self.inner
            }

            /// Returns the inner service.
            pub fn into_inner(self) -> S {
                self.inner
            }
        }
    };
}

/// Returns a response with a problem body (RFC 9457). The problem's `type` is the status (§4.2.1), and
/// `members` are added.
pub fn problem(
    status: StatusCode,
    detail: &str,
    members: &[(&str, &str)],
    retry_in: Option<Duration>,
) -> Response<Bytes> {
    let mut object = json!({
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
    });
    for (name, value) in members.iter().filter(|(_, value)| !value.is_empty()) {
        object[*name] = Value::from(*value);
    }
    let body = object.to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(time) = retry_in {
        let seconds = time.as_secs_f64().ceil().max(1.0) as u64;
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
