//! The promises to visitors in a journal: S6 to S9, S13 and S34 of
//! docs/invariants.md.

use std::time::Duration;

use super::{MICROS, OVERDUE, Oracle, PATIENCE, Visit};
use crate::{
    ground::{Answer, Resource, ServedAs},
    plan::LIMIT,
};

impl Oracle<'_> {
    pub(super) fn got(
        &mut self,
        visit: u32,
        visitor: &Visit,
        key: usize,
        answer: Answer,
        at: u64,
    ) -> Result<(), String> {
        let (number, arrived) = (visitor.process, visitor.arrived);
        let resource = &self.ground.plan.resources[key];
        self.count(match answer {
            Answer::Content {
                said: ServedAs::Nothing,
                ..
            } => "visitors got a part",
            Answer::Content {
                said: ServedAs::Fresh,
                ..
            } => "visitors got a fresh page",
            Answer::Content {
                said: ServedAs::Stale,
                ..
            } => "visitors got a stale page",
            Answer::Content {
                said: ServedAs::Forwarded,
                ..
            } => "visitors got a page made for them",
            Answer::Failed => "visitors got a failure",
            Answer::Unavailable => "visitors got nothing yet",
        });
        let waited = Duration::from_micros(at - arrived);
        let (longest, why) = self.longest(visitor, resource);
        if waited > longest {
            return Err(format!(
                "S13: a visitor waited {waited:?}, {longest:?} at most: {why}"
            ));
        }
        if visitor.hit && !waited.is_zero() {
            return Err(format!(
                "S13: a visitor waited {waited:?} for a fresh version"
            ));
        }
        if let Answer::Content {
            said: ServedAs::Stale,
            ..
        } = answer
            && waited.is_zero()
        {
            self.rests(number, key, at);
        }
        let (datum, run, said) = match answer {
            Answer::Content { own: Some(own), .. } if own == visit => return Ok(()),
            Answer::Content { own: Some(own), .. } => {
                return Err(format!(
                    "S34: visit {own}'s own answer was given to visit {visit}"
                ));
            }
            Answer::Content {
                datum, run, said, ..
            } => (datum, run, said),
            Answer::Failed | Answer::Unavailable => return Ok(()),
        };
        let process = self.processes.entry(number).or_default();
        process.got.insert(key, at);
        let process = &self.processes[&number];
        let mut unheard = false;
        for (index, telling) in self.tellings.iter().enumerate() {
            if datum >= telling.data[key] || !telling.means(resource) {
                continue;
            }
            let purged = telling.name.starts_with("purged:");
            match process.learned.get(&index) {
                Some(learned) if *learned < at && purged => {
                    return Err(format!(
                        "S6: data {datum} is older than a purge at {:.3} s that process {number} learned of at {:.3} s",
                        telling.applied as f64 / 1e6,
                        *learned as f64 / 1e6
                    ));
                }
                Some(learned) if *learned < at && said == ServedAs::Fresh => {
                    return Err(format!(
                        "S8: data {datum} is called fresh after the invalidation of {:?} that process {number} learned of at {:.3} s",
                        telling.name,
                        *learned as f64 / 1e6
                    ));
                }
                _ => {}
            }
            unheard |= purged && telling.applied + OVERDUE + PATIENCE < arrived;
        }
        if unheard {
            self.count("purges unheard of in time");
            let process = &self.processes[&number];
            let limit = LIMIT.as_micros() as u64;
            let excused = process
                .refused
                .is_some_and(|failed| failed + OVERDUE + limit >= arrived);
            let known = process
                .asked
                .is_some_and(|asked| asked + OVERDUE >= arrived);
            // A hanging database does not delay each visitor, but it does delay the first one after
            // a pause, until the sync is given up.
            let ends = process.syncs.map(|since| since + limit);
            let given_up = ends.is_some_and(|end| (arrived..=at).contains(&end));
            let waits = visitor.paused && at < arrived + PATIENCE && !given_up;
            let patient = !waits && process.open.is_some_and(|since| since + PATIENCE <= at);
            if !known && !excused && !patient {
                return Err("S9: an answer relies on invalidations that nobody asked for".into());
            }
        }
        self.aged(key, (datum, run), said, (arrived, at))
    }

    /// S7: the age of a served version. S8: the age of a version that is called fresh.
    fn aged(
        &mut self,
        key: usize,
        (datum, run): (u32, u32),
        said: ServedAs,
        (arrived, at): (u64, u64),
    ) -> Result<(), String> {
        let terms = self.ground.plan.resources[key].terms;
        let made = self.runs.get(&(key, datum, run));
        let Some((ended, stored)) = made.and_then(|made| Some((made.ended?, made.stored))) else {
            return Err(format!("run {run} was served and never ended"));
        };
        // The age counts from the publish. If the publish had to be tried several times, that is
        // later than the end of the generation.
        let born = ended.max(stored);
        let limit = match (said, terms.stale_while_revalidate) {
            (ServedAs::Fresh, _) => terms.interval,
            // A waiting visitor gets the new version.
            (_, Some(_)) if born >= arrived => return Ok(()),
            (_, Some(stale_while_revalidate)) => terms.interval + stale_while_revalidate,
            _ => return Ok(()),
        };
        let age = Duration::from_micros(at - born);
        if !self.set_back && age > limit + Duration::from_micros(MICROS) {
            return Err(format!(
                "S7: content of {age:?} was served, of {limit:?} at most"
            ));
        }
        Ok(())
    }

    /// Returns the longest permitted wait of a visitor.
    fn longest(&self, visitor: &Visit, resource: &Resource) -> (Duration, &'static str) {
        let terms = resource.terms;
        let patience = Duration::from_micros(PATIENCE);
        let process = self.processes.get(&visitor.process);
        // When the process learns of a purge, a version that was generated between the purge and that
        // moment is void as well.
        let purged = |since: u64| {
            process.is_some_and(|process| {
                process.learned.iter().any(|(index, learned)| {
                    let telling = &self.tellings[*index];
                    // If a transaction purges, a process learns of the purge before it gets its epoch.
                    // So the purge also voids a version that was generated between these two moments.
                    let numbered = process.numbered.get(index).copied();
                    numbered.unwrap_or(*learned) >= since
                        && telling.name.starts_with("purged:")
                        && telling.means(resource)
                })
            })
        };
        match visitor.had {
            Some(since) if terms.stale_while_revalidate.is_none() && !purged(since) => {
                // The patience of half a second counts only if the database is slow to tell of
                // invalidations.
                let patience = if visitor.overdue {
                    patience
                } else {
                    Duration::ZERO
                };
                let most = terms.wait.max(patience) + Duration::from_millis(2);
                (most, "there is a version")
            }
            _ => {
                // The visitor's own generator may begin only after another one has ended, and both have
                // statements before them.
                let most = terms.first + 2 * terms.timeout + 8 * LIMIT + Duration::from_secs(15);
                (most, "there is none")
            }
        }
    }
}
