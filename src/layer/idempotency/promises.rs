//! The promises about the requests with one key, which the checks compare with every step. No part
//! depends on the rows or statements of a protocol.

use super::state::Answer;
use crate::search::Broken;

pub(super) const ONCE: Broken = "the service runs once";
pub(super) const REPLAY: Broken = "a replay is the stored response to this request";
pub(super) const DONE: Broken = "a request whose response is not stored was done";
pub(super) const OTHER: Broken = "another request is refused, and no other";

/// A request as its client sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Sent {
    #[default]
    First,
    OtherBody,
    OtherTarget,
}

pub(super) const SENT: [Sent; 3] = [Sent::First, Sent::OtherBody, Sent::OtherTarget];

/// The history of a key since the key was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Promises {
    /// The number of runs that may have had an effect.
    pub(super) runs: u8,
    /// The greatest permitted number of runs.
    permitted: u8,
    /// The request that was stored first, and its response. A response has the number of its run.
    pub(super) stored: Option<(Sent, Option<i64>)>,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            runs: 0,
            permitted: 1,
            stored: None,
        }
    }
}

impl Promises {
    /// Permits one more run: an operator has decided, or the time of `run_again_after` is over.
    pub(super) fn permit(&mut self) {
        self.permitted = (self.permitted + 1).min(self.runs + 2);
    }

    /// A service is called.
    pub(super) fn begins(&mut self) -> Result<(), Broken> {
        self.runs += 1;
        if self.runs > self.permitted {
            return Err(ONCE);
        }
        Ok(())
    }

    /// The service says that it has done nothing.
    pub(super) fn undone(&mut self) {
        self.runs -= 1;
    }

    /// A response, or the note that there was one, is stored.
    pub(super) fn stores(&mut self, sent: Sent, response: Option<i64>) {
        self.stored.get_or_insert((sent, response));
    }

    pub(super) fn answers(&self, sent: Sent, answer: &Answer<i64>) -> Result<(), Broken> {
        let (holds, property) = match answer {
            Answer::Replay(response) => (self.stored == Some((sent, Some(*response))), REPLAY),
            Answer::NotStored => (self.stored == Some((sent, None)), DONE),
            Answer::OtherRequest | Answer::OtherCaller => {
                (self.stored.is_none_or(|(first, _)| first != sent), OTHER)
            }
            Answer::InProgress | Answer::UnknownOutcome | Answer::Unavailable => return Ok(()),
        };
        if holds { Ok(()) } else { Err(property) }
    }
}
