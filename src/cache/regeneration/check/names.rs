//! The names of situations and of transitions. A check has to reach each of its situations, and fails if it
//! does not; the names of transitions are those in the table of `machine.rs`.

use crate::{
    cache::{
        entry::Answer,
        regeneration::{
            check::content::Read,
            machine::{Action, Conclusion, Input, Publishing, State},
        },
    },
    event::{Bypass, Outcome},
};

/// The name of a state in the table.
pub(crate) fn state(state: &State<Read>) -> &'static str {
    match state {
        State::Starting => "Starting",
        State::TakingPermit { .. } => "TakingPermit",
        State::Probing => "Probing",
        State::Acquiring { .. } => "Acquiring",
        State::WaitingForPeer { .. } => "WaitingForPeer",
        State::AwaitingVisitor { .. } => "AwaitingVisitor",
        State::AskingForPeerLease => "AskingForPeerLease",
        State::Generating { .. } => "Generating",
        State::Publishing(_) => "Publishing",
        State::ProbingAfterRefusal { .. } => "ProbingAfterRefusal",
        State::Releasing { .. } => "Releasing",
        State::Ended => "Ended",
    }
}

/// The name of an input in the table.
pub(crate) fn input(input: &Input<Read>) -> &'static str {
    match input {
        Input::Start => "Start",
        Input::Permit { .. } => "Permit",
        Input::Probed(_) => "Probed",
        Input::Acquired(_) => "Acquired",
        Input::Generated(_) => "Generated",
        Input::Published { .. } => "Published",
        Input::Released => "Released",
        Input::VisitorWaits => "VisitorWaits",
        Input::NobodyWaits => "NobodyWaits",
        Input::PeerLease { .. } => "PeerLease",
        Input::StoreFailed => "StoreFailed",
        Input::TimerFired => "TimerFired",
        Input::Panicked => "Panicked",
    }
}

/// The name of an action in the table.
pub(crate) fn kind(action: &Action<Read>) -> &'static str {
    match action {
        Action::TakePermit => "TakePermit",
        Action::Probe { .. } => "Probe",
        Action::Acquire { .. } => "Acquire",
        Action::Generate { .. } => "Generate",
        Action::Publish { .. } => "Publish",
        Action::Release { .. } => "Release",
        Action::AwaitVisitor { .. } => "AwaitVisitor",
        Action::AskForPeerLease { .. } => "AskForPeerLease",
        Action::Sleep => "Sleep",
        Action::End => "End",
    }
}

/// The situation of a regeneration.
pub(crate) fn situation(state: &State<Read>) -> &'static str {
    match state {
        State::Starting => "state: starting",
        State::TakingPermit { .. } => "state: taking a permit",
        State::Probing => "state: probing",
        State::Acquiring { probed: None } => "state: acquiring without a probe",
        State::Acquiring { probed: Some(_) } => "state: acquiring",
        State::WaitingForPeer { .. } => "state: waiting for a peer",
        State::AwaitingVisitor { .. } => "state: awaiting a visitor",
        State::AskingForPeerLease => "state: asking for a peer's lease",
        State::Generating { lease: None, .. } => "state: generating without a lease",
        State::Generating { .. } => "state: generating",
        State::Publishing(Publishing {
            retry_at: Some(_), ..
        }) => "state: waits to publish again",
        State::Publishing(Publishing {
            served_unsaved: true,
            ..
        }) => "state: publishing, served unsaved",
        State::Publishing(_) => "state: publishing",
        State::ProbingAfterRefusal { .. } => "state: probing after a refused publish",
        State::Releasing { .. } => "state: releasing",
        State::Ended => "state: ended",
    }
}

pub(crate) fn action(action: &Action<Read>) -> &'static str {
    match action {
        Action::TakePermit => "action: take a permit",
        Action::Probe { .. } => "action: probe",
        Action::Acquire { .. } => "action: acquire",
        Action::Generate { .. } => "action: generate",
        Action::Publish {
            renews: Some(_), ..
        } => "action: publish, renews",
        Action::Publish { renews: None, .. } => "action: publish",
        Action::Release { removes: true, .. } => "action: release, removes",
        Action::Release { cooldown, .. } if cooldown.is_zero() => "action: release",
        Action::Release { .. } => "action: release with a cooldown",
        Action::AwaitVisitor { .. } => "action: await a visitor",
        Action::AskForPeerLease { .. } => "action: ask for a peer's lease",
        Action::Sleep => "action: sleep",
        Action::End => "action: end",
    }
}

pub(crate) fn conclusion(conclusion: &Conclusion) -> &'static str {
    match (conclusion.outcome, conclusion.serves_old) {
        (Outcome::Failed, true) => "ended: failed, the old version is served",
        (Outcome::TimedOut, true) => "ended: timed out, the old version is served",
        (_, true) => "ended: not stored, too large, the old version is served",
        (Outcome::Stored, _) => "ended: stored",
        (Outcome::Renewed, _) => "ended: renewed",
        (Outcome::Unsaved, _) => "ended: unsaved",
        (Outcome::KeptApart, _) => "ended: kept apart",
        (Outcome::Overtaken, _) => "ended: overtaken",
        (Outcome::NotStored(Bypass::TooLarge), _) => "ended: not stored, too large",
        (Outcome::NotStored(_), _) => "ended: not stored",
        (Outcome::Failed, _) => "ended: failed",
        (Outcome::TimedOut, _) => "ended: timed out",
        (Outcome::Busy, _) => "ended: not begun, busy",
        (Outcome::HeldByPeer, _) => "ended: not begun, held by a peer",
        (Outcome::Cooldown, _) => "ended: not begun, cooldown",
        (Outcome::DatabaseUnavailable, _) => "ended: not begun, the store failed",
    }
}

pub(crate) fn answer(answer: &Answer<Read>) -> &'static str {
    match answer {
        Answer::Version(_) => "answer: version",
        Answer::Pass(_) => "answer: pass",
        Answer::Failed(_) => "answer: failed",
        Answer::Unavailable { .. } => "answer: unavailable",
    }
}
