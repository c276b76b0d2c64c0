//! All times in a process.

use std::sync::Arc;

use crate::{
    clock::Tick,
    page::flight::{
        Answer, Flight, Known, Phase, Publishing, Shown, Version,
        check::{
            content::Read,
            process::{Doing, Process},
        },
    },
};

impl Process {
    /// Changes each time.
    pub(super) fn times(&mut self, change: impl Fn(&mut Tick)) {
        change(&mut self.error_grace);
        change(&mut self.cooling);
        if let Some(held) = &mut self.held {
            change(&mut held.until);
        }
        match &mut self.view {
            Some(Known::Version(version)) => of_version(Arc::make_mut(version), &change),
            Some(Known::HitForPass { until, .. }) => change(until),
            Some(Known::Cooldown {
                until,
                ask_again_at,
                ..
            }) => {
                change(until);
                change(ask_again_at);
            }
            None => {}
        }
        for waiting in self.waiting.iter_mut().flatten() {
            change(&mut waiting.visitor.arrived);
        }
        if let Some(run) = &mut self.run {
            of_state(&mut run.state, &change);
            match &mut run.progress {
                Shown::Stale { version, .. } | Shown::Done(Answer::Version(version)) => {
                    of_version(Arc::make_mut(version), &change);
                }
                Shown::Looking | Shown::First | Shown::Elsewhere | Shown::Done(_) => {}
            }
            if let Doing::Statement { asked, .. } = &mut run.doing {
                change(asked);
            }
            if let Some(lease) = &mut run.lease {
                change(&mut lease.until);
            }
        }
    }
}

fn of_version(version: &mut Version<Read>, change: &impl Fn(&mut Tick)) {
    change(&mut version.born);
    change(&mut version.ask_again_at);
    change(&mut version.error_grace_until);
}

fn of_state(state: &mut Flight<Read>, change: &impl Fn(&mut Tick)) {
    if let Some(newest) = &mut state.newest {
        of_version(newest, change);
    }
    change(&mut state.held_until);
    if let Some((until, _)) = &mut state.cooldown {
        change(until);
    }
    match &mut state.phase {
        Phase::Waiting { until } | Phase::Generating { until, .. } => change(until),
        Phase::Publishing(Publishing { new, again, .. }) => {
            of_version(new, change);
            again.iter_mut().for_each(change);
        }
        Phase::Looking {
            overtaken: Some(new),
        } => of_version(new, change),
        Phase::Idle
        | Phase::Looking { overtaken: None }
        | Phase::Acquiring { .. }
        | Phase::Releasing => {}
    }
}
