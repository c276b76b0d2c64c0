//! Bodies with the fillings of one visitor: of a stored page, and of a response that the handler itself gives.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use super::{
    functions::Fillings,
    marks::{Holes, MARK},
};

/// A body whose marks are replaced while it is streamed. It holds back less than the length of a mark, so that a
/// mark which is cut by the frames is found.
#[derive(Debug)]
pub(in crate::layer) struct Filled<B> {
    body: Pin<Box<B>>,
    holes: Holes,
    fillings: Fillings,
    /// What was read and not yet passed on.
    held: BytesMut,
    ready: VecDeque<Bytes>,
    /// The trailers, which come after the rest of the data.
    trailers: Option<Frame<Bytes>>,
    has_ended: bool,
}

impl<B> Filled<B> {
    pub(in crate::layer) fn new(body: Pin<Box<B>>, holes: Holes, fillings: Fillings) -> Self {
        Self {
            body,
            holes,
            fillings,
            held: BytesMut::new(),
            ready: VecDeque::new(),
            trailers: None,
            has_ended: false,
        }
    }

    /// Passes on what cannot be a part of a mark any more.
    fn advance(&mut self) {
        while let Some(at) = memchr::memmem::find(&self.held, self.holes.secret().as_bytes()) {
            if self.held.len() < at + MARK && !self.has_ended {
                self.pass_on(at);
                return;
            }
            self.pass_on(at);
            let mark = self.held.split_to(MARK.min(self.held.len()));
            let digits = mark.get(self.holes.secret().len()..).unwrap_or_default();
            // A mark that somebody has cut off shows nothing.
            if let Some((name, escape)) = self.holes.of_digits(digits)
                && let Some(filling) = self.fillings.of(&name)
            {
                let filling = escape.apply(filling);
                self.ready
                    .push_back(Bytes::copy_from_slice(filling.as_bytes()));
            }
        }
        // As much as may be the beginning of a mark.
        let kept = if self.has_ended {
            0
        } else {
            self.holes.secret().len() - 1
        };
        self.pass_on(self.held.len().saturating_sub(kept));
    }

    fn pass_on(&mut self, length: usize) {
        if length > 0 {
            self.ready.push_back(self.held.split_to(length).freeze());
        }
    }
}

impl<B: Body<Data = Bytes>> Body for Filled<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                if data.has_remaining() {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                continue;
            }
            if self.has_ended {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            match ready!(self.body.as_mut().poll_frame(cx)) {
                None => {
                    self.has_ended = true;
                    self.advance();
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.held.extend_from_slice(&data);
                        self.advance();
                    }
                    Err(trailers) => self.trailers = Some(trailers),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended && self.ready.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
