//! Bodies that are sent with the holes filled for one visitor. There are two kinds: the body of a stored
//! page, and that of a response which the handler has made for this visitor.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use super::{
    functions::Fillings,
    marks::{Holes, MARK},
};
use crate::holes::{Escape, Piece};

/// A body whose marks are replaced while it is streamed. It holds back less than the length of a mark, so that
/// a mark which is split across two frames is found.
#[derive(Debug)]
pub(in crate::layer) struct Filled<B> {
    body: Pin<Box<B>>,
    holes: Holes,
    fillings: Fillings,
    /// What was read and not yet passed on.
    held: BytesMut,
    ready: VecDeque<Bytes>,
    /// The hole whose mark stood before [`held`](Self::held).
    hole: Option<(Arc<str>, Escape)>,
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
            hole: None,
            trailers: None,
            has_ended: false,
        }
    }

    /// Passes on what cannot be a part of a mark any more, up to the next hole.
    fn advance(&mut self) {
        if let Some(at) = memchr::memmem::find(&self.held, self.holes.secret().as_bytes()) {
            let is_whole = self.held.len() >= at + MARK || self.has_ended;
            self.pass_on(at);
            if is_whole {
                let mark = self.held.split_to(MARK.min(self.held.len()));
                let digits = mark.get(self.holes.secret().len()..).unwrap_or_default();
                match self.holes.of_digits(digits) {
                    Some(hole) => self.hole = Some(hole),
                    // If somebody has cut off the end of a mark, nothing is shown in its place.
                    None => self.advance(),
                }
            }
            return;
        }
        // The last bytes are held back as long as they may be the beginning of a mark.
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
            if let Some((name, escape)) = self.hole.clone() {
                if let Some(filling) = ready!(self.fillings.poll_of(&name, cx)) {
                    let filling = escape.apply(filling);
                    let filling = Bytes::copy_from_slice(filling.as_bytes());
                    self.ready.push_back(filling);
                }
                self.hole = None;
                self.advance();
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
        self.has_ended && self.ready.is_empty() && self.hole.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The body of a stored page with streamed holes: what stands before a hole is sent before its function has ended.
#[derive(Debug)]
pub(in crate::layer) struct Streamed {
    pieces: VecDeque<Piece>,
    fillings: Fillings,
}

impl Streamed {
    /// `pieces` are those of the page.
    pub(in crate::layer) fn new(pieces: impl Iterator<Item = Piece>, fillings: Fillings) -> Self {
        Self {
            pieces: pieces.collect(),
            fillings,
        }
    }

    pub(in crate::layer) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let data = match self.pieces.front() {
                None => return Poll::Ready(None),
                Some(Piece::Text(text)) => text.clone(),
                Some(Piece::Hole(name, escape)) => {
                    let filling = ready!(self.fillings.poll_of(name, cx));
                    let filling = filling.map(|filling| escape.apply(filling));
                    Bytes::copy_from_slice(filling.as_deref().unwrap_or_default().as_bytes())
                }
            };
            self.pieces.pop_front();
            if !data.is_empty() {
                return Poll::Ready(Some(data));
            }
        }
    }
}
