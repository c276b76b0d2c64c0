//! What the layer gives to one request.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::outgoing;
use crate::{
    clock::Tick,
    http::{
        cache_status::{CACHE_STATUS, Forward, How},
        conditional::{self, Outcome},
    },
    layer::{RefreshLayer, ResponseBody},
    resource::{Answer, Failure, Pass, Said, Version},
};

impl RefreshLayer {
    /// The response to one request, or the reason for which the service itself answers the request. `forward`: what is said of a
    /// response that was generated for the request, as a version is that was made since `arrived`.
    pub(super) fn respond<B>(
        &self,
        answer: Answer,
        parts: &Parts,
        now: Tick,
        forward: Forward,
        arrived: Option<Tick>,
    ) -> Result<Response<ResponseBody<B>>, Forward> {
        let (response, how) = match answer {
            Answer::Version(version) => {
                let made = arrived.filter(|arrived| version.is_made_since(*arrived));
                let made = made.map(|_| Forward {
                    // Memory may have had nothing of what the database had.
                    why: if version.replaces {
                        "stale"
                    } else {
                        forward.why
                    },
                    stored: !version.is_unsaved(),
                    ..forward
                });
                return Ok(self.give(&version, parts, now, made.map(How::Forwarded)));
            }
            Answer::Failed(Failure {
                response: Some(response),
                ..
            }) => (response, How::Forwarded(forward.detailed("failed"))),
            Answer::Failed(Failure { retry_in, .. }) | Answer::Unavailable { retry_in } => {
                (outgoing::unavailable(retry_in).into(), How::Unavailable)
            }
            Answer::Pass(why) => return Err(Forward::because(forward.why).detailed(detail(why))),
        };
        let headers = response.headers().clone();
        let mut response = outgoing::give(&response, headers, parts.method == Method::HEAD);
        self.say(response.headers_mut(), how);
        Ok(response)
    }

    /// A version, for one request; `made`: generated for it.
    fn give<B>(
        &self,
        version: &Version,
        parts: &Parts,
        now: Tick,
        made: Option<How>,
    ) -> Response<ResponseBody<B>> {
        let page = &version.content;
        #[cfg(feature = "compression")]
        let representation = self.engine.represent(page, &parts.headers);
        #[cfg(not(feature = "compression"))]
        let representation = &page.plain;
        let kept = &representation.content;
        let head = parts.method == Method::HEAD;
        let age = Duration::from_secs(page.age_before).saturating_add(version.age(now));
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
                let headers = headers(|whole| outgoing::validating(&whole));
                outgoing::response(StatusCode::NOT_MODIFIED, headers, Bytes::new())
            }
            Outcome::PreconditionFailed => {
                let mut headers = HeaderMap::new();
                // Nobody else is to get it.
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                self.say(&mut headers, how);
                outgoing::response(StatusCode::PRECONDITION_FAILED, headers, Bytes::new())
            }
        }
    }

    /// Says how a response came about.
    pub(super) fn say(&self, headers: &mut HeaderMap, how: How) {
        if self.engine.settings.cache_status {
            headers.append(CACHE_STATUS, how.value());
        }
    }
}

/// The reason why the service itself answers, as `Cache-Status` has it.
fn detail(why: Pass) -> &'static str {
    match why {
        Pass::Private => "private",
        Pass::Vary => "vary",
        Pass::Stream => "event-stream",
        Pass::Status => "status",
        Pass::TooLarge => "too-large",
        Pass::Purged => "purged",
        Pass::ShuttingDown => "shutting-down",
    }
}
