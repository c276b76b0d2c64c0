//! The last step of a layer with holes: it puts what belongs to one visitor into the response.
//!
//! A stored page arrives as [`Unfilled`], with the places of its holes. If the service itself has answered the
//! visitor, the body still contains the marks that the handler has written, and they are replaced here.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, header, request::Parts};
use http_body::Body;

use super::{outgoing, own_request::OwnRequest, request::Generating, respond::Unfilled};
use crate::{
    cache::Version,
    http::stored,
    layer::{
        Holes, RefreshLayer, ResponseBody,
        holes::{Filled, Fillings},
        own_writes::OwnWrites,
    },
};

/// What is needed of a request to fill the response to it.
pub(super) struct Recipient {
    parts: Parts,
    holes: Holes,
    sender: Sender,
}

/// Who has sent a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Visitor,
    /// The application itself, for example when it calls `regenerate`. It does not read the body.
    Application,
    /// The generator of an outer layer, for all visitors.
    Generator,
    /// The request comes from a generator of the very layer that has these holes.
    OwnGenerator,
}

impl Recipient {
    /// Takes what is needed from a request, and adds the extension [`Holes`] to it.
    pub(super) fn of(parts: &mut Parts, layer: &RefreshLayer) -> Self {
        let is_generator = parts.extensions.get::<Generating>().is_some();
        let outer = parts.extensions.get::<Holes>().filter(|_| is_generator);
        let sender = match (&outer, is_generator) {
            (Some(_), _) => Sender::OwnGenerator,
            (None, true) => Sender::Generator,
            (None, false) if OwnRequest::of(&parts.extensions).is_some() => Sender::Application,
            (None, false) => Sender::Visitor,
        };
        let holes = outer.cloned().unwrap_or_else(|| {
            let holes = Holes::new(Arc::clone(layer.holes.names()));
            parts.extensions.insert(holes.clone());
            holes
        });
        Self {
            parts: parts.clone(),
            holes,
            sender,
        }
    }
}

impl RefreshLayer {
    /// Fills the holes of a response.
    pub(super) async fn fill<B: Body<Data = Bytes>>(
        &self,
        mut response: Response<ResponseBody<B>>,
        recipient: Recipient,
    ) -> Response<ResponseBody<B>> {
        let Recipient {
            mut parts,
            holes,
            sender,
        } = recipient;
        let unfilled = response.extensions_mut().remove::<Unfilled>();
        // The functions of the holes get the visitor's request unchanged.
        parts.extensions.remove::<Holes>();
        match sender {
            Sender::Visitor => {}
            Sender::Generator if holes.may_have_marks() => {
                // The outer layer cannot cut these marks out, so it does not store the response. It asks the
                // inner layer again for each visitor.
                outgoing::personal(response.headers_mut());
                return response;
            }
            Sender::Application | Sender::Generator | Sender::OwnGenerator => return response,
        }
        match unfilled {
            Some(unfilled) => self.fill_stored(response, unfilled, parts).await,
            None => self.fill_passed(response, parts, holes).await,
        }
    }

    /// Makes the response from a version with holes, and fills them for one visitor.
    pub(super) async fn fill_hit<B>(
        &self,
        version: &Version,
        visitor: Parts,
    ) -> Response<ResponseBody<B>> {
        let Some(holes) = version.page.holes() else {
            // The caller has asked.
            return refused(&HeaderMap::new());
        };
        let now = self.cache.now();
        match self.begin_with_holes(version, holes, &visitor, now, None, None) {
            (response, Some(unfilled)) => self.fill_stored(response, unfilled, visitor).await,
            (response, None) => response,
        }
    }

    async fn fill_stored<B>(
        &self,
        mut response: Response<ResponseBody<B>>,
        unfilled: Unfilled,
        visitor: Parts,
    ) -> Response<ResponseBody<B>> {
        let is_head = visitor.method == Method::HEAD;
        let names = unfilled.names().iter().filter(|_| !is_head);
        let fillings = self.fillings(names, visitor).await;
        let Ok(headers) = self.holes.headers(&fillings) else {
            return refused(response.headers());
        };
        if !is_head {
            *response.body_mut() = unfilled.fill(fillings);
        }
        if let Some(coding) = unfilled.coding() {
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, coding);
        }
        outgoing::personal(response.headers_mut());
        for (name, value) in headers {
            response.headers_mut().insert(name, value);
        }
        response
    }

    /// Runs the functions of these holes. If they ask for content, they get it as this visitor has to see it
    /// (read-your-writes).
    async fn fillings<'a>(
        &self,
        names: impl IntoIterator<Item = &'a Arc<str>>,
        visitor: Parts,
    ) -> Fillings {
        let author = OwnWrites::of_visitor(&visitor.headers, &self.cache);
        let fill = self.holes.fill(names, visitor, self.cache.now());
        match author {
            Some(author) => author.scope(&self.cache, fill).await,
            None => fill.await,
        }
    }

    /// Fills the marks in a response of the service itself, while it is streamed. A response of the layer's
    /// own, which has no marks, is returned as it is.
    async fn fill_passed<B: Body<Data = Bytes>>(
        &self,
        mut response: Response<ResponseBody<B>>,
        parts: Parts,
        holes: Holes,
    ) -> Response<ResponseBody<B>> {
        // The request itself holds one copy of `Holes`. Every further copy belongs to the handler or to its
        // body.
        let has_marks = holes.may_have_marks();
        if let Some(mistake) = has_marks
            .then(|| holes.mistake(response.headers()))
            .flatten()
        {
            tracing::error!(path = parts.uri.path(), "{mistake}");
            return refused(response.headers());
        }
        let names = self.holes.names().iter().filter(|_| has_marks);
        let fillings = self.fillings(names, parts).await;
        let Ok(headers) = self.holes.headers(&fillings) else {
            return refused(response.headers());
        };
        if has_marks || !headers.is_empty() {
            outgoing::personal(response.headers_mut());
        }
        if has_marks {
            stored::invalidate(&mut response);
            response = response.map(|body| body.filled(|body| Filled::new(body, holes, fillings)));
        }
        for (name, value) in headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Returns the 500 that is sent if a hole cannot be filled. It keeps the `Cache-Status` of the page.
fn refused<B>(headers: &HeaderMap) -> Response<ResponseBody<B>> {
    let (mut head, body) = outgoing::unfilled().into_parts();
    if let Some(status) = headers.get(header::CACHE_STATUS) {
        head.headers.insert(header::CACHE_STATUS, status.clone());
    }
    outgoing::give_as(head.status, &body, head.headers, false)
}
