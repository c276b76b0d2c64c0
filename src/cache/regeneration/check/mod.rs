//! A check of the real decisions: two processes, one key and one store, with bounded faults in any order of
//! steps.
//!
//! A search visits the states that it can reach, the nearest first. There are two kinds, and each says which
//! it is in its name and in what it prints:
//!
//! - A **complete** search visits all states that there are. If that takes long, the search is
//!   complete only with `PERENNIAL_TEST_STATES=full`, which `scripts/test` sets, and bounded
//!   without it.
//! - A **bounded** search visits only the nearest states. Each of these settings has more than three
//!   million states, and the search says nothing about those that it has not visited. The simulation goes
//!   farther, at random.
//!
//! `PERENNIAL_TEST_STATES`: the number of states to visit, or `full`.

mod action;
mod content;
mod database;
mod exact;
mod laws;
mod model;
mod mutants;
mod names;
mod normal;
mod process;
mod regenerate;
mod setup;
mod show;
mod synced;
mod table;
mod visit;
mod world;

pub(crate) use self::setup::POLICY;

use std::{env, time::Instant};

use perennial_testkit::search::{Explored, explore};

use setup::{
    Fault::{
        self, Close, Demand, Failing, Invalidation, Leave, NoPermit, Panic, Purge, Refused, Slow,
        SlowStore, Unextended, Unreadable, Unshareable,
    },
    Setup,
};

/// The number of states after which a search ends, unless the environment has another one.
const QUICK: usize = 20_000;

/// The number of states that the bounded searches are known to have, at least.
const MEASURED: usize = 3_000_000;

/// How many states a search visits with `PERENNIAL_TEST_STATES=full`.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    /// Visits all states in each run, even without the variable `PERENNIAL_TEST_STATES`. Their number is
    /// below [`QUICK`].
    Complete,
    /// All of them: fewer than this many.
    CompleteIfFull(usize),
    /// The nearest ones: this many.
    Bounded(usize),
}

impl Extent {
    /// Returns the number of states after which a search ends.
    fn enough(self) -> usize {
        let full = match self {
            Self::Complete => QUICK,
            Self::CompleteIfFull(states) | Self::Bounded(states) => states,
        };
        match env::var("PERENNIAL_TEST_STATES") {
            Ok(word) if word == "full" => full,
            Ok(number) => number.parse().expect("`full`, or a number of states"),
            Err(_) => QUICK,
        }
    }

    /// Says what a search has visited. Panics if a search that claims all states has not visited them.
    fn says(self, explored: &Explored, enough: usize) -> String {
        let states = explored.states;
        match self {
            _ if explored.complete => format!("complete: all {states} states"),
            Self::Complete | Self::CompleteIfFull(_) => {
                let of = match self {
                    Self::CompleteIfFull(of) => of,
                    _ => QUICK,
                };
                assert!(enough < of, "there are more than {of} states");
                format!("bounded in this run: the nearest {states} of less than {of} states")
            }
            Self::Bounded(_) => format!(
                "bounded: the nearest {states} states, at most {:.1} % of all",
                states as f64 * 100.0 / states.max(MEASURED) as f64
            ),
        }
    }
}

/// Searches to the extent that the environment asks for. Each of `situations` has to occur in a search that
/// may visit at least [`QUICK`] states, and each of `far` in a full one.
fn search(setup: &Setup, extent: Extent, situations: &[&str], far: &[&str]) -> Explored {
    let begun = Instant::now();
    let enough = extent.enough();
    let explored = explore(setup, enough);
    let explored = explored.unwrap_or_else(|violation| panic!("{violation:?}"));
    let says = extent.says(&explored, enough);
    println!("{says}\n{explored}in {:.1?}", begun.elapsed());
    if enough >= QUICK {
        explored.reached(situations);
    }
    let full = match extent {
        Extent::Complete => QUICK,
        Extent::CompleteIfFull(states) | Extent::Bounded(states) => states,
    };
    if explored.complete || enough >= full {
        explored.reached(far);
    }
    explored
}

/// Faults that change little.
const NEAR: [Fault; 6] = [Close, Failing, Leave, NoPermit, Slow, Unextended];

#[test]
fn complete_search_without_faults() {
    let setup = Setup {
        cold: true,
        ..Setup::new(&[], 0, 0)
    };
    let explored = search(&setup, Extent::Complete, &[], &[]);
    assert_eq!(explored.settled, 1);
}

#[test]
fn complete_search_with_one_fault_of_those_that_change_little() {
    let situations = [
        "answer: failed",
        "answer: pass",
        "state: acquiring without a probe",
        "ended: failed, the old version is served",
    ];
    search(
        &Setup::new(&NEAR, 1, 1),
        Extent::CompleteIfFull(400_000),
        &situations,
        &["no visitor waits for another process"],
    );
}

/// If a process cannot read the stored version, it generates one itself. It reads the stored one later.
#[test]
fn complete_search_with_a_refused_statement() {
    let situations = ["a stored version is older than the unsaved one"];
    let setup = Setup::new(&[Refused], 1, 1);
    search(&setup, Extent::CompleteIfFull(150_000), &situations, &[]);
}

/// A version is served unsaved while the store is slow or refuses statements.
#[test]
fn complete_search_while_the_store_fails() {
    let situations = [
        "generates without a lease",
        "state: publishing, served unsaved",
        "state: waits to publish again",
        "unsaved version is served",
        "unsaved version is stored after all",
    ];
    let setup = Setup::new(&[Refused, SlowStore], 2, 2);
    search(&setup, Extent::CompleteIfFull(2_200_000), &situations, &[]);
}

/// A process that runs other code cannot decode what is stored, and generates it anew.
#[test]
fn complete_search_while_stored_values_cannot_be_decoded() {
    let setup = Setup::new(&[Unreadable, Leave], 2, 2);
    let situations = ["stored version is unreadable", "ended: kept apart"];
    search(&setup, Extent::CompleteIfFull(600_000), &situations, &[]);
}

/// The application's code panics in the task of a regeneration, as a subscriber of the log may.
#[test]
fn complete_search_with_a_panic_of_the_application() {
    let setup = Setup::new(&[Panic], 1, 1);
    let situations = ["action: release with a cooldown"];
    search(&setup, Extent::CompleteIfFull(950_000), &situations, &[]);
}

#[test]
fn bounded_search_with_one_fault() {
    let setup = Setup::with_all_faults(1);
    search(&setup, Extent::Bounded(300_000), &COMMON, &FAR);
}

#[test]
fn bounded_search_with_two_faults() {
    let situations = ["late try takes the lock"];
    let far = ["state: probing after a refused publish", "ended: overtaken"];
    let setup = Setup::with_all_faults(2);
    search(&setup, Extent::Bounded(300_000), &situations, &far);
}

/// A key whose content may not be shared is a hit-for-pass until an invalidation or a purge, or
/// until its time ends.
#[test]
fn bounded_search_while_content_may_not_be_shared() {
    let setup = Setup::new(&[Unshareable, Invalidation, Purge], 1, 2);
    let situations = [
        "action: release, removes",
        "hit-for-pass is ended by an invalidation",
    ];
    search(&setup, Extent::Bounded(100_000), &situations, &[]);
}

/// A cooldown that began without the store: the process asks the store again each second, and runs
/// no generator until the store answers.
#[test]
fn bounded_search_in_a_long_cooldown() {
    let setup = Setup {
        long_cooldown: true,
        ..Setup::new(&[Failing, Purge, Refused], 2, 3)
    };
    let situations = ["the store is asked during a cooldown"];
    search(&setup, Extent::Bounded(100_000), &situations, &[]);
}

/// The application demands regenerations, while others are under way, and while generators fail.
#[test]
fn bounded_search_while_regenerations_are_demanded() {
    let setup = Setup::new(&[Demand, Failing, Refused], 2, 2);
    let situations = ["visitor begins anew"];
    search(&setup, Extent::Bounded(150_000), &situations, &[]);
}

/// Situations near to the beginning.
const COMMON: [&str; 31] = [
    "answer: failed",
    "answer: pass",
    "answer: unavailable",
    "answer: version",
    "action: end",
    "action: generate",
    "action: sleep",
    "action: probe",
    "action: publish",
    "action: release",
    "action: release with a cooldown",
    "action: release, removes",
    "action: acquire",
    "late statement does something",
    "late try takes the lock",
    "state: generating",
    "state: generating without a lease",
    "state: probing after a refused publish",
    "state: waiting for a peer",
    "state: probing",
    "state: publishing",
    "state: releasing",
    "state: acquiring",
    "purge while a version is published",
    "ended: failed",
    "ended: overtaken",
    "ended: not stored, too large",
    "ended: not stored",
    "ended: not begun, held by a peer",
    "ended: stored",
    "ended: unsaved",
];

/// Situations farther from the beginning.
const FAR: [&str; 6] = [
    "action: publish, renews",
    "expired version is served after an error",
    "ended: not begun, busy",
    "ended: not begun, the store failed",
    "ended: renewed",
    "visitor begins anew",
];
