//! The judge of a record: a function from the facts of several processes to the broken promises of
//! docs/protocol.md.

#[cfg(test)]
mod forged;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use serde::{Deserialize, Serialize};

/// A time in microseconds since 1970, by the clock that all recorded processes share.
pub(crate) type Micros = u64;

/// A fact from the record of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub(crate) enum Fact {
    /// A process was at work under a lease, and had reason to believe that the lease was its own.
    Held {
        lock: String,
        fence: i64,
        process: String,
        from: Micros,
        until: Micros,
    },
    /// A process was told that its publish is done.
    Published {
        key: String,
        fence: i64,
        number: u64,
        process: String,
    },
    /// A reader of the database saw this version.
    Stored {
        key: String,
        fence: i64,
        number: u64,
        at: Micros,
    },
    /// A visitor sent a request at `from`, and had received the content with this number by
    /// `until`.
    Visited {
        key: String,
        number: u64,
        process: String,
        from: Micros,
        until: Micros,
    },
    /// The bank has charged for a payment.
    Charged { payment: String },
    /// A client got this answer to a payment.
    Answered {
        payment: String,
        status: u16,
        body: String,
    },
    /// The recorder of a process was too slow, and has lost facts.
    Missed { process: String, facts: u64 },
}

/// A promise that the record contradicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) promise: Promise,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Promise {
    /// No two processes are at work under one lock at the same time.
    Exclusion,
    /// A later lease of a lock has a greater fence.
    Fences,
    /// At most one publish of a key with one fence is done.
    OnePublish,
    /// Stored content never goes back.
    Stored,
    /// Once a process has served stored content, no later visit to it gets older content.
    Served,
    /// A payment is made at most once, and an answered one is made.
    OnePayment,
    /// A repeated request gets the first answer.
    OneAnswer,
    /// The record has everything.
    Complete,
}

impl Promise {
    pub(crate) const ALL: [Self; 8] = [
        Self::Exclusion,
        Self::Fences,
        Self::OnePublish,
        Self::Stored,
        Self::Served,
        Self::OnePayment,
        Self::OneAnswer,
        Self::Complete,
    ];
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "overlapping holders of a lock",
            Self::Fences => "fences gone back between leases",
            Self::OnePublish => "publishes done twice with one fence",
            Self::Stored => "stored content gone back",
            Self::Served => "served content gone back",
            Self::OnePayment => "payments made twice, or answered and not made",
            Self::OneAnswer => "payments with two different answers",
            Self::Complete => "facts missing from the record",
        })
    }
}

/// Judges a history. The order of the facts has no meaning, except of those with a time.
pub(crate) fn judge(history: &[Fact]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut breach = |promise, text| breaches.push(Breach { promise, text });
    exclusion(history, &mut breach);
    publishes(history, &mut breach);
    stored(history, &mut breach);
    served(history, &mut breach);
    payments(history, &mut breach);
    for fact in history {
        if let Fact::Missed { process, facts } = fact {
            breach(
                Promise::Complete,
                format!("{process} has lost {facts} facts"),
            );
        }
    }
    breaches
}

fn exclusion(history: &[Fact], breach: &mut impl FnMut(Promise, String)) {
    let mut locks = BTreeMap::<_, Vec<_>>::new();
    for fact in history {
        if let Fact::Held {
            lock,
            fence,
            process,
            from,
            until,
        } = fact
        {
            let held = (*from, *until, *fence, process);
            locks.entry(lock).or_default().push(held);
        }
    }
    for (lock, mut held) in locks {
        held.sort();
        // The holder that works the longest of those seen so far.
        let mut latest = held[0];
        for now in &held[1..] {
            let (from, until, fence, process) = *now;
            if from < latest.1 {
                breach(
                    Promise::Exclusion,
                    format!(
                        "{lock}: {process} with fence {fence} began {} µs before {} with fence {} ended",
                        latest.1 - from,
                        latest.3,
                        latest.2
                    ),
                );
            }
            if fence <= latest.2 {
                breach(
                    Promise::Fences,
                    format!("{lock}: fence {fence} of {process} came after {}", latest.2),
                );
            }
            if until > latest.1 {
                latest = *now;
            }
        }
    }
}

fn publishes(history: &[Fact], breach: &mut impl FnMut(Promise, String)) {
    let mut published = BTreeMap::<_, BTreeMap<_, _>>::new();
    for fact in history {
        if let Fact::Published {
            key,
            fence,
            number,
            process,
        } = fact
        {
            let before = published
                .entry(key)
                .or_default()
                .insert(*fence, (*number, process));
            if let Some((_, before)) = before {
                breach(
                    Promise::OnePublish,
                    format!("{key}: fence {fence} by {before}, and by {process}"),
                );
            }
        }
    }
    for (key, versions) in published {
        let versions: Vec<_> = versions.into_iter().collect();
        for pair in versions.windows(2) {
            let [(older, (before, _)), (fence, (number, process))] = pair else {
                continue;
            };
            if number <= before {
                breach(
                    Promise::Stored,
                    format!(
                        "{key}: {process} published number {number} with fence {fence}, after {before} with {older}"
                    ),
                );
            }
        }
    }
}

fn stored(history: &[Fact], breach: &mut impl FnMut(Promise, String)) {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for fact in history {
        if let Fact::Stored {
            key,
            fence,
            number,
            at,
        } = fact
        {
            keys.entry(key).or_default().push((*at, *fence, *number));
        }
    }
    for (key, mut seen) in keys {
        seen.sort();
        for pair in seen.windows(2) {
            let [(_, older, before), (at, fence, number)] = pair else {
                continue;
            };
            // A fence belongs to a single content.
            if fence < older || number < before || (fence == older && number != before) {
                breach(
                    Promise::Stored,
                    format!(
                        "{key}: number {before} with fence {older} became {number} with {fence} before {at}"
                    ),
                );
            }
        }
    }
}

fn served(history: &[Fact], breach: &mut impl FnMut(Promise, String)) {
    let mut visits = BTreeMap::<_, Vec<_>>::new();
    for fact in history {
        if let Fact::Visited {
            key,
            number,
            process,
            from,
            until,
        } = fact
        {
            let visit = (*from, *until, *number);
            visits.entry((process, key)).or_default().push(visit);
        }
    }
    let stored: HashSet<_> = history.iter().filter_map(number_stored).collect();
    for ((process, key), mut visits) in visits {
        visits.sort();
        let mut ended: Vec<_> = visits.iter().map(|visit| (visit.1, visit.2)).collect();
        ended.sort();
        let mut ended = ended.into_iter().peekable();
        // The newest content of all visits that had ended before this visit.
        let mut newest = 0;
        for (from, _, number) in visits {
            while let Some((_, number)) = ended.next_if(|(until, _)| *until < from) {
                // While the database is unavailable, a process serves content that it cannot store.
                // What another process stores afterwards may have been generated earlier than such
                // unstored content. So only stored content counts as the newest here.
                if stored.contains(&(key, number)) {
                    newest = newest.max(number);
                }
            }
            if number < newest {
                breach(
                    Promise::Served,
                    format!("{key}: {process} served number {number} at {from}, after {newest}"),
                );
            }
        }
    }
}

fn number_stored(fact: &Fact) -> Option<(&String, u64)> {
    match fact {
        Fact::Published { key, number, .. } | Fact::Stored { key, number, .. } => {
            Some((key, *number))
        }
        _ => None,
    }
}

fn payments(history: &[Fact], breach: &mut impl FnMut(Promise, String)) {
    let mut charges = HashMap::<_, u32>::new();
    let mut answers = BTreeMap::<_, &str>::new();
    for fact in history {
        match fact {
            Fact::Charged { payment } => *charges.entry(payment).or_default() += 1,
            Fact::Answered {
                payment,
                status,
                body,
            } if (200..300).contains(status) => {
                let first = answers.entry(payment).or_insert(body);
                if first != body {
                    breach(
                        Promise::OneAnswer,
                        format!("{payment}: {first:?}, and later {body:?}"),
                    );
                }
            }
            _ => {}
        }
    }
    for (payment, count) in &charges {
        if *count > 1 {
            breach(Promise::OnePayment, format!("{payment}: {count} times"));
        }
    }
    for payment in answers.keys() {
        if !charges.contains_key(*payment) {
            breach(
                Promise::OnePayment,
                format!("{payment}: answered, and not made"),
            );
        }
    }
}
