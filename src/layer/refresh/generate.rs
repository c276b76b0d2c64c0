//! The service as a generator.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    disposition::{Disposition, disposition},
    request::Generating,
    service::Shared,
};
use crate::{
    error::BoxError,
    extensions::{RefreshAfter, Tags},
    http::stored,
    layer::{
        ResponseBody,
        body::{Read, read},
        future::oneshot as call,
    },
    resource::{Failure, Generated},
};

/// A response for the visitor whose request started the regeneration, as the response cannot be
/// copied.
pub(super) enum Direct<B, E> {
    /// A response that is too large to be stored.
    TooLarge(Response<ResponseBody<B>>),
    /// The service's error, or a failure's response that is too large or one visitor's own.
    Failed(Result<Response<ResponseBody<B>>, E>),
}

/// One run of the service as a generator.
pub(super) async fn generate<S, ReqBody, ResBody>(
    shared: Arc<Shared<S>>,
    request: Request<ReqBody>,
    direct: oneshot::Sender<Direct<ResBody, S::Error>>,
) -> Generated
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    let (layer, service) = (&shared.layer, shared.inner());
    let generating = request.extensions().get::<Generating>();
    let hidden = generating.map_or_else(Arc::default, |it| Arc::clone(&it.hidden));
    let failed = |error: BoxError, response| {
        let error = match &*hidden {
            [] => error,
            names => {
                let names = names.join(", ");
                format!(
                    "{error}; the generator's request was without the extensions {names}, which the layer ignores: if the handler needs one, \
                     let such requests bypass the cache by `bypass_if`, or declare what is equal for all visitors by `share_extension`"
                )
                .into()
            }
        };
        Generated::Failed(Failure {
            response,
            ..Failure::new(error)
        })
    };
    let uri = request.uri().clone();
    // The receiver of a direct response is gone if the visitor has disconnected.
    let response = match call(service, request).await {
        Ok(response) => response,
        Err(error) => {
            let _ = direct.send(Direct::Failed(Err(error)));
            return failed("the service returned an error".into(), None);
        }
    };
    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::METHOD_NOT_ALLOWED {
        layer.hints.not_allowed(uri.path());
    }
    layer.key.add_vary(&mut head.headers);
    let tags = head.extensions.get::<Tags>().cloned().unwrap_or_default();
    let tags = tags.and(&layer.tags.0);
    let disposition = disposition(&head, &layer.key, layer.policy.from_headers);
    let settings = &layer.pages.settings;
    let is_stored_or_shared = match disposition {
        Disposition::Pass(why) => return Generated::Unshareable { why, tags },
        Disposition::Content => stored::size(&head.headers) <= settings.max_headers,
        Disposition::Failure { shareable } => shareable,
    };
    let status = format!("the service answered {}", head.status);
    let read = match is_stored_or_shared {
        true => read(body, settings.max_body).await,
        false => Ok(Read::TooLarge(ResponseBody::streamed(body))),
    };
    let body = match read {
        Ok(Read::Whole(body)) if stored::is_well_framed(&head.headers, &body) => body,
        Ok(Read::Whole(_)) => {
            let error = "the Content-Length or Transfer-Encoding does not match the body";
            return failed(error.into(), None);
        }
        Ok(Read::TooLarge(body)) => {
            let response = Response::from_parts(head, body);
            if disposition == Disposition::Content {
                let _ = direct.send(Direct::TooLarge(response));
                return Generated::TooLarge;
            }
            let _ = direct.send(Direct::Failed(Ok(response)));
            return failed(status.into(), None);
        }
        Err(error) => return failed(error.into(), None),
    };
    let mut response = stored::storable(&head, body);
    if disposition != Disposition::Content {
        return failed(status.into(), Some(response.into()));
    }
    stored::validate(&mut response);
    response.extensions_mut().insert(tags);
    if let Some(after) = head.extensions.get::<RefreshAfter>() {
        response.extensions_mut().insert(*after);
    }
    Generated::Content(response)
}
