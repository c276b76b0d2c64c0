//! The normalised form of a process.

use crate::page::flight::{
    Answer, Flight, HeldElsewhere, Known, Origin, Phase, Publishing, Shown, Version,
    check::{
        code::Code,
        content::{ModelList, Read, Text},
        database::Statement,
        process::{Doing, Lease, Process, Run, Waiting},
        setup::{NOW, SECOND},
    },
};

impl Code {
    fn version(&mut self, version: &Version<Read>) {
        let Version {
            page: _,
            fence,
            born,
            origin,
            undated,
            replaces,
            ask_again_at,
            error_grace_until,
        } = version;
        self.text(Text::of(version));
        self.fence(*fence);
        self.time(*born);
        let origin = match origin {
            Origin::Stored => 0,
            Origin::Published { latest } => 1 + i64::from(*latest),
            Origin::Unsaved => 3,
        };
        self.byte(origin);
        // No decision reads this flag.
        let _ = replaces;
        self.flags(&[*undated]);
        self.until(*ask_again_at);
        self.until(*error_grace_until);
    }

    fn maybe_version(&mut self, version: Option<&Version<Read>>) {
        self.flags(&[version.is_some()]);
        if let Some(version) = version {
            self.version(version);
        }
    }

    pub(super) fn process(&mut self, process: &Process) {
        let Process {
            number: _,
            known,
            view,
            run,
            held,
            waiting,
            sleep,
            purging,
            closing,
            late,
            lost_try,
            error_grace,
            cooling,
            suspended,
        } = process;
        let ModelList {
            marks,
            complete,
            is_new,
            ignores_purges: _,
        } = *known;
        self.marks(marks);
        self.flags(&[complete, is_new, *purging, *closing, *suspended]);
        self.byte(sleep.map_or(0, |sleep| 1 + sleep as i64));
        self.owns(*lost_try);
        self.until(*error_grace);
        self.until(*cooling);
        // Afterwards the lease is not known.
        let held = held.filter(|held| NOW < held.until);
        self.flags(&[held.is_some()]);
        if let Some(HeldElsewhere { known, until }) = held {
            self.fence(known);
            self.until(until);
        }
        match view {
            None => self.byte(0),
            Some(Known::Version(version)) => {
                self.byte(1);
                self.version(version);
            }
            Some(Known::HitForPass { until, why, meta }) => {
                self.byte(2 + *why as i64);
                self.until(*until);
                self.as_of(meta.as_of());
            }
            Some(Known::Cooldown {
                until,
                ask_again_at,
                failures,
                meta,
            }) => {
                self.byte(100);
                self.failures(*failures);
                self.until(*until);
                self.until(*ask_again_at);
                self.as_of(meta.as_of());
            }
        }
        for waiting in waiting {
            self.flags(&[waiting.is_some()]);
            if let Some(Waiting {
                visitor,
                anew,
                slept,
            }) = waiting
            {
                self.time(visitor.arrived);
                self.flags(&[
                    visitor.leads,
                    visitor.arrived.0 % SECOND != 0,
                    *anew,
                    *slept,
                ]);
            }
        }
        self.flags(&[late.is_some(), run.is_some()]);
        if let Some(statement) = late {
            self.statement(*statement);
            if let Statement::Try { owner, .. } = statement {
                self.flags(&[owner == lost_try]);
            }
        }
        if let Some(run) = run {
            self.run(run);
        }
    }

    fn run(&mut self, run: &Run) {
        let Run {
            state,
            progress,
            doing,
            lease,
            permits,
            has_permit,
            is_away,
        } = run;
        self.state(state);
        self.progress(progress);
        match *doing {
            Doing::Nothing => self.byte(0),
            Doing::Statement {
                statement,
                asked,
                reply,
            } => {
                self.byte(1);
                self.statement(statement);
                self.time(asked);
                self.reply(reply);
            }
            Doing::Generating(text) => {
                self.byte(2);
                self.text(text);
            }
        }
        self.flags(&[lease.is_some(), *is_away]);
        self.flags(&[*permits, *has_permit]);
        if let Some(Lease { row, until, lost }) = *lease {
            self.row(row);
            self.until(until);
            self.flags(&[lost]);
        }
    }

    fn progress(&mut self, progress: &Shown<Read>) {
        match progress {
            Shown::Looking => self.byte(0),
            Shown::Stale { version, begun } => {
                self.byte(1);
                self.version(version);
                self.flags(&[*begun]);
            }
            Shown::First => self.byte(2),
            Shown::Elsewhere => self.byte(3),
            Shown::Done(Answer::Version(version)) => {
                self.byte(4);
                self.version(version);
            }
            Shown::Done(Answer::Pass(why)) => self.byte(10 + *why as i64),
            Shown::Done(Answer::Failed(_)) => self.byte(5),
            Shown::Done(Answer::Unavailable { retry_in }) => {
                self.byte(6);
                self.byte(retry_in.as_secs() as i64);
            }
        }
    }

    pub(super) fn state(&mut self, state: &Flight<Read>) {
        let Flight {
            newest,
            phase,
            failures,
            polls,
            held_until,
            cooldown,
            // Each visitor accepts any version here.
            not_before: _,
        } = state;
        self.maybe_version(newest.as_ref());
        // Each pause is a second here.
        let _ = polls;
        self.failures(*failures);
        self.flags(&[held_until.0 == i64::MIN]);
        self.until(*held_until);
        self.flags(&[cooldown.is_some()]);
        if let Some((until, meta)) = cooldown {
            self.until(*until);
            self.as_of(meta.as_of());
        }
        match phase {
            Phase::Idle => self.byte(0),
            Phase::Looking { overtaken: None } => self.byte(3),
            Phase::Acquiring { probed } => {
                self.byte(4);
                self.byte(probed.map_or(0, |probed| 1 + probed));
            }
            Phase::Waiting { until } => {
                self.byte(5);
                self.until(*until);
            }
            Phase::Generating {
                lease,
                as_of,
                until,
            } => {
                self.byte(6);
                self.fence(lease.unwrap_or(0));
                self.as_of(*as_of);
                self.until(*until);
            }
            Phase::Publishing(Publishing {
                new,
                renews,
                // Each pause is a second here.
                tries: _,
                shown,
                again,
            }) => {
                self.byte(7);
                self.version(new);
                self.flags(&[*renews, *shown, again.is_some()]);
                self.until(again.unwrap_or(NOW));
            }
            Phase::Looking {
                overtaken: Some(new),
            } => {
                self.byte(8);
                self.version(new);
            }
            Phase::Releasing => self.byte(10),
        }
    }
}
