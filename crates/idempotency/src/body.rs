//! The bodies of requests and responses, and the stored form of a response.

use std::{future::ready, pin::Pin};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, response::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};

/// A stored body, or the service's own.
pub(super) type ResponseBody<E> = UnsyncBoxBody<Bytes, E>;

/// Returns a body with this content.
pub(super) fn whole<E>(content: Bytes) -> ResponseBody<E> {
    let body = Full::new(content);
    body.map_err(|never| match never {}).boxed_unsync()
}

/// The result of reading a body.
pub(super) enum Read<B> {
    Whole(Bytes),
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
            return Ok(Read::Whole(bytes.into()));
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

/// Returns the response to be stored, without the headers of one connection (RFC 9110 §7.6.1).
/// `None`: the body has another length than was announced, or another transfer coding than
/// `chunked`, so that it may have been cut off (RFC 9112 §6.3).
pub(super) fn storable(head: &Parts, body: Bytes) -> Option<Response<Bytes>> {
    let mut lengths = list(&head.headers, &header::CONTENT_LENGTH);
    let mut codings = list(&head.headers, &header::TRANSFER_ENCODING);
    let length = body.len().to_string();
    if !lengths.all(|other| other == length)
        || !codings.all(|coding| coding.eq_ignore_ascii_case("chunked"))
    {
        return None;
    }
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers.clone();
    let nominated = list(&head.headers, &header::CONNECTION);
    let nominated = nominated.filter_map(|name| HeaderName::try_from(name).ok());
    let always = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in nominated.chain(always) {
        response.headers_mut().remove(name);
    }
    Some(response)
}

/// Returns the trimmed members of a list header, from all its lines (RFC 9110 §5.6.1). A value that
/// is not ASCII is one empty member.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter().map(HeaderValue::to_str);
    let members = lines.flat_map(|line| line.unwrap_or_default().split(','));
    members.map(str::trim)
}

#[cfg(test)]
mod tests {
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
                Read::Whole(bytes) => (true, bytes),
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
