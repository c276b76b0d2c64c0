//! Connects the check with the search: here are the steps that the search tries from each state,
//! and the fixed order of steps in which a state has to come to rest when there are no more faults.

use crate::cache::{
    entry::{CacheEntry, Freshness},
    regeneration::check::{
        action::WorldAction,
        names,
        process::{Doing, Process},
        regenerate::Ran,
        setup::{NOW, SECOND, Setup},
        visit::Request,
        world::World,
    },
};
use perennial_testkit::search::{Broken, Model, Steps};

impl Model for Setup {
    type State = World;
    type Action = WorldAction;

    /// A lease, a cooldown, a second, the time of a hit-for-pass, and the timeout of the generator.
    const SETTLES: Broken =
        "S35: without further faults, every visitor is answered and every regeneration ends";
    const PATIENCE: u16 = 8;

    fn start(&self) -> World {
        World::new(Box::leak(Box::new(self.clone())))
    }

    fn steps(&self, world: &World, steps: &mut Steps<Self>) {
        let mut seen = Vec::new();
        world.actions(&mut |action| match world.after(action, &mut seen) {
            Ok(next) => steps.to(action, next),
            Err(property) => steps.broken(action, property),
        });
        for process in &world.processes {
            for run in process.run.iter().chain(&process.releasing) {
                seen.push(names::situation(&run.regeneration.state));
            }
        }
        seen.into_iter()
            .for_each(|situation| steps.sometimes(situation));
    }

    fn invariant(&self, world: &World) -> Result<(), Broken> {
        world.laws()
    }

    fn settle(&self, world: &World) -> Option<(u16, World)> {
        let mut seen = Vec::new();
        for action in world.settling() {
            let mut next = world.clone();
            // A violation is found by the steps.
            next.act(action, &mut seen).ok()?;
            next.forget_late();
            // An answer from memory changes nothing.
            if !matches!(action, WorldAction::Ask(..)) || *world != next {
                // A lock from before the clock was set back lasts until the clock has caught up.
                let counts = world.database.lock.acquired <= NOW;
                let costs = counts && action == WorldAction::Tick(None);
                return Some((u16::from(costs), next));
            }
        }
        None
    }
}

impl World {
    /// Returns the actions that are not faults, in the order in which they are tried. Empty if
    /// nothing is left to do.
    fn settling(&self) -> Vec<WorldAction> {
        let mut actions = Vec::new();
        let [first, second] = &self.processes;
        let is_free = self.database.lock.owner == 0 || self.database.lock.expires <= NOW;
        let is_idle = |process: &Process| {
            process.acting().is_none() && process.sleep.is_none() && process.late.is_none()
        };
        let fresh = [first, second].map(|process| process.is_fresh(self.setup));
        // If the processes run two revisions of the code, each of them has a version of its own, so
        // the two versions need not agree.
        let agree = fresh[0] == fresh[1] || first.known.is_new != second.known.is_new;
        let are_fresh = fresh.iter().all(Option::is_some) && agree;
        if are_fresh && is_free && is_idle(first) && is_idle(second) {
            return actions;
        }
        for process in &self.processes {
            let number = process.number;
            if process.sleep.is_some() {
                actions.push(WorldAction::Wake(number));
                continue;
            }
            if process.late.is_some() {
                actions.push(WorldAction::DropLate(number));
            }
            if process.closing && process.acting().is_none() {
                actions.push(WorldAction::Crash(number));
                continue;
            }
            if process.purging {
                actions.push(WorldAction::EndPurge(number));
            }
            if process.is_behind(&self.database) {
                actions.push(WorldAction::Sync(number));
            }
            match process.acting().map(|run| run.doing) {
                Some(Doing::Statement { reply: None, .. }) => {
                    actions.push(WorldAction::Run(number));
                }
                Some(Doing::Statement { .. }) => actions.push(WorldAction::Answer(number)),
                Some(Doing::Generating(_)) => {
                    actions.push(WorldAction::Generated(number, Ran::Content));
                }
                Some(Doing::Nothing) if process.is_due(self.setup) => {
                    actions.push(WorldAction::Due(number));
                }
                Some(Doing::Nothing) => {}
                None => actions.push(WorldAction::Ask(number, Request::Ordinary)),
            }
        }
        actions.push(WorldAction::Tick(None));
        actions
    }
}

impl Process {
    pub(crate) fn is_due(&self, setup: &Setup) -> bool {
        let due = self
            .run
            .as_ref()
            .and_then(|run| run.regeneration.timer(&self.context(setup)));
        due.is_some_and(|due| due <= NOW)
    }

    /// Returns true if an action is due before time advances.
    pub(crate) fn is_urgent(&self, setup: &Setup) -> bool {
        let is_overdue = |doing: &Doing| match doing {
            Doing::Statement { asked, .. } => asked.0 <= -SECOND,
            _ => false,
        };
        self.sleep.is_none()
            && (self.is_due(setup) || self.acting().is_some_and(|run| is_overdue(&run.doing)))
    }

    fn is_fresh(&self, setup: &Setup) -> Option<i64> {
        match &self.view {
            Some(CacheEntry::Version(version)) if !version.is_unsaved() => {
                let freshness = version.freshness(&self.context(setup));
                (freshness == Freshness::Fresh).then_some(version.fence.0)
            }
            _ => None,
        }
    }
}
