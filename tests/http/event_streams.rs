//! Server-sent events inside a layer: never buffered, and each visitor has a stream of their own.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, header},
    response::Response,
    routing::get,
};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use perennial::{Perennial, Refresh};
use tower::ServiceExt;

#[tokio::test(start_paused = true)]
async fn event_stream_reaches_each_visitor_as_it_comes_and_is_stored_for_nobody() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    // Each running stream holds a clone.
    let running = Arc::new(());
    let events = {
        let running = Arc::clone(&running);
        async move |headers: HeaderMap| {
            let visitor = headers.get("visitor").map(|it| it.to_str().expect("text"));
            let event = format!("data: for {}\n\n", visitor.unwrap_or("nobody"));
            let endless = stream::iter([event]).chain(stream::pending());
            let endless = endless.map(move |event| {
                let _ = &running;
                Ok::<_, Infallible>(event)
            });
            let kind = "Text/Event-Stream; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], Body::from_stream(endless))
        }
    };
    let layer = site.layer(Refresh::every(Duration::from_secs(3600)));
    let app = Router::new().route("/events", get(events).layer(layer));

    let idle = Arc::strong_count(&running);
    let mut kept: Vec<Response> = Vec::new();
    for (visitor, status) in [
        ("ann", "perennial; fwd=miss; detail=event-stream"),
        ("bob", "perennial; fwd=bypass; detail=event-stream"),
        ("cleo", "perennial; fwd=bypass; detail=event-stream"),
    ] {
        let request = Request::get("/events").header("visitor", visitor);
        let request = request.body(Body::empty()).expect("a request");
        let mut response = app.clone().oneshot(request).await.expect("infallible");
        let first = response.body_mut().frame().await.expect("has begun");
        let first = first.expect("is unbroken").into_data().expect("data");
        assert_eq!(first, format!("data: for {visitor}\n\n"));
        let headers = response.headers();
        assert_eq!(headers["cache-status"], status);
        assert!(!headers.contains_key("etag") && !headers.contains_key("age"));
        kept.push(response);
    }
    // The generator's run has ended, although its stream does not end by itself. The three visitors
    // have streams of their own.
    perennial_testing::advance(Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&running), idle + 3);
    drop(kept);
    assert_eq!(Arc::strong_count(&running), idle);
    assert_eq!(database.generations("/events"), 0);
}
