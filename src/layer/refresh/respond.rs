//! What the layer gives to one request.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, request::Parts};

use super::{
    cache_status::{CACHE_STATUS, How},
    outgoing,
};
use crate::{
    clock::Tick,
    http::conditional::{self, Outcome},
    layer::{RefreshLayer, ResponseBody},
    resource::{Said, Version},
};

impl RefreshLayer {
    /// A version, for one request; `made`: generated for it.
    pub(super) fn give<B>(
        &self,
        version: &Arc<Version>,
        parts: &Parts,
        now: Tick,
        made: Option<How>,
    ) -> Response<ResponseBody<B>> {
        #[cfg(feature = "compression")]
        let representation = self.engine.represent(version, &parts.headers);
        #[cfg(not(feature = "compression"))]
        let representation = &version.plain;
        let kept = &representation.content;
        let head = parts.method == Method::HEAD;
        let age = Duration::from_secs(version.age_before).saturating_add(version.age(now));
        let said = Said {
            age: age.as_secs(),
            ttl: version.ttl(now, &self.policy, &self.engine.known),
            client: self.policy.client,
        };
        let how = made.unwrap_or(How::Hit { ttl: said.ttl });
        let make = || {
            let mut headers = kept.headers().clone();
            outgoing::say_age(&mut headers, said, age);
            self.say(&mut headers, how);
            headers
        };
        let headers = |take: fn(Cow<'_, HeaderMap>) -> HeaderMap| match made {
            Some(_) => take(Cow::Owned(make())),
            None => representation.given(said, make, take),
        };
        match conditional::evaluate(&parts.headers, kept, head) {
            Outcome::Whole => outgoing::give(kept, headers(|whole| whole.into_owned()), head),
            Outcome::Part(part) => outgoing::part(kept, headers(|whole| whole.into_owned()), part),
            Outcome::NotModified => {
                outgoing::not_modified(headers(|whole| outgoing::validating(&whole)))
            }
            Outcome::PreconditionFailed => {
                let mut response = outgoing::precondition_failed();
                self.say(response.headers_mut(), how);
                response
            }
        }
    }

    /// A response that is no version.
    pub(super) fn give_other<B>(
        &self,
        response: &Response<Bytes>,
        head: bool,
        how: How,
    ) -> Response<ResponseBody<B>> {
        let mut response = outgoing::give(response, response.headers().clone(), head);
        self.say(response.headers_mut(), how);
        response
    }

    /// Says how a response came about.
    pub(super) fn say(&self, headers: &mut HeaderMap, how: How) {
        if self.engine.settings.cache_status {
            headers.append(CACHE_STATUS, how.value());
        }
    }
}
