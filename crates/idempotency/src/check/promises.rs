//! The promises about the requests with one key. The check compares each step of the model with them. They
//! have the numbers of docs/invariants.md, and depend on neither rows nor statements.

use perennial_testkit::search::Broken;

pub(super) const ONCE: Broken = "I1: the service runs once";
pub(super) const REPLAY: Broken = "I2: a replay is the stored response to this request";
pub(super) const DONE: Broken = "I3: a request whose response is not stored was done";
pub(super) const OTHER: Broken = "I4: another request is refused, and no other";

/// One of the different requests with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Sent {
    #[default]
    First,
    Second,
    Third,
}

pub(super) const SENT: [Sent; 3] = [Sent::First, Sent::Second, Sent::Third];

/// The history of a key since the key was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Promises {
    /// A service was called.
    pub(super) ran: bool,
    /// The number of further calls that are permitted.
    left: u8,
    /// The request that was stored first, and its response. A response has the number of its run.
    pub(super) stored: Option<(Sent, Option<i64>)>,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            ran: false,
            left: 1,
            stored: None,
        }
    }
}

impl Promises {
    /// Permits one more run: the time of `run_again_after` is over. `begun` is the number of processes that
    /// are about to call their services.
    pub(super) fn permit(&mut self, begun: u8) {
        self.left = (self.left + 1).min(begun + 1);
    }

    /// The key's request was not done, as its service or an operator says.
    pub(super) fn undone(&mut self, begun: u8) {
        self.permit(begun);
        self.ran = false;
    }

    /// The key is new again.
    pub(super) fn renew(&mut self, begun: u8) {
        *self = Self::default();
        self.left += begun;
    }

    /// A service is called.
    pub(super) fn begins(&mut self) -> Result<(), Broken> {
        self.ran = true;
        self.left = self.left.checked_sub(1).ok_or(ONCE)?;
        Ok(())
    }

    /// A response, or the note that there was one, is stored.
    pub(super) fn stores(&mut self, sent: Sent, response: Option<i64>) {
        self.stored.get_or_insert((sent, response));
    }

    /// A client gets the response with this number.
    pub(super) fn replays(&self, sent: Sent, response: i64) -> Result<(), Broken> {
        holds(self.stored == Some((sent, Some(response))), REPLAY)
    }

    /// A client is told that its request was done, and that the response is not stored.
    pub(super) fn names_done(&self, sent: Sent) -> Result<(), Broken> {
        holds(self.stored == Some((sent, None)), DONE)
    }
}

fn holds(condition: bool, property: Broken) -> Result<(), Broken> {
    if condition { Ok(()) } else { Err(property) }
}
