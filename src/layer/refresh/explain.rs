//! Requests for an explanation: a request with the site's token, or one made by `Perennial::explain`,
//! gets the answer to the question what a real request would get, and why. The decisions are the same as
//! for real requests; nothing is generated or stored.

use bytes::Bytes;
use http::{HeaderName, Response, StatusCode, header, request::Parts};
use sha2::{Digest, Sha256};

use super::{
    own_request::{OwnRequest, Purpose},
    request,
};
use crate::{
    cache::listing::explain::{Comparison, Explanation},
    event::{Bypass, Served},
    layer::{RefreshLayer, ResponseBody},
};

/// The header of the token.
const EXPLAIN: HeaderName = HeaderName::from_static("perennial-explain");

/// If this header is sent together with the token, the operator asks for the comparison, which runs the
/// handler.
const COMPARE: HeaderName = HeaderName::from_static("perennial-explain-compare");

/// Returns the digest of a token. Digests are compared instead of tokens, so that the time of a comparison
/// reveals nothing about the token.
pub(crate) fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Returns true for a request for an explanation. If the site has a token, the header with the token is removed
/// from every request.
#[inline]
pub(super) fn is_asked(parts: &mut Parts, layer: &RefreshLayer, purpose: Option<Purpose>) -> bool {
    let by_token = match layer.cache.settings().explain_token {
        Some(token) => {
            let sent_token = parts.headers.remove(EXPLAIN);
            sent_token.is_some_and(|sent_token| digest(sent_token.as_bytes()) == token)
        }
        None => false,
    };
    by_token || purpose == Some(Purpose::Explain)
}

/// Returns true for a request with the header of a token, whatever the token is.
pub(super) fn may_be_asked(parts: &Parts, layer: &RefreshLayer) -> bool {
    layer.cache.settings().explain_token.is_some() && parts.headers.contains_key(EXPLAIN)
}

/// Returns true for a request with the header of the comparison, and takes the header off.
pub(super) fn is_to_be_compared(parts: &mut Parts) -> bool {
    parts.headers.remove(COMPARE).is_some()
}

/// Explains the answer to a request, as JSON. Generates and stores nothing. `compared` is awaited where a page is
/// stored under the request's key, or would be.
pub(super) async fn explain<B, E>(
    layer: RefreshLayer,
    parts: Parts,
    compared: Option<impl AsyncFnOnce(&Parts) -> Comparison>,
) -> Result<Response<ResponseBody<B>>, E> {
    let mut explained = explanation(&layer, &parts).await;
    if let (Ok(explanation), Some(compared)) = (&mut explained, compared)
        && !matches!(explanation.served, Served::Bypass(_))
    {
        explanation.comparison = Some(compared(&parts).await);
    }
    let (status, text) = match &explained {
        Ok(explanation) => (StatusCode::OK, serde_json::to_string(explanation)),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            serde_json::to_string(&format!("{error:#}")),
        ),
    };
    let body = Bytes::from(text.expect("texts and numbers have a JSON form"));
    let length = body.len();
    let mut response = Response::new(ResponseBody::stored(body));
    *response.status_mut() = status;
    for (name, value) in [
        (header::CACHE_CONTROL, "private, no-store".to_owned()),
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
    ] {
        let value = value.try_into().expect("a header's value");
        response.headers_mut().insert(name, value);
    }
    if let Some(own_request) = OwnRequest::of(&parts.extensions) {
        own_request.note_explanation(explained);
    }
    Ok(response)
}

async fn explanation(
    layer: &RefreshLayer,
    parts: &Parts,
) -> Result<Explanation, perennial_store::Error> {
    let explanation = match request::resource(parts, layer) {
        Err(why) => Explanation::bypass(why),
        Ok(_) if layer.cache.is_off() => Explanation::bypass(Bypass::Off),
        Ok(resource) => {
            let (key, cache) = (&*resource.key, &layer.cache);
            let is_refused =
                || !cache.has_in_memory(key) && layer.admission.refuses(key, cache.now());
            let explanation = match request::to_generate(parts, &resource, layer) {
                _ if is_refused() => Explanation::bypass(Bypass::TooManyKeys),
                Err(why) => Explanation::bypass(why),
                Ok(generating) => {
                    let mut explanation = cache.listing.explain(key, &layer.policy).await?;
                    let seen = generating.headers();
                    explanation.hidden_headers = [header::COOKIE, header::AUTHORIZATION]
                        .iter()
                        .filter(|name| {
                            parts.headers.contains_key(*name) && !seen.contains_key(*name)
                        })
                        .map(ToString::to_string)
                        .collect();
                    explanation
                }
            };
            Explanation {
                key: Some(key.to_owned()),
                ..explanation
            }
        }
    };
    Ok(Explanation {
        layer: layer.name_in(&parts.extensions).to_string(),
        ..explanation
    })
}
