//! The names of situations, so that a check that never reaches one of its situations fails.

use crate::{
    event::{Bypass, Outcome},
    resource::state::{Answer, Ended, Phase, Publishing, Report, Step, check::content::Text},
};

pub(super) fn phase(phase: &Phase<Text>) -> &'static str {
    match phase {
        Phase::Idle => "phase: idle",
        Phase::Probing => "phase: probing",
        Phase::Trying { epoch_seen: None } => "phase: trying without a probe",
        Phase::Trying {
            epoch_seen: Some(_),
        } => "phase: trying",
        Phase::Pausing { .. } => "phase: pausing",
        Phase::Generating { lease: None, .. } => "phase: generating without a lease",
        Phase::Generating { .. } => "phase: generating",
        Phase::Publishing(Publishing { again: Some(_), .. }) => "phase: waits to publish again",
        Phase::Publishing(Publishing { shown: true, .. }) => "phase: publishing, shown unsaved",
        Phase::Publishing(_) => "phase: publishing",
        Phase::Overtaken(_) => "phase: overtaken",
        Phase::Releasing => "phase: releasing",
    }
}

pub(super) fn command(command: &Step<Text>) -> &'static str {
    match command {
        Step::Continue => "command: continue",
        Step::Pause => "command: pause",
        Step::Probe { .. } => "command: probe",
        Step::Try { .. } => "command: try",
        Step::Generate { .. } => "command: generate",
        Step::Publish {
            renews: Some(_), ..
        } => "command: publish, renews",
        Step::Publish { renews: None, .. } => "command: publish",
        Step::Release { removes: true, .. } => "command: release, removes",
        Step::Release { cooldown, .. } if cooldown.is_zero() => "command: release",
        Step::Release { .. } => "command: release with a cooldown",
        Step::End => "command: end",
    }
}

pub(super) fn report(report: &Report<Text>) -> &'static str {
    match report {
        Report::Waits(_) => "report: waits",
        Report::NotBegun(Outcome::Busy) => "report: not begun, busy",
        Report::NotBegun(Outcome::Elsewhere) => "report: not begun, elsewhere",
        Report::NotBegun(Outcome::Cooldown) => "report: not begun, cooldown",
        Report::NotBegun(Outcome::DatabaseAway) => "report: not begun, database away",
        Report::NotBegun(outcome) => panic!("{outcome} has begun"),
        Report::Ended(Ended {
            outcome,
            serves_old: true,
            ..
        }) => match outcome {
            Outcome::Failed => "report: failed, the old version is served",
            Outcome::TimedOut => "report: timed out, the old version is served",
            _ => "report: not stored, too large, the old version is served",
        },
        Report::Ended(Ended { outcome, .. }) => match outcome {
            Outcome::Stored => "report: stored",
            Outcome::Renewed => "report: renewed",
            Outcome::Unsaved => "report: unsaved",
            Outcome::Overtaken => "report: overtaken",
            Outcome::NotStored(Bypass::TooLarge) => "report: not stored, too large",
            Outcome::NotStored(_) => "report: not stored",
            Outcome::Failed => "report: failed",
            Outcome::TimedOut => "report: timed out",
            outcome => panic!("{outcome} has not begun"),
        },
    }
}

pub(super) fn answer(answer: &Answer<Text>) -> &'static str {
    match answer {
        Answer::Version(_) => "answer: version",
        Answer::Pass(_) => "answer: pass",
        Answer::Failed(()) => "answer: failed",
        Answer::Unavailable { .. } => "answer: unavailable",
    }
}
