//! Heads of requests as bytes on a connection: whatever they are, the next visitor gets the page.

use std::convert::Infallible;

use axum::{Router, extract::Request};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use perennial::{DAY, Refresh};
use perennial_testkit::{fuzz, get, virtual_time::Shared};
use proptest::{collection::vec, prelude::*};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::{OF_VISITORS, lines};

/// The handler shows all that it sees of the request.
async fn show(request: Request) -> String {
    format!(
        "{} {} {:?}",
        request.method(),
        request.uri(),
        request.headers()
    )
}

/// The lines of a head. The bytes are those that the characters stand for.
#[test]
fn any_head_leaves_the_page_of_the_next_visitor_as_it_is() {
    let first = prop_oneof![
        4 => Just("GET / HTTP/1.1".to_owned()),
        1 => Just("HEAD / HTTP/1.1".to_owned()),
        1 => Just("POST / HTTP/1.1".to_owned()),
        1 => Just("OPTIONS * HTTP/1.1".to_owned()),
        1 => Just("GET http://hostile/ HTTP/1.1".to_owned()),
        1 => Just("GET / HTTP/1.0".to_owned()),
        1 => "[ -~]{0,30}",
    ];
    let hostile = prop_oneof![
        Just("host: hostile".to_owned()),
        Just("x-forwarded-host: hostile".to_owned()),
        Just("cookie: hostile".to_owned()),
        Just("transfer-encoding: chunked".to_owned()),
        Just("content-length: 5".to_owned()),
        Just("expect: 100-continue".to_owned()),
        Just("connection: close, x-hostile".to_owned()),
        Just("upgrade: websocket".to_owned()),
        "x-hostile: [ -~]{0,20}",
    ];
    let inputs = (first, lines(OF_VISITORS), vec(hostile, 0..3))
        .prop_map(|(first, fields, more)| [vec![first], fields, more].concat());
    fuzz::lines(
        include_str!("corpus/request_heads.txt"),
        inputs,
        async |input| {
            let site = Shared::new().site();
            let app = Router::new().fallback(show);
            let app = app.layer(site.layer(Refresh::every(DAY)));
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
                let answer = app.clone().oneshot(request.map(axum::body::Body::new));
                async { Ok::<_, Infallible>(answer.await.expect("never fails")) }
            });
            let serving = http1::Builder::new().serve_connection(TokioIo::new(server), service);
            let asking = async {
                let head = fuzz::bytes(&format!("{}\r\n\r\n", input.join("\r\n")));
                client.write_all(&head).await.expect("is taken");
                client.shutdown().await.expect("is over");
                let mut answer = Vec::new();
                // Something that is not the head of a request ends the connection.
                let _ = client.read_to_end(&mut answer).await;
                let status = answer.get(9..12).unwrap_or_default();
                assert_ne!(status, b"500", "{}", String::from_utf8_lossy(&answer));
            };
            let (_, ()) = tokio::join!(serving, asking);
            let reply = get(&app, "/").await;
            assert_eq!(reply.status, 200);
            assert!(!reply.text().contains("hostile"), "{}", reply.text());
        },
    );
}
