//! From an answer of the cache to a response: adds the headers of a hit, evaluates the request's conditions,
//! and counts what was served.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, header, request::Parts};

use super::{
    hit_values::{HitTimes, HitValues},
    outgoing,
    own_request::OwnRequest,
    request::matched,
};
#[cfg(feature = "compression")]
use crate::http::{compression::Coding, gzip_pieces::GzipPieces};
use crate::{
    cache::{Answer, Failure, HitHeaders, Version},
    clock::Tick,
    event::{Bypass, Event, Frequent, Served},
    holes::HolePlaces,
    http::{
        cache_status::{Forward, Handling},
        conditional::{self, Evaluation, RequestTraits},
        fields::ascii,
    },
    layer::{
        RefreshLayer, ResponseBody,
        holes::{Fillings, Streamed},
    },
};

/// The body of a response before its holes are filled; an extension of the response, which
/// [`fill`](super::fill) takes off.
#[derive(Clone, Debug)]
pub(super) struct Unfilled {
    body: Bytes,
    holes: Arc<HolePlaces>,
    /// The compressed pieces of the body, if the request accepts them, and no hole is streamed.
    #[cfg(feature = "compression")]
    pieces: Option<Arc<GzipPieces>>,
}

/// The detail in `Cache-Status` that marks a filled page.
const HOLES: &[u8] = b"; detail=holes";

impl Unfilled {
    /// Returns the names of the holes.
    pub(super) fn names(&self) -> &[Arc<str>] {
        &self.holes.names
    }

    /// Returns the coding of the filled body, if it has one.
    pub(super) fn coding(&self) -> Option<HeaderValue> {
        #[cfg(feature = "compression")]
        if self.pieces.is_some() {
            return Some(HeaderValue::from_static(Coding::Gzip.token()));
        }
        None
    }

    /// Returns the filled body, in its [`coding`](Self::coding).
    pub(super) fn fill<B>(&self, fillings: Fillings) -> ResponseBody<B> {
        if fillings.are_streamed() {
            let pieces = self.holes.pieces(&self.body);
            return ResponseBody::streamed_holes(Streamed::new(pieces, fillings));
        }
        let filling = |name: &str| fillings.of(name);
        #[cfg(feature = "compression")]
        if let Some(pieces) = &self.pieces {
            return ResponseBody::parts(pieces.fill(self.holes.fillings(filling)));
        }
        ResponseBody::parts(self.holes.fill(&self.body, filling))
    }
}

/// How a request came to the service, for `Cache-Status`.
#[derive(Clone, Copy)]
pub(super) struct Forwarded {
    pub(super) why: Forward,
    /// Another request, which came first, caused the response.
    pub(super) collapsed: bool,
}

impl Forwarded {
    /// The request itself caused the response.
    pub(super) fn leading(why: Forward) -> Self {
        Self {
            why,
            collapsed: false,
        }
    }
}

impl RefreshLayer {
    /// Makes the response for an answer, or returns the reason why the service itself has to answer.
    ///
    /// `Cache-Status` reports a version as a hit, unless this process has generated it since `arrived`. For a
    /// version that is as new as that, and for a failed response, it reports `forwarded`. If the version has
    /// replaced another one, that is `fwd=stale`.
    pub(super) fn respond<B>(
        &self,
        answer: Answer,
        parts: &Parts,
        now: Tick,
        Forwarded { why, collapsed }: Forwarded,
        arrived: Option<Tick>,
    ) -> Result<Response<ResponseBody<B>>, Bypass> {
        let own_request = OwnRequest::of(&parts.extensions);
        let (response, how) = match answer {
            Answer::Version(version) => {
                let made = arrived.filter(|arrived| version.is_made_since(*arrived));
                let made = made.map(|_| Handling::Forwarded {
                    // The database may have had a version that memory did not have.
                    why: if version.replaced_version {
                        Forward::Stale
                    } else {
                        why
                    },
                    served: if collapsed {
                        Served::Collapsed
                    } else {
                        Served::Generated
                    },
                    stored: !version.is_unsaved(),
                    collapsed,
                });
                return Ok(self.give(&version, parts, now, made, own_request));
            }
            Answer::Failed(Failure {
                response: Some(response),
                ..
            }) => {
                let how = Handling::Forwarded {
                    why,
                    served: Served::Failed,
                    stored: false,
                    collapsed,
                };
                (response, how)
            }
            Answer::Failed(Failure { retry_in, .. }) | Answer::Unavailable { retry_in } => {
                (self.unavailable(retry_in).into(), Handling::Unavailable)
            }
            Answer::Pass(why) => return Err(why),
        };
        self.served(how, own_request);
        let headers = response.headers().clone();
        let unfilled = response
            .extensions()
            .get::<Arc<HolePlaces>>()
            .map(|holes| Unfilled {
                body: response.body().clone(),
                holes: Arc::clone(holes),
                #[cfg(feature = "compression")]
                pieces: None,
            });
        let is_bodiless = parts.method == Method::HEAD || unfilled.is_some();
        let (status, body) = (response.status(), response.body());
        let mut response = outgoing::give_as(status, body, headers, is_bodiless);
        self.set_cache_status(response.headers_mut(), how);
        if let Some(unfilled) = unfilled {
            response.extensions_mut().insert(unfilled);
        }
        Ok(response)
    }

    /// Returns the response for a visitor who gets no version.
    fn unavailable(&self, retry_in: Duration) -> Response<Bytes> {
        match &self.unavailable {
            Some(own) => outgoing::completed(own(retry_in), retry_in),
            None => outgoing::unavailable(retry_in),
        }
    }

    /// Makes the response from a version. `made` says that the version was generated for this request, and
    /// `own_request` that the request is the application's.
    pub(super) fn give<B>(
        &self,
        version: &Version,
        parts: &Parts,
        now: Tick,
        made: Option<Handling>,
        own_request: Option<&OwnRequest>,
    ) -> Response<ResponseBody<B>> {
        let page = &version.page;
        if let Some(holes) = page.holes() {
            return self.give_with_holes(version, holes, parts, now, made, own_request);
        }
        #[cfg(feature = "compression")]
        let representation = self.cache.compressor.represent(page, &parts.headers);
        #[cfg(not(feature = "compression"))]
        let representation = &page.body.plain;
        let head = parts.method == Method::HEAD;
        let made_at = version.made_at();
        let ttl = self.cache.ttl(version, &self.policy, now);
        let hit = HitTimes::new(made_at, now, ttl, self.policy.browser_cache);
        let how = made.unwrap_or(Handling::Hit { ttl: hit.ttl });
        self.served(how, own_request);
        if hit.ttl < 0 && made.is_none() {
            let since = Duration::from_secs(hit.ttl.unsigned_abs());
            self.cache.observer().stale(since);
        }
        // An outer layer may compress the page for this request. Its bytes are then different, and one strong
        // tag would stand for both bodies (RFC 9110 §8.8.1).
        let traits = RequestTraits::of(&parts.headers);
        let has_weak_tag = traits.accepts_coding && representation.weak_tag.is_some();
        // A version younger than a second may still be replaced by another one with the same date, so it is
        // sent without `Last-Modified`.
        let is_older_than_a_second = hit.age > page.body.age_before;
        let modified = representation.modified.filter(|_| is_older_than_a_second);
        let mut response = outgoing::give(representation, head);
        let headers = response.headers_mut();
        let fill = |values: &HitValues| {
            let modified = modified.filter(|date| *date < values.date_seconds);
            let made = made.map(|how| ascii(how.to_string()));
            let status = made.as_ref().unwrap_or(&values.cache_status);
            let of_hit = HitHeaders {
                age: &values.age,
                cache_status: Some(status).filter(|_| self.cache.settings().cache_status),
                date: values.date.as_ref(),
                cache_control: values.cache_control.as_ref(),
                has_weak_tag,
                is_dated: modified.is_some(),
            };
            representation.fill(headers, &of_hit);
            modified
        };
        let modified = HitValues::with(hit, || now - made_at, fill);
        if self.leaves_cache_control && !representation.has_cache_control() {
            response.headers_mut().remove(header::CACHE_CONTROL);
        }
        if let Some(limit) = self.policy.cdn_cache {
            outgoing::allow_cdn(response.headers_mut(), hit, limit);
        }
        if traits.is_conditional {
            let selected = representation.selected(modified);
            match conditional::evaluate(&parts.headers, &selected, head) {
                Evaluation::Full => {}
                Evaluation::Part(part) => outgoing::shorten(&mut response, representation, part),
                Evaluation::NotModified => outgoing::leave_out(&mut response),
                Evaluation::Failed => outgoing::refuse(&mut response),
            }
        }
        response
    }

    /// Makes the response from a version with holes. The holes are filled by [`fill`](super::fill).
    #[cold]
    fn give_with_holes<B>(
        &self,
        version: &Version,
        holes: &Arc<HolePlaces>,
        parts: &Parts,
        now: Tick,
        made: Option<Handling>,
        own_request: Option<&OwnRequest>,
    ) -> Response<ResponseBody<B>> {
        let (mut response, unfilled) =
            self.begin_with_holes(version, holes, parts, now, made, own_request);
        if let Some(unfilled) = unfilled {
            response.extensions_mut().insert(unfilled);
        }
        response
    }

    /// Makes the response from a version with holes. The holes are filled by [`fill`](super::fill). `None`
    /// means that this layer cannot fill them, and that the response is a 500.
    pub(super) fn begin_with_holes<B>(
        &self,
        version: &Version,
        holes: &Arc<HolePlaces>,
        parts: &Parts,
        now: Tick,
        made: Option<Handling>,
        own_request: Option<&OwnRequest>,
    ) -> (Response<ResponseBody<B>>, Option<Unfilled>) {
        let representation = &version.page.body.plain;
        let made_at = version.made_at();
        let ttl = self.cache.ttl(version, &self.policy, now);
        let hit = HitTimes::new(made_at, now, ttl, Duration::ZERO);
        let how = made.unwrap_or(Handling::Hit { ttl: hit.ttl });
        self.served(how, own_request);
        if !self.holes.have_all(&holes.names) {
            // Another layer of this process stores its pages under the same keys.
            tracing::error!(
                path = parts.uri.path(),
                "the page has holes that this layer does not have"
            );
            let unfilled = outgoing::unfilled();
            let is_head = parts.method == Method::HEAD;
            let (head, body) = unfilled.into_parts();
            let response = outgoing::give_as(head.status, &body, head.headers, is_head);
            return (response, None);
        }
        let mut response = outgoing::give(representation, true);
        let headers = response.headers_mut();
        let fill = |values: &HitValues| {
            let status = match made.map(|how| how.to_string()) {
                Some(status) if status.contains("detail=") => status.into(),
                Some(status) => [status.as_bytes(), HOLES].concat(),
                None => [values.cache_status.as_bytes(), HOLES].concat(),
            };
            let status = HeaderValue::from_maybe_shared(Bytes::from(status)).ok();
            let of_hit = HitHeaders {
                age: &values.age,
                cache_status: status
                    .as_ref()
                    .filter(|_| self.cache.settings().cache_status),
                date: values.date.as_ref(),
                cache_control: Some(&outgoing::PERSONAL),
                has_weak_tag: false,
                is_dated: false,
            };
            representation.fill(headers, &of_hit);
        };
        HitValues::with(hit, || now - made_at, fill);
        let unfilled = Unfilled {
            body: representation.body.clone(),
            holes: Arc::clone(holes),
            // A streamed filling arrives later, and on its own. It does not fit between pieces whose checksums
            // are known.
            #[cfg(feature = "compression")]
            pieces: if self.holes.stream_any_of(&holes.names) {
                None
            } else {
                self.cache.compressor.pieces(&version.page, &parts.headers)
            },
        };
        (response, Some(unfilled))
    }

    /// Returns a version for a generator whose result an outer layer stores. It lacks the headers that this
    /// layer would send to a client, because those of the outer layer apply instead.
    pub(super) fn give_to_generator<B>(
        &self,
        version: &Version,
        parts: &Parts,
        now: Tick,
    ) -> Response<ResponseBody<B>> {
        let representation = &version.page.body.plain;
        let made_at = version.made_at();
        let ttl = self.cache.ttl(version, &self.policy, now);
        let hit = HitTimes::new(made_at, now, ttl, self.policy.browser_cache);
        let how = Handling::Hit { ttl: hit.ttl };
        self.served(how, OwnRequest::of(&parts.extensions));
        if version.page.holes().is_some() {
            // The outer layer does not store this response, and asks the inner layer again for each visitor.
            let mut response = Response::new(ResponseBody::none());
            outgoing::personal(response.headers_mut());
            return response;
        }
        let head = parts.method == Method::HEAD;
        let mut response = outgoing::give(representation, head);
        let headers = response.headers_mut();
        let fill = |values: &HitValues| {
            representation.fill_for_generator(headers, &values.age, values.date.as_ref());
        };
        HitValues::with(hit, || now - made_at, fill);
        response
    }

    /// Refuses a generator's request for the page that the generator is making.
    pub(super) fn refuse_itself<B>(
        &self,
        key: &str,
        parts: &Parts,
        now: Tick,
    ) -> Response<ResponseBody<B>> {
        let failure = Failure {
            response: Some(outgoing::waits_for_itself(key).into()),
            ..Failure::new(format!("the generator of {key:?} asks for itself"))
        };
        let why = Forwarded::leading(Forward::Bypass);
        match self.respond(Answer::Failed(failure), parts, now, why, None) {
            Ok(response) => response,
            // A failure has a response.
            Err(_) => Response::new(ResponseBody::default()),
        }
    }

    /// Emits the event of a request that goes to the service.
    pub(super) fn bypassed<B>(&self, request: &Request<B>, reason: Bypass) {
        if reason == Bypass::Method {
            return;
        }
        let observer = self.cache.observer();
        observer.emit_if_watched(Frequent::Request, || Event::Bypassed {
            path: request.uri().path().into(),
            layer: self.name_in(request.extensions()),
            reason,
        });
    }

    /// Returns the name of the layer for a request with these extensions.
    pub(super) fn name_in(&self, extensions: &Extensions) -> Arc<str> {
        if let Some(name) = &self.name {
            return Arc::clone(name);
        }
        // The label is the route and not the path, because visitors can invent any number of paths,
        // and each would become a time series of the metrics.
        matched(extensions).unwrap_or("other").into()
    }

    /// Counts a request under what its `Cache-Status` reports. `own_request` is given if the application has
    /// sent the request.
    #[inline]
    pub(super) fn served(&self, how: Handling, own_request: Option<&OwnRequest>) {
        self.cache.observer().counters().served(how.served());
        if let Some(own_request) = own_request {
            own_request.note_served(how.served());
        }
    }

    /// Says how a response came about.
    pub(super) fn set_cache_status(&self, headers: &mut HeaderMap, how: Handling) {
        if self.cache.settings().cache_status {
            headers.append(header::CACHE_STATUS, ascii(how.to_string()));
        }
    }
}
