//! The figures of the demonstration, by the answers that the visitors got.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The time that the page shows.
const WINDOW: Duration = Duration::from_secs(30);

/// The time of one cell of a strip.
const CELL: Duration = Duration::from_millis(250);

/// The figures of one cache.
#[derive(Default)]
struct Side {
    requests: u64,
    errors: u64,
    stale: u64,
    waited: u64,
    /// Each text is of another run of the generator.
    generations: HashMap<String, usize>,
    /// The times of the latest visits.
    times: VecDeque<(Instant, Duration)>,
}

/// The latest visit in a cell of a strip.
struct Cell {
    at: Instant,
    kind: &'static str,
    generation: usize,
}

#[derive(Default)]
struct Inner {
    with: Side,
    without: Side,
    strips: [VecDeque<Cell>; 2],
    lease: VecDeque<(Instant, usize)>,
    fence: i64,
    holder: Option<usize>,
    stories: Vec<Value>,
}

#[derive(Default)]
pub(super) struct Figures(Mutex<Inner>);

/// The counts of one cache at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) stale: u64,
    pub(super) waited: u64,
    pub(super) generations: usize,
}

impl Figures {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a visit. `answer`: the text, whether it was stale, and whether the visitor waited for
    /// a generation; `None`: an error.
    pub(super) fn visited(
        &self,
        number: usize,
        perennial: bool,
        took: Duration,
        answer: Option<(String, bool, bool)>,
    ) {
        let (now, mut inner) = (Instant::now(), self.inner());
        let side = if perennial {
            &mut inner.with
        } else {
            &mut inner.without
        };
        side.requests += 1;
        side.times.push_back((now, took));
        while side.times.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            side.times.pop_front();
        }
        let (kind, generation) = match answer {
            None => {
                side.errors += 1;
                ("error", 0)
            }
            Some((text, is_stale, waited)) => {
                let next = side.generations.len() + 1;
                let generation = *side.generations.entry(text).or_insert(next);
                side.stale += u64::from(is_stale);
                side.waited += u64::from(waited);
                let kind = match (waited, is_stale) {
                    (true, _) => "waited",
                    (_, true) => "stale",
                    _ => "fresh",
                };
                (kind, generation)
            }
        };
        if perennial {
            let strip = &mut inner.strips[number];
            if strip
                .back()
                .is_none_or(|cell| now - cell.at >= CELL || cell.kind != kind)
            {
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
    }

    /// Records the holder of the lease.
    pub(super) fn lease(&self, holder: Option<(usize, i64)>) {
        let (now, mut inner) = (Instant::now(), self.inner());
        inner.holder = holder.map(|(number, _)| number);
        if let Some((number, fence)) = holder {
            inner.lease.push_back((now, number));
            inner.fence = fence;
        }
        while inner
            .lease
            .front()
            .is_some_and(|(at, _)| now - *at > WINDOW)
        {
            inner.lease.pop_front();
        }
    }

    /// Returns the holder of the lease.
    pub(super) fn holder(&self) -> Option<usize> {
        self.inner().holder
    }

    pub(super) fn counts(&self, perennial: bool) -> Counts {
        let inner = self.inner();
        let side = if perennial {
            &inner.with
        } else {
            &inner.without
        };
        Counts {
            requests: side.requests,
            errors: side.errors,
            stale: side.stale,
            waited: side.waited,
            generations: side.generations.len(),
        }
    }

    /// Returns the slowest visit since this moment.
    pub(super) fn slowest(&self, perennial: bool, since: Instant) -> Duration {
        let inner = self.inner();
        let side = if perennial {
            &inner.with
        } else {
            &inner.without
        };
        let times = side.times.iter().filter(|(at, _)| *at >= since);
        times.map(|(_, took)| *took).max().unwrap_or_default()
    }

    /// Returns the number of the generation with this text; `None`: no visitor has got it.
    pub(super) fn generation_of(&self, text: &str) -> Option<usize> {
        self.inner().with.generations.get(text).copied()
    }

    /// Returns the generation that a shop's latest visitor got.
    pub(super) fn latest(&self, number: usize) -> usize {
        let inner = self.inner();
        inner.strips[number]
            .back()
            .map_or(0, |cell| cell.generation)
    }

    /// Records the end of a story.
    pub(super) fn told(&self, number: u8, ok: bool, sentence: &str) {
        let mut inner = self.inner();
        inner.stories.retain(|story| story["story"] != number);
        let story = json!({ "story": number, "ok": ok, "sentence": sentence });
        inner.stories.push(story);
    }

    pub(super) fn snapshot(&self) -> Value {
        let (now, inner) = (Instant::now(), self.inner());
        let ago = |at: Instant| (now - at).as_millis();
        let side = |side: &Side| {
            let slowest = side.times.iter().map(|(_, took)| took.as_millis()).max();
            json!({
                "requests": side.requests, "errors": side.errors, "stale": side.stale, "waited": side.waited,
                "generations": side.generations.len(), "slowest_ms": slowest,
            })
        };
        let strips = inner.strips.each_ref().map(|strip| {
            let cells = strip
                .iter()
                .map(|cell| json!([ago(cell.at), cell.kind, cell.generation]));
            cells.collect::<Vec<_>>()
        });
        let lease: Vec<_> = inner
            .lease
            .iter()
            .map(|(at, number)| json!([ago(*at), number]))
            .collect();
        json!({
            "with": side(&inner.with), "without": side(&inner.without), "strips": strips, "lease": lease,
            "fence": inner.fence, "holder": inner.holder, "stories": inner.stories,
        })
    }
}
