//! The names of situations, so that a check that never reaches one of its situations fails.

use crate::{
    event::{Bypass, Outcome},
    page::flight::{Answer, Ended, Phase, Publishing, Step, check::content::Read},
};

pub(super) fn phase(phase: &Phase<Read>) -> &'static str {
    match phase {
        Phase::Idle => "phase: idle",
        Phase::Looking { overtaken: None } => "phase: looking",
        Phase::Looking { overtaken: Some(_) } => "phase: looking, overtaken",
        Phase::Acquiring { probed: None } => "phase: acquiring without a probe",
        Phase::Acquiring { probed: Some(_) } => "phase: acquiring",
        Phase::Waiting { .. } => "phase: waiting",
        Phase::Generating { lease: None, .. } => "phase: generating without a lease",
        Phase::Generating { .. } => "phase: generating",
        Phase::Publishing(Publishing { again: Some(_), .. }) => "phase: waits to publish again",
        Phase::Publishing(Publishing { shown: true, .. }) => "phase: publishing, shown unsaved",
        Phase::Publishing(_) => "phase: publishing",
        Phase::Releasing => "phase: releasing",
    }
}

pub(super) fn step(step: &Step<Read>) -> &'static str {
    match step {
        Step::Probe { .. } => "step: probe",
        Step::Acquire { .. } => "step: acquire",
        Step::Generate { .. } => "step: generate",
        Step::Publish {
            renews: Some(_), ..
        } => "step: publish, renews",
        Step::Publish { renews: None, .. } => "step: publish",
        Step::Release { removes: true, .. } => "step: release, removes",
        Step::Release { cooldown, .. } if cooldown.is_zero() => "step: release",
        Step::Release { .. } => "step: release with a cooldown",
        Step::Wait => "step: wait",
        Step::End => "step: end",
    }
}

pub(super) fn ended(ended: &Ended) -> &'static str {
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

pub(super) fn answer(answer: &Answer<Read>) -> &'static str {
    match answer {
        Answer::Version(_) => "answer: version",
        Answer::Pass(_) => "answer: pass",
        Answer::Failed(_) => "answer: failed",
        Answer::Unavailable { .. } => "answer: unavailable",
    }
}
