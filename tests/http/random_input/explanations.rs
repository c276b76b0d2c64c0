//! Requests for an explanation: the token alone gets one, and any request with it gets one.

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request},
};
use perennial::{DAY, Perennial, Refresh, entries::Explanation};
use perennial_testing::Database;
use perennial_testkit::{Ask, fuzz};
use proptest::prelude::*;

use super::{OF_VISITORS, lines};

const TOKEN: &str = "a token of the operators";

/// The first line is the value of the header `perennial-explain`, the second one the target.
#[test]
fn any_request_with_the_token_is_explained_and_no_other() {
    let token = prop_oneof![
        2 => Just(TOKEN.to_owned()),
        1 => Just(TOKEN.to_uppercase()),
        1 => "[ -~]{0,30}",
    ];
    let target = prop_oneof!["/[a-c]{0,2}", "/a\\?[a-z&=%0-9]{0,8}"];
    let inputs = (token, target, lines(OF_VISITORS))
        .prop_map(|(token, target, lines)| [vec![token, target], lines].concat());
    fuzz::lines(
        include_str!("corpus/explanations.txt"),
        inputs,
        async |input| {
            let builder = Perennial::builder().explain_token(TOKEN);
            let site = Database::new().open(builder).expect("opens");
            let page = async || "page";
            let app = Router::new().fallback(page);
            let app = app.layer(site.layer(Refresh::every(DAY)));
            for _ in 0..2 {
                let mut request = Request::new(Body::empty());
                let (Ok(token), Ok(uri)) = (HeaderValue::from_str(&input[0]), input[1].parse())
                else {
                    return;
                };
                *request.uri_mut() = uri;
                *request.headers_mut() = fuzz::headers(&input[2..]);
                request
                    .headers_mut()
                    .insert("perennial-explain", token.clone());
                let (parts, body) = (&app).ask(request).await;
                if token == TOKEN {
                    let explanation = serde_json::from_slice::<Explanation>(&body);
                    assert!(explanation.is_ok(), "{body:?}");
                    assert_eq!(parts.headers["cache-control"], "private, no-store");
                } else {
                    assert!(!body.starts_with(b"{"), "{body:?}");
                }
            }
        },
    );
}
