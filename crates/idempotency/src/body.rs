//! The bodies of requests and responses, and the form in which a response is stored: without its hop-by-hop
//! headers, and only if it is complete.

use std::{future::ready, pin::Pin};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Response, response::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use perennial_store::http_util::{is_well_framed, remove_hop_by_hop};

/// A stored body, or the service's own.
pub(super) type ResponseBody<E> = UnsyncBoxBody<Bytes, E>;

/// Returns a body with this content.
pub(super) fn full_body<E>(content: Bytes) -> ResponseBody<E> {
    let body = Full::new(content);
    body.map_err(|never| match never {}).boxed_unsync()
}

/// The result of reading a body.
pub(super) enum Read<B> {
    Complete(Bytes),
    /// A body above the limit: the part that was read, and the rest.
    TooLarge(Bytes, Pin<Box<B>>),
}

/// Reads a body up to `limit` bytes.
pub(super) async fn read<B: Body<Data = Bytes>>(
    body: B,
    limit: usize,
) -> Result<Read<B>, B::Error> {
    let mut bytes = Vec::new();
    let mut body = Box::pin(body);
    let announced = body.size_hint().lower();
    while announced <= limit as u64 && bytes.len() <= limit {
        let Some(frame) = body.frame().await else {
            return Ok(Read::Complete(bytes.into()));
        };
        // Trailers are not stored.
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Read::TooLarge(bytes.into(), body))
}

/// Returns a body of which a part has been read.
pub(super) fn resumed<B>(first: Bytes, rest: Pin<Box<B>>) -> ResponseBody<B::Error>
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let first = stream::once(ready(first)).map(|first| Ok(Frame::data(first)));
    StreamBody::new(first.chain(BodyStream::new(rest))).boxed_unsync()
}

/// Returns the response to be stored, without its hop-by-hop headers. `None` means that the body may have been
/// cut off.
pub(super) fn storable(head: &Parts, body: Bytes) -> Option<Response<Bytes>> {
    is_well_framed(&head.headers, &body).then(|| {
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        remove_hop_by_hop(response.headers_mut());
        response
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn response_of_another_length_is_not_stored() {
        for (name, value, is_stored) in [
            ("content-length", "2", true),
            ("content-length", "2, 2", true),
            ("content-length", "3", false),
            ("transfer-encoding", "chunked", true),
            ("transfer-encoding", "gzip, chunked", false),
        ] {
            let response = Response::builder().header(name, value).body(());
            let (head, ()) = response.expect("a response").into_parts();
            let stored = storable(&head, Bytes::from_static(b"ok"));
            assert_eq!(stored.is_some(), is_stored, "{name}: {value}");
        }
    }

    #[test]
    fn headers_of_a_connection_are_not_stored() {
        let response = Response::builder()
            .header("connection", "close, x-hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("x-kept", "1");
        let (head, ()) = response.body(()).expect("a response").into_parts();
        let stored = storable(&head, Bytes::new()).expect("is whole");
        let names: Vec<_> = stored.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-kept"]);
    }

    #[tokio::test]
    async fn body_above_the_limit_is_resumed() {
        let whole = |limit| async move {
            let body = Full::new(Bytes::from_static(b"abcd"));
            match read(body, limit).await.expect("never fails") {
                Read::Complete(bytes) => (true, bytes),
                Read::TooLarge(first, rest) => {
                    let body = resumed(first, rest).collect().await;
                    (false, body.expect("never fails").to_bytes())
                }
            }
        };
        let abcd = Bytes::from_static(b"abcd");
        assert_eq!(whole(4).await, (true, abcd.clone()));
        assert_eq!(whole(3).await, (false, abcd));
    }
}
