//! The figures of the demonstration, by the answers that the visitors got.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;
use serde_json::{Value, json};

use super::copy::round_at;

/// The time that the page shows.
const WINDOW: Duration = Duration::from_secs(30);

/// The time of one cell of a strip.
const CELL: Duration = Duration::from_millis(250);

/// The way in which a visitor got the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Fresh,
    Stale,
    Waited,
    Error,
    /// Nobody could visit the shop, because it was being restarted.
    Closed,
}

/// A visit to one shop, behind one cache.
pub(super) struct Visit {
    pub(super) shop: usize,
    pub(super) perennial: bool,
    pub(super) took: Duration,
    pub(super) kind: Kind,
    /// The text of the page; each text is of another run of the generator.
    pub(super) text: String,
}

/// The counts of one cache.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) visitors: u64,
    pub(super) errors: u64,
    pub(super) stale: u64,
    pub(super) waited: u64,
    pub(super) generations: usize,
    pub(super) slowest_ms: u128,
}

impl Counts {
    fn add(&mut self, visit: &Visit, is_new: bool) {
        self.visitors += 1;
        self.errors += u64::from(visit.kind == Kind::Error);
        self.stale += u64::from(visit.kind == Kind::Stale);
        self.waited += u64::from(visit.kind == Kind::Waited);
        self.generations += usize::from(is_new);
        self.slowest_ms = self.slowest_ms.max(visit.took.as_millis());
    }

    /// Returns the counts since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            visitors: self.visitors - before.visitors,
            errors: self.errors - before.errors,
            stale: self.stale - before.stale,
            waited: self.waited - before.waited,
            generations: self.generations - before.generations,
            slowest_ms: self.slowest_ms,
        }
    }
}

/// The figures of one cache.
#[derive(Default)]
struct Side {
    counts: Counts,
    generations: HashMap<String, usize>,
    /// The times of the latest visits.
    times: VecDeque<(Instant, Duration)>,
}

/// The visits between two times at which the page becomes stale.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) with: Counts,
    pub(super) without: Counts,
    /// The old generation that each shop has served.
    pub(super) old: [Option<usize>; 2],
    /// The slowest visitor who got the old generation.
    pub(super) slowest_stale_ms: u128,
    /// The new generation.
    pub(super) new: Option<usize>,
    /// The latest generation that each shop has served.
    pub(super) latest: [usize; 2],
}

impl Round {
    /// Both shops have served the new generation.
    pub(super) fn is_new_in_both(&self) -> bool {
        self.new
            .is_some_and(|new| self.latest.iter().all(|latest| *latest >= new))
    }

    fn add(&mut self, visit: &Visit, generation: Option<usize>, is_new: bool) {
        if !visit.perennial {
            return self.without.add(visit, is_new);
        }
        self.with.add(visit, is_new);
        let Some(generation) = generation else { return };
        if visit.kind == Kind::Stale && self.new.is_none() {
            self.old[visit.shop] = Some(generation);
            self.slowest_stale_ms = self.slowest_stale_ms.max(visit.took.as_millis());
        }
        if is_new {
            self.new = Some(generation);
        }
        self.latest[visit.shop] = generation;
    }
}

/// The latest visit in a cell of a strip.
struct Cell {
    at: Instant,
    kind: Kind,
    generation: usize,
}

#[derive(Default)]
struct Inner {
    with: Side,
    without: Side,
    strips: [VecDeque<Cell>; 2],
    rounds: VecDeque<Round>,
    stories: Vec<Value>,
}

impl Inner {
    fn side(&mut self, perennial: bool) -> &mut Side {
        if perennial {
            &mut self.with
        } else {
            &mut self.without
        }
    }

    /// Adds a cell to the strip of a shop.
    fn show(&mut self, shop: usize, kind: Kind, generation: usize) {
        let (now, strip) = (Instant::now(), &mut self.strips[shop]);
        let last = strip.back();
        if last.is_none_or(|cell| now - cell.at >= CELL || cell.kind != kind) {
            strip.push_back(Cell {
                at: now,
                kind,
                generation,
            });
        }
        while strip.front().is_some_and(|cell| now - cell.at > WINDOW) {
            strip.pop_front();
        }
    }

    /// Returns the round at a time: the current one, or one of the two before.
    fn round(&mut self, at: SystemTime) -> Option<&mut Round> {
        let number = round_at(at);
        if self.rounds.back().is_none_or(|last| last.number < number) {
            self.rounds.push_back(Round {
                number,
                ..Round::default()
            });
            if self.rounds.len() > 3 {
                self.rounds.pop_front();
            }
        }
        let mut rounds = self.rounds.iter_mut();
        rounds.find(|round| round.number == number)
    }
}

#[derive(Default)]
pub(super) struct Figures(Mutex<Inner>);

impl Figures {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a visit that has just ended.
    pub(super) fn visited(&self, visit: &Visit) {
        let (now, mut inner) = (Instant::now(), self.inner());
        let side = inner.side(visit.perennial);
        side.times.push_back((now, visit.took));
        while side.times.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            side.times.pop_front();
        }
        let (mut generation, mut is_new) = (None, false);
        if visit.kind != Kind::Error {
            let next = side.generations.len() + 1;
            let known = side.generations.entry(visit.text.clone()).or_insert(next);
            (generation, is_new) = (Some(*known), *known == next);
        }
        side.counts.add(visit, is_new);
        // A visit counts in the round in which it began.
        if let Some(round) = inner.round(SystemTime::now() - visit.took) {
            round.add(visit, generation, is_new);
        }
        if visit.perennial {
            inner.show(visit.shop, visit.kind, generation.unwrap_or_default());
        }
    }

    /// Records that nobody can visit a shop now.
    pub(super) fn closed(&self, shop: usize) {
        let generation = self.latest(shop);
        self.inner().show(shop, Kind::Closed, generation);
    }

    pub(super) fn counts(&self, perennial: bool) -> Counts {
        self.inner().side(perennial).counts
    }

    /// Returns the round at a time, if a visitor has come in it.
    pub(super) fn round(&self, at: SystemTime) -> Option<Round> {
        let (number, inner) = (round_at(at), self.inner());
        let mut rounds = inner.rounds.iter();
        rounds.find(|round| round.number == number).copied()
    }

    /// Returns the slowest visit since this moment.
    pub(super) fn slowest(&self, perennial: bool, since: Instant) -> Duration {
        let mut inner = self.inner();
        let times = inner.side(perennial).times.iter();
        let times = times.filter(|(at, _)| *at >= since);
        times.map(|(_, took)| *took).max().unwrap_or_default()
    }

    /// Returns the number of the generation with this text, or `None` if no visitor has got it.
    pub(super) fn generation_of(&self, text: &str) -> Option<usize> {
        self.inner().with.generations.get(text).copied()
    }

    /// Returns the generation that a shop's latest visitor got.
    pub(super) fn latest(&self, shop: usize) -> usize {
        let inner = self.inner();
        let cell = inner.strips[shop].back();
        cell.map_or(0, |cell| cell.generation)
    }

    /// Records the end of a story.
    pub(super) fn told(&self, number: usize, ok: bool, sentence: &str) {
        let mut inner = self.inner();
        inner.stories.retain(|story| story["story"] != number);
        let story = json!({ "story": number, "ok": ok, "sentence": sentence });
        inner.stories.push(story);
    }

    pub(super) fn snapshot(&self) -> Value {
        let (now, inner) = (Instant::now(), self.inner());
        let kind = |kind| match kind {
            Kind::Fresh => "fresh",
            Kind::Stale => "stale",
            Kind::Waited => "waited",
            Kind::Error => "error",
            Kind::Closed => "closed",
        };
        let strips = inner.strips.each_ref().map(|strip| {
            let cell = |cell: &Cell| {
                json!([
                    (now - cell.at).as_millis(),
                    kind(cell.kind),
                    cell.generation
                ])
            };
            strip.iter().map(cell).collect::<Vec<_>>()
        });
        json!({
            "with": inner.with.counts, "without": inner.without.counts, "strips": strips, "stories": inner.stories,
        })
    }
}
