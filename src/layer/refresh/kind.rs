//! What is done with what the service answered.

use http::{HeaderMap, HeaderName, StatusCode, header, response::Parts};

use crate::{
    http::{
        fields::list,
        stored::{is_event_stream, is_heuristically_cacheable, is_shareable},
    },
    layer::refresh::keying::Key,
    resource::Pass,
};

/// What is done with a response, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stored.
    Content,
    /// Given to nobody: the service answers each request itself.
    Pass(Pass),
    /// Given to those who wait, not stored; one that may not be shared, to whoever caused it.
    Failure { shareable: bool },
}

/// `honours`: the policy goes by what the response says of its own freshness.
pub(super) fn kind(head: &Parts, key: &Key, honours: bool) -> Kind {
    let (status, headers) = (head.status, &head.headers);
    let unshareable = if !is_shareable(headers, honours) {
        Some(Pass::Private)
    } else if is_event_stream(headers) {
        Some(Pass::Stream)
    } else if !varies_by_key(headers, key) {
        Some(Pass::Vary)
    } else {
        None
    };
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        let shareable = unshareable.is_none();
        return Kind::Failure { shareable };
    }
    match unshareable {
        Some(why) => Kind::Pass(why),
        None if is_heuristically_cacheable(status) => Kind::Content,
        None => Kind::Pass(Pass::Status),
    }
}

/// Whether all that the response says it depends on is in the key (RFC 9111 §4.1), or is of no matter: what has no content coding can be read
/// by everybody, whatever they accept.
fn varies_by_key(headers: &HeaderMap, key: &Key) -> bool {
    let plain = !headers.contains_key(header::CONTENT_ENCODING);
    let missing = list(headers, &header::VARY).find(|field| {
        let name = field.parse::<HeaderName>();
        let counts = |name| key.has(&name) || (plain && name == header::ACCEPT_ENCODING);
        !field.is_empty() && !name.is_ok_and(counts)
    });
    if let Some(field) = &missing {
        tracing::warn!(
            "a response says `Vary: {field}`, which is not in the key, so that it is not kept; if it is to be, a version for \
             each value, add `.key(Key::new().header(…))` for `{field}` to the layer"
        );
    }
    missing.is_none()
}
