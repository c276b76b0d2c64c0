//! The promises about stored versions in a journal: S1, S2, S3, S10 and S11 of
//! docs/invariants.md.

use std::sync::Arc;

use super::{OVERDUE, Oracle, Telling, Under};
use perennial_store::{Call, Invalidate, Invalidated, Publish, Remove, TryLock};

use crate::{ground::CallResult, plan::LIMIT};

impl Oracle<'_> {
    pub(super) fn applied(
        &mut self,
        call: u64,
        outcome: &CallResult,
        at: u64,
    ) -> Result<(), String> {
        let tellings = self.tellings.len();
        let Some(under) = self.calls.get_mut(&call) else {
            self.count("calls applied after the caller was refused");
            return Ok(());
        };
        under.tellings = tellings;
        let late = at > under.at + LIMIT.as_micros() as u64;
        let very_late = at > under.at + 60_000_000;
        let process = under.process;
        under.outcome = Some(outcome.clone());
        let Some(under) = self.calls.remove(&call) else {
            return Ok(());
        };
        self.leases.applied(&under, outcome, at)?;
        self.wrote(&under, outcome, at)?;
        let asked = Arc::clone(&under.call);
        self.calls.insert(call, under);
        match (&*asked, outcome) {
            // A revision keeps its first epoch, so storing it again changes nothing.
            (Call::Invalidate(Invalidate { names }), CallResult::Epoch(..))
                if names[0].starts_with("revision:")
                    && self.tellings.iter().any(|it| it.name == names[0]) => {}
            (Call::Invalidate(Invalidate { names }), CallResult::Epoch(epoch, data)) => {
                self.tellings.extend(names.iter().map(|name| Telling {
                    name: name.clone(),
                    row: None,
                    epoch: *epoch,
                    applied: at,
                    data: data.clone(),
                }));
            }
            (Call::Number(_), CallResult::Numbered(rows)) => {
                for telling in &mut self.tellings {
                    let row = telling.row.as_ref();
                    if let Some((_, epoch)) = rows.iter().find(|(id, _)| Some(id) == row) {
                        telling.epoch = *epoch;
                    }
                }
            }
            (Call::Publish(Publish { entry, .. }), CallResult::Written(false, _))
                if entry.renews.is_none() =>
            {
                self.count("publishes refused");
            }
            (Call::Publish(Publish { lease, entry }), CallResult::Written(true, before)) => {
                let (key, epoch) = (lease.name.as_str(), entry.epoch);
                let repeated = before.fence == lease.fence.0;
                if !before.holds && !repeated {
                    return Err(format!("S2: {key} was published without its lease"));
                }
                if entry.renews.is_some() && !repeated && !before.same {
                    return Err(format!("S11: {key} was renewed with other content"));
                }
                self.count(if entry.renews.is_some() {
                    "renewals"
                } else {
                    "publishes"
                });
                let before = self
                    .stored
                    .insert(key.to_owned(), (lease.fence.0, epoch.0, process));
                if let Some((fence, older, by)) = before {
                    if fence > lease.fence.0 {
                        return Err(format!("S1: {key} went back from fence {fence}"));
                    }
                    if by == process && older > epoch.0 {
                        return Err(format!(
                            "S10: {key} went back from epoch {older} to {epoch}"
                        ));
                    }
                }
                self.published(
                    key,
                    epoch.0,
                    entry.content.body(),
                    (!repeated).then_some(at),
                )?;
            }
            (Call::Remove(Remove { lease }), CallResult::Written(true, before)) => {
                self.count("removals");
                if !before.holds {
                    return Err(format!(
                        "S2: {:?} was removed without its lease",
                        lease.name
                    ));
                }
            }
            (Call::TryLock(TryLock { name, seen, .. }), CallResult::Fence(fence, stored)) => {
                match fence {
                    Some(_) => self.count("tries won"),
                    None => self.count("tries refused"),
                }
                if let (Some(_), Some(seen)) = (fence, seen)
                    && *stored > seen.0
                {
                    return Err(format!("S3: {name:?} was taken over a version unseen"));
                }
            }
            _ => {}
        }
        if late {
            self.count("calls applied after the limit");
        }
        if very_late {
            self.count("calls applied after a minute");
        }
        Ok(())
    }

    /// A try that was sent twice is carried out once more, at any later time.
    pub(super) fn repeated(
        &mut self,
        process: u32,
        call: &Arc<Call>,
        outcome: &CallResult,
        at: u64,
    ) -> Result<(), String> {
        if let CallResult::Fence(Some(_), _) = outcome {
            self.count("repeated tries won");
        }
        let under = Under {
            process,
            at,
            call: Arc::clone(call),
            key: None,
            tellings: 0,
            outcome: None,
            answered: false,
            refused: None,
        };
        self.leases.applied(&under, outcome, at)
    }

    /// S10: the epoch of a version was known before its generator began.
    fn published(
        &mut self,
        key: &str,
        epoch: i64,
        body: &[u8],
        at: Option<u64>,
    ) -> Result<(), String> {
        let resources = &self.ground.plan.resources;
        let text = String::from_utf8_lossy(body);
        let place = resources.iter().position(|it| it.name == key);
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
        let (Some(key), Some(datum), Some(run)) = (place, numbers.next(), numbers.next()) else {
            return Ok(());
        };
        let begun = self.runs.get_mut(&(key, datum, run));
        match begun {
            Some(begun) if run != 0 && epoch > begun.epoch => Err(format!(
                "S10: run {run} is noted as made in the later epoch {epoch}"
            )),
            Some(begun) => {
                begun.stored = at.unwrap_or(begun.stored);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn answered(&mut self, call: u64, at: u64) -> Result<(), String> {
        let Some(mut under) = self.calls.remove(&call) else {
            return Ok(());
        };
        let mut numbered = Vec::new();
        if let Some(outcome) = under.outcome.take() {
            if let CallResult::Numbered(rows) = &outcome {
                numbered.extend(rows.iter().map(|(id, _)| id.clone()));
            }
            self.leases.answered(&under, &outcome, at)?;
            self.hears(&under, &outcome, at);
        }
        let process = self.processes.entry(under.process).or_default();
        match *under.call {
            // The answer to this statement does not tell the process the epoch of its revision,
            // because another process may have stored the same revision before. The process learns
            // the epoch by a sync.
            Call::Invalidate(Invalidate { ref names }) if names[0].starts_with("revision:") => {}
            Call::Invalidate(_) => {
                process.learned.entry(under.tellings).or_insert(at);
            }
            Call::Number(_) => {
                for (index, telling) in self.tellings.iter().enumerate() {
                    let row = telling.row.as_ref();
                    if row.is_some_and(|row| numbered.contains(row)) {
                        process.numbered.insert(index, at);
                    }
                }
            }
            Call::Invalidated(Invalidated { since, .. }) => {
                for (index, telling) in self.tellings[..under.tellings].iter().enumerate() {
                    if telling.epoch > since.0 {
                        process.learned.entry(index).or_insert(at);
                        if telling.row.is_some() {
                            // While the process asks for all epochs from a place before this epoch,
                            // it does not know this epoch yet.
                            process.numbered.insert(index, at);
                        }
                    }
                }
                process.asked = process.asked.max(Some(under.at));
                // The answer does not count if the sync was sent too long ago.
                if under.at + OVERDUE > at {
                    process.open = None;
                }
                self.count("syncs");
            }
            _ => {}
        }
        Ok(())
    }
}
