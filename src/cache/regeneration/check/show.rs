//! Prints a state of the model in a few lines, as part of the path to a violation.

use std::fmt;

use crate::{
    cache::{
        entry::{Answer, CacheEntry, Freshness, Version},
        regeneration::{
            check::{
                content::{Marks, Read, Text},
                names,
                process::{Doing, Lease, Process, Run, Waiting},
                setup::SECOND,
                world::World,
            },
            waiting::Progress,
        },
    },
    clock::Tick,
};

fn seconds(time: Tick) -> i64 {
    time.0.div_euclid(SECOND)
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = self.database.lock;
        write!(
            f,
            "lock {} owner {} for {} s, ",
            lock.fence,
            lock.owner,
            seconds(lock.expires).max(-1)
        )?;
        marks(f, self.database.marks)?;
        match self.database.entry {
            Some(entry) => {
                let (age, fence) = (-seconds(entry.made), entry.fence);
                write!(f, ", stored: {fence}, {age} s old, ")?;
                text(f, entry.text)?;
            }
            None => f.write_str(", nothing stored")?,
        }
        self.processes.iter().try_for_each(|process| {
            let number = process.number;
            write!(f, "\n     {number}: ")?;
            self.process(process, f)
        })
    }
}

impl World {
    fn process(&self, process: &Process, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        marks(f, process.known.marks)?;
        for (name, is) in [
            (" incomplete", !process.known.complete),
            (" new", process.known.is_new),
            (" purging", process.purging),
            (" closing", process.closing),
        ] {
            f.write_str(if is { name } else { "" })?;
        }
        if let Some(sleep) = process.sleep {
            write!(f, " {sleep:?}")?;
        }
        if let Some(late) = process.late {
            write!(f, " late {late:?}")?;
        }
        match &process.view {
            None => f.write_str(", no view")?,
            Some(CacheEntry::Version(version)) => {
                f.write_str(", view ")?;
                self.version(process, version, f)?;
            }
            Some(CacheEntry::HitForPass { until, why, .. }) => {
                write!(f, ", pass {why:?} until {}", seconds(*until))?;
            }
            Some(CacheEntry::Cooldown { until, .. }) => {
                write!(f, ", cooldown until {}", seconds(*until))?;
            }
        }
        for Waiting { visitor, anew, .. } in process.waiting.iter().flatten() {
            let (since, leads) = (-seconds(visitor.arrived), visitor.leads);
            write!(f, ", waits {since} s leads {leads} anew {anew}")?;
        }
        let runs = process.releasing.iter().chain(&process.run);
        runs.into_iter()
            .try_for_each(|run| self.run(process, run, f))
    }

    fn run(&self, process: &Process, run: &Run, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\n        {}, ",
            names::situation(&run.regeneration.state)
        )?;
        match &run.regeneration.newest {
            Some(version) => self.version(process, version, f)?,
            None => f.write_str("nothing known")?,
        }
        if let Some(Lease { row, until, lost }) = run.lease {
            let until = seconds(until);
            write!(f, ", lease {} until {until} lost {lost}", row.fence)?;
        }
        match &run.progress {
            Progress::Done(Answer::Version(_)) => f.write_str(", done with a version")?,
            Progress::Done(answer) => write!(f, ", done with {answer:?}")?,
            Progress::Stale { generating, .. } => write!(f, ", stale, generating {generating}")?,
            other => write!(f, ", {other:?}")?,
        }
        match run.doing {
            Doing::Nothing => Ok(()),
            Doing::Generating(new) => {
                f.write_str(", generating ")?;
                text(f, new)
            }
            Doing::Statement {
                statement,
                asked,
                reply,
            } => write!(
                f,
                "\n        {statement:?} since {} s: {reply:?}",
                -seconds(asked)
            ),
        }
    }

    fn version(
        &self,
        process: &Process,
        version: &Version<Read>,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let Version {
            page: _,
            fence,
            published_at,
            origin,
            recheck_at,
            error_grace_until,
            ..
        } = version;
        let freshness: Freshness = version.freshness(&process.context(self.setup));
        let (age, quiet, grace) = (
            -seconds(*published_at),
            seconds(*recheck_at),
            seconds(*error_grace_until),
        );
        write!(f, "{fence} {origin:?} {freshness:?} {age} s old ")?;
        text(f, Text::of(version))?;
        if quiet > 0 {
            write!(f, " quiet {quiet} s")?;
        }
        if grace > 0 {
            write!(f, " error grace {grace} s")?;
        }
        Ok(())
    }
}

fn marks(f: &mut fmt::Formatter<'_>, marks: Marks) -> fmt::Result {
    let Marks {
        stale,
        purged,
        revision,
        latest,
    } = marks;
    write!(
        f,
        "stale {stale} purged {purged} revision {revision} latest {latest}"
    )
}

fn text(f: &mut fmt::Formatter<'_>, text: Text) -> fmt::Result {
    let Text { read, snapshot, .. } = text;
    write!(
        f,
        "read {read} metadata {}/{:?}",
        snapshot.epoch, snapshot.revision
    )
}
