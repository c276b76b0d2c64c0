//! The body of a response.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::locks::Lease;

pin_project! {
    /// A stored body, or the inner service's own, streamed.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        // Empty: has been given out.
        Stored { bytes: Bytes },
        Streamed { #[pin] body: B },
        // Of this one, the beginning has been read already.
        Resumed { bytes: Bytes, rest: Pin<Box<B>> },
        // The lease is held until it has been sent, or dropped.
        Leased { #[pin] body: B, lease: Option<Box<Lease>> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Stored { bytes },
        }
    }

    pub(super) fn streamed(body: B) -> Self {
        Self {
            kind: Kind::Streamed { body },
        }
    }

    pub(super) fn leased(body: B, lease: Lease) -> Self {
        let lease = Some(Box::new(lease));
        Self {
            kind: Kind::Leased { body, lease },
        }
    }

    pub(super) fn resumed(bytes: Bytes, rest: Pin<Box<B>>) -> Self {
        Self {
            kind: Kind::Resumed { bytes, rest },
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let (bytes, rest) = match self.project().kind.project() {
            KindProjection::Stored { bytes } => (bytes, None),
            KindProjection::Streamed { body } => return body.poll_frame(cx),
            KindProjection::Resumed { bytes, rest } => (bytes, Some(rest)),
            KindProjection::Leased { body, lease } => {
                let frame = body.poll_frame(cx);
                if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
                    drop(lease.take());
                }
                return frame;
            }
        };
        match rest {
            _ if !bytes.is_empty() => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Some(rest) => rest.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Stored { bytes } => bytes.is_empty(),
            Kind::Streamed { body } | Kind::Leased { body, .. } => body.is_end_stream(),
            Kind::Resumed { bytes, rest } => bytes.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let (first, rest) = match &self.kind {
            Kind::Stored { bytes } => return SizeHint::with_exact(bytes.len() as u64),
            Kind::Streamed { body } | Kind::Leased { body, .. } => return body.size_hint(),
            Kind::Resumed { bytes, rest } => (bytes.len() as u64, rest.size_hint()),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}
