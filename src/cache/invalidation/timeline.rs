//! When a process asks the store for invalidations, and for how long its requests wait for the answer.
//!
//! Requests start the syncs, so there is no task that runs while no requests come. What counts is the time
//! since the **start** of the last sync that succeeded, because its answer may be as old as that:
//!
//! ```text
//! 0 s               1 s                      1.25 s                      1.25 s + patience
//! |   a request     |   the next request     |   requests wait for the   |   nobody waits: memory is
//! |   does nothing  |   starts a sync, and   |   answer, and all wait    |   served, and a sync is
//! |                 |   does not wait        |   for the same time       |   tried each second
//! ```
//!
//! - Under steady traffic a sync starts each second and is answered before the next one is due, so nobody
//!   waits.
//! - The limit `database_patience` is counted from the first request that waits, and not for each request anew,
//!   so an outage makes visitors wait only once. Requests wait again after the database has answered a sync
//!   that was sent less than 1.25 s ago. While each answer takes longer than that, pages are served from memory
//!   as in an outage.
//! - The patience is also restored if no request has come for 1.25 s: the process may have been paused
//!   meanwhile, and then what it knows is outdated. It does not matter how long requests had waited before
//!   the pause.
//! - If the request of an author has an epoch that this process has not seen yet, the request may start a
//!   sync before the next one is due. That is allowed once a second.

use std::time::Duration;

use crate::{
    clock::Tick,
    timing::{SYNC_INTERVAL, SYNC_OVERDUE_AFTER},
};

/// The times that decide about the sync. All decisions are functions of them and of the clock.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The start of the latest sync.
    started: Tick,
    /// The start of the latest sync that succeeded: what this process knows is at least as recent as that.
    current_as_of: Tick,
    /// The latest request that asked whether a sync is due.
    last_request: Tick,
    /// The first request that waits for the answer that is overdue.
    waiting_since: Option<Tick>,
    /// The start of the latest sync for an author.
    for_author: Tick,
}

/// Whether a request waits for the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The request does not wait. Until `next_check`, no further request needs to ask the timeline again.
    No { next_check: Tick },
    /// The request waits for the answer of the sync, but no longer than until this time.
    Until(Tick),
}

impl Timeline {
    /// The timeline of a process that has asked nothing yet.
    pub(super) fn new() -> Self {
        Self {
            started: Tick(i64::MIN),
            current_as_of: Tick(i64::MIN),
            last_request: Tick(i64::MIN),
            waiting_since: None,
            for_author: Tick(i64::MIN),
        }
    }

    /// A request has come, and a sync is due.
    pub(super) fn on_request(&mut self, now: Tick, patience: Duration) -> Wait {
        let was_paused = now >= self.last_request + SYNC_OVERDUE_AFTER;
        self.last_request = now;
        let overdue = self.current_as_of + SYNC_OVERDUE_AFTER;
        if now < overdue {
            return Wait::No {
                next_check: overdue,
            };
        }
        let since = match self.waiting_since {
            Some(since) if !was_paused => since,
            _ => *self.waiting_since.insert(now),
        };
        let until = since + patience;
        if now < until {
            Wait::Until(until)
        } else {
            Wait::No {
                next_check: now + SYNC_INTERVAL,
            }
        }
    }

    /// A request has waited until now.
    pub(super) fn has_waited(&mut self, now: Tick) {
        self.last_request = now;
    }

    /// Returns true if no request has come for a while. The process may have been suspended meanwhile, so
    /// its monotonic clock then has to be compared with the machine's uptime.
    pub(super) fn is_first_in_a_while(&self, now: Tick) -> bool {
        now >= self.last_request + SYNC_INTERVAL / 4
    }

    /// A sync starts.
    pub(super) fn on_start(&mut self, now: Tick) {
        self.started = now;
    }

    /// A sync that started at `started` has ended.
    pub(super) fn on_end(&mut self, started: Tick, succeeded: bool, now: Tick) {
        if succeeded {
            self.current_as_of = self.current_as_of.max(started);
            // An answer that took too long is itself overdue, so requests go on waiting.
            if now < self.current_as_of + SYNC_OVERDUE_AFTER {
                self.waiting_since = None;
            }
        }
    }

    /// Returns true if a sync has started at `since` or later.
    pub(super) fn has_started_since(&self, since: Tick) -> bool {
        self.started >= since
    }

    /// Returns the earliest time at which a sync may start for an author.
    pub(super) fn next_for_author(&self) -> Tick {
        self.for_author + SYNC_INTERVAL
    }

    /// A sync starts for an author.
    pub(super) fn on_start_for_author(&mut self, now: Tick) {
        self.for_author = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(500);

    fn at(millis: i64) -> Tick {
        Tick(millis * 1000)
    }

    /// A timeline whose latest sync started at 0 and was answered at once.
    fn answered() -> Timeline {
        let mut timeline = Timeline::new();
        timeline.on_start(at(0));
        timeline.on_end(at(0), true, at(10));
        timeline.on_request(at(10), PATIENCE);
        timeline
    }

    #[test]
    fn nobody_waits_before_the_answer_is_overdue() {
        for now in [10, 1000, 1249] {
            let wait = answered().on_request(at(now), PATIENCE);
            let next_check = at(1250);
            assert_eq!(wait, Wait::No { next_check }, "{now}");
        }
        let mut timeline = answered();
        timeline.on_request(at(1000), PATIENCE);
        let wait = timeline.on_request(at(1250), PATIENCE);
        assert_eq!(wait, Wait::Until(at(1750)));
    }

    #[test]
    fn first_request_of_a_process_waits() {
        let wait = Timeline::new().on_request(at(0), PATIENCE);
        assert_eq!(wait, Wait::Until(at(500)));
    }

    #[test]
    fn all_requests_of_an_outage_wait_for_the_same_time() {
        let mut timeline = answered();
        for (now, expected) in [
            (
                1100,
                Wait::No {
                    next_check: at(1250),
                },
            ),
            (1300, Wait::Until(at(1800))),
            (1700, Wait::Until(at(1800))),
            (
                1800,
                Wait::No {
                    next_check: at(2800),
                },
            ),
            (
                2900,
                Wait::No {
                    next_check: at(3900),
                },
            ),
        ] {
            assert_eq!(timeline.on_request(at(now), PATIENCE), expected, "{now}");
        }
        // A failure changes nothing. An answer restores the patience, so that visitors wait again in the next
        // outage.
        timeline.on_end(at(2900), false, at(2950));
        let silent = timeline.on_request(at(3000), PATIENCE);
        assert_eq!(
            silent,
            Wait::No {
                next_check: at(4000)
            }
        );
        timeline.on_end(at(2900), true, at(3050));
        timeline.on_request(at(4100), PATIENCE);
        let wait = timeline.on_request(at(4200), PATIENCE);
        assert_eq!(wait, Wait::Until(at(4700)));
    }

    #[test]
    fn answer_to_a_question_of_long_ago_is_not_enough() {
        let mut timeline = answered();
        timeline.on_request(at(1300), PATIENCE);
        timeline.on_end(at(100), true, at(1500));
        let wait = timeline.on_request(at(1600), PATIENCE);
        assert_eq!(wait, Wait::Until(at(1800)), "the wait has not begun anew");
    }

    #[test]
    fn request_after_a_pause_of_the_process_waits_again() {
        let mut timeline = answered();
        timeline.on_request(at(1300), PATIENCE);
        timeline.on_request(at(2000), PATIENCE);
        let later = timeline.on_request(at(3249), PATIENCE);
        assert!(matches!(later, Wait::No { .. }), "{later:?}");
        let resumed = timeline.on_request(at(3249 + 1250), PATIENCE);
        assert_eq!(resumed, Wait::Until(at(4999)));
    }

    #[test]
    fn authors_start_one_sync_a_second() {
        let mut timeline = answered();
        assert!(timeline.next_for_author() <= at(20));
        timeline.on_start_for_author(at(20));
        assert_eq!(timeline.next_for_author(), at(1020));
        timeline.on_start(at(20));
        assert!(timeline.has_started_since(at(20)) && !timeline.has_started_since(at(21)));
    }
}
