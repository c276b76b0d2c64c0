//! The body of a response.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// A stored body, or the inner service's own, streamed.
#[derive(Debug)]
pub struct ResponseBody<B> {
    /// The stored body, or the part of `rest` that has been read. Empty once `poll_frame` has
    /// returned it.
    first: Bytes,
    /// The inner service's body.
    rest: Option<Pin<Box<B>>>,
}

impl<B> ResponseBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self {
            first: bytes,
            rest: None,
        }
    }

    pub(super) fn streamed(body: B) -> Self {
        Self::resumed(Bytes::new(), Box::pin(body))
    }

    pub(super) fn resumed(first: Bytes, rest: Pin<Box<B>>) -> Self {
        Self {
            first,
            rest: Some(rest),
        }
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
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        rest.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.len() as u64;
        let Some(rest) = &self.rest else {
            return SizeHint::with_exact(first);
        };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// The result of reading a body.
pub(super) enum Read<B> {
    Whole(Bytes),
    /// A body above the limit: the part that was read, and the rest.
    TooLarge(ResponseBody<B>),
}

/// Reads a body up to `limit` bytes.
pub(super) async fn read<B>(body: B, limit: usize) -> Result<Read<B>, B::Error>
where
    B: Body<Data = Bytes>,
{
    if body.size_hint().lower() > limit as u64 {
        return Ok(Read::TooLarge(ResponseBody::streamed(body)));
    }
    let mut body = Box::pin(body);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not stored.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > limit {
            return Ok(Read::TooLarge(ResponseBody::resumed(bytes.into(), body)));
        }
    }
    // A boxed slice has no spare capacity. The memory cache counts the length of a body, not its
    // capacity.
    Ok(Read::Whole(bytes.into_boxed_slice().into()))
}
