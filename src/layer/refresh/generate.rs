//! Calls the inner service once as a generator. The result is content, a bypass or a failure. The caller runs
//! it in a task of its own, under a lease.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use perennial_store::{error::BoxError, http_util::is_well_framed, name::visible};
use tower_service::Service;

use super::{
    disposition::{Disposition, disposition, missing_in_key},
    request::Generating,
    service::Shared,
};
use crate::{
    cache::{Failure, Generated, parts},
    event::Bypass,
    extensions::{ExpireAfter, RefreshAfter, Tags},
    generation::Generation,
    http::stored,
    layer::{Holes, body::read, future::oneshot as call},
};

/// The number of bytes of a failed response that the log shows.
const SHOWN_BODY_BYTES: usize = 200;

/// One run of the service as a generator.
pub(super) async fn generate<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    mut request: Request<ReqBody>,
) -> Generated
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    let (layer, service) = (&shared.layer, shared.inner());
    let mut missed = Arc::default();
    let holes = request.extensions().get::<Holes>().cloned();
    request.extensions_mut().insert(Generation::current());
    if let (Some(holes), Some(run)) = (&holes, parts::current()) {
        holes.belong_to(&run);
    }
    if let Some(generating) = request.extensions_mut().get_mut::<Generating>() {
        missed = Arc::clone(&generating.missed);
        generating.run = parts::current().map_or_else(Weak::new, |run| Arc::downgrade(&run));
    }
    let failed = |error: BoxError, response| {
        // axum answers with such an error if a handler asks for an extension that is missing.
        let names_one = error.to_string().contains("extension");
        let error = match &*missed {
            names if !names.is_empty() && names_one => {
                let names = names.join(", ");
                format!(
                    "{error}; the generator's request was without the extensions {names}, which the layer ignores: if the handler needs one, \
                     let such requests bypass the cache by `bypass_if`, or declare what is equal for all visitors by `share_extension`"
                )
                .into()
            }
            _ => error,
        };
        Generated::Failed(Failure {
            response,
            ..Failure::new(error)
        })
    };
    let uri = request.uri().clone();
    let response = match call(service, request).await {
        Ok(response) => response,
        Err(error) => return failed(error.into(), None),
    };
    let (mut head, body) = response.into_parts();
    let generation = Generation::current();
    if let Some(RefreshAfter(age)) = head.extensions.get() {
        generation.refresh_after(*age);
    }
    if let Some(ExpireAfter(left)) = head.extensions.get() {
        // The time counts from now, and not from the moment at which the body has been read and stored.
        generation.expire_after(*left);
    }
    if head.status == StatusCode::METHOD_NOT_ALLOWED {
        layer.hints.not_allowed(uri.path());
    }
    layer.key.add_vary(&mut head.headers);
    let tags = head.extensions.get::<Tags>().cloned().unwrap_or_default();
    let tags = tags.and(&*layer.tags.0);
    let disposition = disposition(&head, &layer.key, layer.policy.by_headers);
    let settings = layer.cache.settings();
    let answered = |response: Option<Response<Bytes>>| {
        let body = response.as_ref().map(|response| shown(response.body()));
        let status = format!(
            "the service answered {}{}",
            head.status,
            body.unwrap_or_default()
        );
        failed(status.into(), response.map(Into::into))
    };
    if disposition == Disposition::Content && !layer.store_if.iter().all(|may| may(&head)) {
        return Generated::NotStored(Bypass::StoreIf, tags);
    }
    match disposition {
        Disposition::Pass(why) => {
            match why {
                Bypass::Private => layer.hints.private(uri.path()),
                Bypass::Vary => {
                    let field = missing_in_key(&head.headers, &layer.key);
                    layer.hints.vary(uri.path(), &field.unwrap_or_default());
                }
                _ => {}
            }
            return Generated::NotStored(why, tags);
        }
        Disposition::Failure { shareable: false } => return answered(None),
        Disposition::Failure { shareable: true } | Disposition::Content => {}
    }
    let undeclared = layer.dropped.undeclared(&head.extensions);
    if !undeclared.is_empty() {
        layer.hints.response_extensions(uri.path(), &undeclared);
    }
    match disposition {
        Disposition::Content if !undeclared.is_empty() => {
            return Generated::NotStored(Bypass::ResponseExtension, tags);
        }
        _ if !undeclared.is_empty() => return answered(None),
        Disposition::Content if stored::size(&head.headers) > settings.max_headers => {
            let size = format!("{} bytes of headers", stored::size(&head.headers));
            layer
                .hints
                .too_large(uri.path(), &size, settings.max_headers, "max_headers");
            return Generated::NotStored(Bypass::TooLarge, tags);
        }
        _ => {}
    }
    let declared = body.size_hint().exact();
    let body = match read(body, settings.max_body).await {
        Ok(Some(body)) if is_well_framed(&head.headers, &body) => body,
        Ok(Some(_)) => {
            let error = "the Content-Length or Transfer-Encoding does not match the body";
            return failed(error.into(), None);
        }
        Ok(None) if disposition == Disposition::Content => {
            let size = match declared {
                Some(size) => format!("{size} bytes"),
                None => format!("more than {} bytes", settings.max_body),
            };
            layer
                .hints
                .too_large(uri.path(), &size, settings.max_body, "max_body");
            return Generated::NotStored(Bypass::TooLarge, tags);
        }
        Ok(None) => return answered(None),
        Err(error) => return failed(error.into(), None),
    };
    let cut = match &holes {
        Some(holes) => holes.cut(&head, body),
        None => Ok((body, None)),
    };
    let (body, places) = match cut {
        Ok(cut) => cut,
        Err(mistake) => return failed(mistake.into(), None),
    };
    let has_holes = places.is_some();
    let mut response = stored::storable(&head, body);
    if let Some(places) = places {
        // The body here has no fillings. An entity tag or a length computed from it would not match any body
        // that is sent.
        stored::invalidate(&mut response);
        response.extensions_mut().insert(Arc::new(places));
    }
    if disposition != Disposition::Content {
        return answered(Some(response));
    }
    // The layer adds these headers to each answer, whether the service has set them or not.
    let mut added = vec![header::AGE, header::DATE];
    added.extend(settings.cache_status.then_some(header::CACHE_STATUS));
    added.extend(layer.policy.cdn_cache.map(|_| header::CDN_CACHE_CONTROL));
    if let Some(cdn_tags) = layer.cdn_tags {
        // The tags of the parts are known only when the generator has ended.
        added.push(cdn_tags.header());
        response.extensions_mut().insert(cdn_tags);
    }
    stored::vary_by_coding(response.headers_mut());
    if !has_holes {
        stored::validate(&mut response, &added);
    }
    // As for tags that the handler has added itself, there is a limit to their number.
    generation.tag(tags.iter().cloned().collect::<Vec<_>>());
    Generated::Content(response)
}

/// Returns the beginning of the body of a failed response, for the log.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BODY_BYTES)]);
    match visible(text.trim()) {
        text if text.is_empty() => text,
        text => format!(": {text}"),
    }
}
