//! Conditions, ranges, codings and what a visitor's `Cache-Control` asks for.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode, header},
};
use bytes::Bytes;
use perennial::{DAY, Refresh};
use perennial_testkit::{Ask, fuzz, virtual_time::Shared};
use proptest::prelude::*;

use super::{DATES, OF_VISITORS, lines};

/// A part of the page, whose characters tell where a range is from.
const BODY: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// The first line is the method.
#[test]
fn any_condition_and_range_gets_a_sound_answer() {
    let method = prop_oneof![Just("GET"), Just("HEAD")];
    let inputs = (method, lines(OF_VISITORS)).prop_map(|(method, mut lines)| {
        lines.insert(0, method.to_owned());
        lines
    });
    let corpus = include_str!("corpus/conditions.txt");
    fuzz::lines(corpus, inputs, async |input| {
        let head = input[0] == "HEAD";
        let fields = fuzz::headers(&input[1..]);
        let whole = BODY.repeat(100);
        let page = async || {
            let headers = [
                ("etag", "\"v1\""),
                ("last-modified", DATES[0]),
                ("content-type", "text/plain"),
            ];
            (headers, BODY.repeat(100))
        };
        let site = Shared::new().site();
        let app = Router::new().fallback(page);
        let app = app.layer(site.layer(Refresh::every(DAY)));
        // The first visitor generates, and the second one hits.
        for _ in 0..2 {
            let mut request = Request::new(Body::empty());
            if head {
                *request.method_mut() = Method::HEAD;
            }
            *request.headers_mut() = fields.clone();
            let (parts, body) = (&app).ask(request).await;
            let encoded = parts.headers.contains_key(header::CONTENT_ENCODING);
            match parts.status {
                StatusCode::OK if head => assert_eq!(body.len(), 0),
                StatusCode::OK => assert!(encoded || body == whole),
                StatusCode::PARTIAL_CONTENT => is_part(&parts.headers, &body, &whole, head),
                StatusCode::NOT_MODIFIED => assert_eq!(body.len(), 0),
                StatusCode::PRECONDITION_FAILED => {
                    let conditions = [header::IF_MATCH, header::IF_UNMODIFIED_SINCE];
                    let has_one = conditions.iter().any(|name| fields.contains_key(name));
                    assert!(has_one && body.is_empty());
                }
                StatusCode::GATEWAY_TIMEOUT => {}
                status => panic!("{status}"),
            }
        }
    });
}

/// A single part is where its header says.
fn is_part(headers: &HeaderMap, body: &Bytes, whole: &str, head: bool) {
    let Some(range) = headers.get(header::CONTENT_RANGE) else {
        return;
    };
    let range = range.to_str().expect("is text");
    let (from, rest) = range
        .strip_prefix("bytes ")
        .and_then(|it| it.split_once('-'))
        .expect("is a range");
    let (to, all) = rest.split_once('/').expect("has a length");
    let [from, to, all] = [from, to, all].map(|it| it.parse::<usize>().expect("is a number"));
    if !headers.contains_key(header::CONTENT_ENCODING) {
        assert_eq!(all, whole.len());
        if !head {
            assert_eq!(body, &whole[from..=to]);
        }
    }
    assert!(from <= to && to < all, "{range}");
}
