//! The names of situations, so that a check that never reaches one of its situations fails.

use crate::{
    cache::{
        entry::Answer,
        regeneration::{Action, Ended, Publishing, State, check::content::Read},
    },
    event::{Bypass, Outcome},
};

pub(crate) fn phase(phase: &State<Read>) -> &'static str {
    match phase {
        State::Idle => "phase: idle",
        State::Probing { refused: None } => "phase: looking",
        State::Probing { refused: Some(_) } => "phase: looking, overtaken",
        State::Acquiring { probed: None } => "phase: acquiring without a probe",
        State::Acquiring { probed: Some(_) } => "phase: acquiring",
        State::WaitingForPeer { .. } => "phase: waiting",
        State::Generating { lease: None, .. } => "phase: generating without a lease",
        State::Generating { .. } => "phase: generating",
        State::Publishing(Publishing { again: Some(_), .. }) => "phase: waits to publish again",
        State::Publishing(Publishing { shown: true, .. }) => "phase: publishing, shown unsaved",
        State::Publishing(_) => "phase: publishing",
        State::Releasing => "phase: releasing",
    }
}

pub(crate) fn step(step: &Action<Read>) -> &'static str {
    match step {
        Action::Probe { .. } => "step: probe",
        Action::Acquire { .. } => "step: acquire",
        Action::Generate { .. } => "step: generate",
        Action::Publish {
            renews: Some(_), ..
        } => "step: publish, renews",
        Action::Publish { renews: None, .. } => "step: publish",
        Action::Release { removes: true, .. } => "step: release, removes",
        Action::Release { cooldown, .. } if cooldown.is_zero() => "step: release",
        Action::Release { .. } => "step: release with a cooldown",
        Action::Wait => "step: wait",
        Action::End => "step: end",
    }
}

pub(crate) fn ended(ended: &Ended) -> &'static str {
    match (ended.outcome, ended.serves_old) {
        (Outcome::Failed, true) => "ended: failed, the old version is served",
        (Outcome::TimedOut, true) => "ended: timed out, the old version is served",
        (_, true) => "ended: not stored, too large, the old version is served",
        (Outcome::Stored, _) => "ended: stored",
        (Outcome::Renewed, _) => "ended: renewed",
        (Outcome::Unsaved, _) => "ended: unsaved",
        (Outcome::Overtaken, _) => "ended: overtaken",
        (Outcome::NotStored(Bypass::TooLarge), _) => "ended: not stored, too large",
        (Outcome::NotStored(_), _) => "ended: not stored",
        (Outcome::Failed, _) => "ended: failed",
        (Outcome::TimedOut, _) => "ended: timed out",
        (Outcome::Busy, _) => "ended: not begun, busy",
        (Outcome::Elsewhere, _) => "ended: not begun, elsewhere",
        (Outcome::Cooldown, _) => "ended: not begun, cooldown",
        (Outcome::DatabaseUnavailable, _) => "ended: not begun, database away",
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
