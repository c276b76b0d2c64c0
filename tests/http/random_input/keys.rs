//! Paths and queries: whatever a visitor writes, the answer is of the resource that was asked for.

use axum::{
    Router,
    body::Body,
    http::{Request, Uri},
};
use perennial::{DAY, Refresh};
use perennial_testkit::{Ask, fuzz, virtual_time::Shared};
use proptest::{collection::vec, prelude::*, sample::select};

use crate::keys::canonical;

const PARTS: &[&str] = &[
    "/", "a", "A", "b", ".", "..", "?", "&", "=", "+", ";", "~", "'", "|", "[", "%20", "%2f",
    "%2F", "%3F", "%26", "%2B", "%61", "%00", "%ff", "%", "%z", "a=1", "b=2", "refresh",
    "http://x",
];

/// Each line is the target of a request.
#[test]
fn any_target_gets_the_page_of_its_own_resource() {
    let target = vec(select(PARTS), 0..8).prop_map(|parts| format!("/{}", parts.concat()));
    let inputs = vec(target, 1..8);
    fuzz::lines(include_str!("corpus/keys.txt"), inputs, async |input| {
        let site = Shared::new().site();
        let app = Router::new().fallback(async |uri: Uri| uri.to_string());
        let app = app.layer(site.layer(Refresh::every(DAY)));
        // If two keys were mixed up, the second visit to one of them would get the page that was
        // stored for the other.
        for target in input.iter().chain(input) {
            let Ok(uri) = target.parse::<Uri>() else {
                continue;
            };
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = uri;
            let (parts, body) = (&app).ask(request).await;
            assert_eq!(parts.status.as_u16(), 200, "{target}");
            let body = String::from_utf8(body.to_vec()).expect("is text");
            assert_eq!(canonical(&body), canonical(target), "{target}");
        }
    });
}
