//! What a response says about its storage, in `Cache-Control` and all that goes with it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, header},
};
use perennial::{DAY, Refresh};
use perennial_testkit::{Ask, fuzz, virtual_time::Shared};
use proptest::prelude::*;

use super::{OF_ORIGINS, lines};

const BODY: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The first line is the policy: `every`, or `from headers`.
#[test]
fn any_headers_of_an_origin_leave_private_pages_private() {
    let policy = prop_oneof![Just("every"), Just("from headers")];
    let inputs = (policy, lines(OF_ORIGINS)).prop_map(|(policy, mut lines)| {
        lines.insert(0, policy.to_owned());
        lines
    });
    let corpus = include_str!("corpus/cache_control.txt");
    fuzz::lines(corpus, inputs, async |input| {
        let honours = input[0] == "from headers";
        let policy = match honours {
            true => Refresh::by_headers(DAY),
            false => Refresh::every(DAY),
        };
        let fields = fuzz::headers(&input[1..]);
        let runs = Arc::new(AtomicUsize::new(0));
        let site = Shared::new().site();
        let (counted, said) = (Arc::clone(&runs), fields.clone());
        let answer = move || {
            let mut response = Response::new(Body::from(BODY));
            *response.headers_mut() = said.clone();
            counted.fetch_add(1, SeqCst);
            async { response }
        };
        let app = Router::new().fallback(answer);
        let app = app.layer(site.layer(&policy));
        let misled = fields.contains_key(header::CONTENT_LENGTH);
        for _ in 0..2 {
            let (parts, body) = (&app).ask(Request::new(Body::empty())).await;
            // If a body does not have the announced length, it was cut off, or the server and the
            // client disagree on where it ends.
            let failed = misled && parts.status.is_server_error();
            assert!(failed || parts.status == StatusCode::OK && body == BODY);
        }
        // With `by_headers`, a valid `CDN-Cache-Control` alone decides. The words that this test
        // draws do not include `must-understand`, which could change that.
        let targeted = honours && fields.contains_key("cdn-cache-control");
        let forbids = |field: &str| fields.get_all(field).iter().any(is_forbidding);
        let is_private = !targeted && (forbids("cache-control") || forbids("cdn-cache-control"));
        let cookie = fields.contains_key(header::SET_COOKIE);
        if (is_private || cookie) && !misled {
            // Each visitor got a response of its own. A first run may have found that the response
            // cannot be shared.
            assert!(runs.load(SeqCst) >= 2, "{fields:?}");
        }
    });
}

/// Returns true for `private` or `no-store` as a word, well formed or not.
fn is_forbidding(value: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(value.as_bytes()).to_lowercase();
    let mut words = text.split(|it: char| !it.is_ascii_alphanumeric() && !"-_".contains(it));
    words.any(|word| word == "private" || word == "no-store")
}
