//! The body of a layer's response: a stored one, or the inner service's own.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::layer::holes::{Filled, Streamed};

/// A stored body, or the inner service's own, streamed.
#[derive(Debug)]
pub struct ResponseBody<B>(BodySource<B>);

#[derive(Debug)]
enum BodySource<B> {
    /// A stored body. It is empty once `poll_frame` has returned it.
    Stored(Bytes),
    Streamed(Pin<Box<B>>),
    /// A stored body with the fillings of one visitor, part by part.
    Parts(VecDeque<Bytes>),
    Filled(Filled<B>),
    /// A stored body some of whose holes are filled while it is sent.
    StreamedHoles(Streamed),
    /// The answer to a HEAD, whose headers are those of a response with content.
    None,
}

impl<B> ResponseBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self(BodySource::Stored(bytes))
    }

    /// The body of an answer to a HEAD request. Its length is unknown on purpose. An outer layer that asks for
    /// the length then looks at `Content-Length`, as it does for a GET, and adds the same headers.
    pub(super) fn none() -> Self {
        Self(BodySource::None)
    }

    pub(super) fn streamed(body: B) -> Self {
        Self(BodySource::Streamed(Box::pin(body)))
    }

    /// The parts of a body, none of which is empty.
    pub(super) fn parts(parts: Vec<Bytes>) -> Self {
        Self(BodySource::Parts(parts.into()))
    }

    /// A stored body some of whose holes are filled while it is sent.
    pub(super) fn streamed_holes(body: Streamed) -> Self {
        Self(BodySource::StreamedHoles(body))
    }

    /// Replaces the marks of holes in the inner service's own body. Other bodies have none.
    pub(super) fn filled(self, fill: impl FnOnce(Pin<Box<B>>) -> Filled<B>) -> Self {
        match self.0 {
            BodySource::Streamed(body) => Self(BodySource::Filled(fill(body))),
            other => Self(other),
        }
    }
}

/// A body that the application itself makes, such as that of an error response outside of the layer.
impl<B> From<Bytes> for ResponseBody<B> {
    fn from(body: Bytes) -> Self {
        Self::stored(body)
    }
}

/// An empty body, which outer layers answer with: tower-http's `CorsLayer` and `TimeoutLayer`, say.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::stored(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.0 {
            BodySource::Stored(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Stored(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodySource::Streamed(body) => body.as_mut().poll_frame(cx),
            BodySource::Parts(parts) => {
                Poll::Ready(parts.pop_front().map(|part| Ok(Frame::data(part))))
            }
            BodySource::Filled(body) => Pin::new(body).poll_frame(cx),
            BodySource::StreamedHoles(body) => body
                .poll_data(cx)
                .map(|data| data.map(|data| Ok(Frame::data(data)))),
            BodySource::None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Stored(bytes) => bytes.is_empty(),
            BodySource::Streamed(body) => body.is_end_stream(),
            BodySource::Parts(parts) => parts.is_empty(),
            BodySource::Filled(body) => body.is_end_stream(),
            BodySource::StreamedHoles(_) => false,
            BodySource::None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Stored(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Streamed(body) => body.size_hint(),
            BodySource::Parts(parts) => {
                SizeHint::with_exact(parts.iter().map(|part| part.len() as u64).sum())
            }
            BodySource::Filled(body) => body.size_hint(),
            BodySource::StreamedHoles(_) | BodySource::None => SizeHint::default(),
        }
    }
}

/// Reads a body of up to `limit` bytes. `None` means that the body is larger.
pub(super) async fn read<B>(body: B, limit: usize) -> Result<Option<Bytes>, B::Error>
where
    B: Body<Data = Bytes>,
{
    if body.size_hint().lower() > limit as u64 {
        return Ok(None);
    }
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not stored.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > limit {
            return Ok(None);
        }
    }
    // A boxed slice has no spare capacity. The memory cache counts the length of a body, not its
    // capacity.
    Ok(Some(bytes.into_boxed_slice().into()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// No frame says how long the body is, and in the last body of this test no frame ends exactly at the
    /// limit.
    #[tokio::test]
    async fn body_that_grows_over_its_limit_is_not_read_further() {
        for (frames, length) in [
            (&[4, 4][..], Some(8)),
            (&[5, 5], Some(10)),
            (&[4, 4, 4], None),
        ] {
            let frames = frames.iter().map(|length| {
                let data = Bytes::from(vec![b'x'; *length]);
                Ok::<_, Infallible>(Frame::data(data))
            });
            let body = StreamBody::new(stream::iter(frames));
            let read = read(body, 10).await.expect("never fails");
            assert_eq!(read.map(|read| read.len()), length);
        }
    }
}
