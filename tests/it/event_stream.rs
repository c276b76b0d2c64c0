//! Server-sent events inside a layer: never buffered, and each visitor has a stream of their own.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, header},
    routing::get,
};
use bytes::Bytes;
use futures_core::Stream;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use perennial::Refresh;
use tokio::net::TcpStream;

use crate::support::{Folder, HANG, serve, until};

/// The numbers of started and dropped streams.
#[derive(Clone, Default)]
struct Streams {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

/// A body with one event and without an end.
struct Endless {
    event: Option<String>,
    dropped: Arc<AtomicUsize>,
}

impl Streams {
    fn begin(&self, visitor: &str) -> Endless {
        self.begun.fetch_add(1, SeqCst);
        Endless {
            event: Some(format!("data: for {visitor}\n\n")),
            dropped: Arc::clone(&self.dropped),
        }
    }

    fn counts(&self) -> (usize, usize) {
        (self.begun.load(SeqCst), self.dropped.load(SeqCst))
    }
}

impl Stream for Endless {
    type Item = std::io::Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.event.take() {
            Some(event) => Poll::Ready(Some(Ok(event))),
            None => Poll::Pending,
        }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
    }
}

/// The headers and the beginning of the body; the rest is dropped with the connection.
async fn beginning(address: SocketAddr, visitor: &str) -> (HeaderMap, Bytes, impl Sized) {
    let exchange = async {
        let stream = TcpStream::connect(address).await.expect("connects");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("speaks HTTP");
        tokio::spawn(connection);
        let request = http::Request::get("/events")
            .header("host", "test")
            .header("visitor", visitor);
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        let (head, mut body) = response.into_parts();
        let frame = body.frame().await.expect("has begun").expect("is unbroken");
        (
            head.headers,
            frame.into_data().expect("data"),
            (sender, body),
        )
    };
    tokio::time::timeout(HANG, exchange)
        .await
        .expect("a stream that hangs")
}

#[tokio::test(flavor = "multi_thread")]
async fn event_stream_reaches_each_visitor_as_it_comes_and_is_stored_for_nobody() {
    let folder = Folder::new();
    let site = folder.site().await;
    let streams = Streams::default();
    let events = {
        let streams = streams.clone();
        async move |headers: HeaderMap| {
            let visitor = headers
                .get("visitor")
                .map_or("nobody", |it| it.to_str().expect("text"));
            let stream = streams.begin(visitor);
            let event_stream = "Text/Event-Stream; charset=utf-8";
            (
                [(header::CONTENT_TYPE, event_stream)],
                Body::from_stream(stream),
            )
        }
    };
    let layer = site.layer(Refresh::every(Duration::from_secs(3600)));
    let address = serve(Router::new().route("/events", get(events).layer(layer))).await;

    let mut kept = Vec::new();
    for (visitor, status) in [
        ("ann", "perennial; fwd=miss; detail=event-stream"),
        ("bob", "perennial; fwd=bypass; detail=event-stream"),
        ("cleo", "perennial; fwd=bypass; detail=event-stream"),
    ] {
        let (headers, first, rest) = beginning(address, visitor).await;
        assert_eq!(first, format!("data: for {visitor}\n\n"));
        assert_eq!(headers["cache-status"], status);
        assert!(
            !headers.contains_key("etag") && !headers.contains_key("age"),
            "{headers:?}"
        );
        kept.push(rest);
    }
    // The generator's run has ended, though no stream ends by itself. The visitors have their
    // streams.
    until("the run that generates is dropped", async || {
        streams.counts().1 == 1
    })
    .await;
    assert_eq!(streams.counts(), (4, 1));
    drop(kept);
    until("the others are", async || streams.counts().1 == 4).await;
    let stored = sqlx::SqlitePool::connect(&folder.url())
        .await
        .expect("opens");
    let entries: i64 = sqlx::query_scalar("SELECT count(*) FROM perennial_entry")
        .fetch_one(&stored)
        .await
        .expect("is there");
    assert_eq!(entries, 0);
}
