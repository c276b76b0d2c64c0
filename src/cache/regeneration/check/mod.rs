//! A check of the real decisions: two processes, one key and one store, every order of their steps
//! with bounded faults, up to a number of states.
//!
//! `PERENNIAL_TEST_STATES`: that number, or `full`.

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

use crate::search::{Explored, explore};

use setup::{
    Fault::{
        self, Close, Demand, Failing, Invalidation, Leave, NoPermit, Panic, Purge, Refused, Slow,
        SlowStore, Unextended, Unreadable, Unshareable,
    },
    Setup,
};

/// Each of these, alone, leads to fewer than 100,000 states.
const NEAR: [Fault; 6] = [Close, Failing, Leave, NoPermit, Slow, Unextended];

/// The number of states after which an exploration ends, unless the environment has another one.
const QUICK: usize = 20_000;

/// Returns the number of states after which an exploration ends. `full`: the number for
/// `PERENNIAL_TEST_STATES=full`.
fn enough(full: usize) -> usize {
    match env::var("PERENNIAL_TEST_STATES") {
        Ok(word) if word == "full" => full,
        Ok(number) => number.parse().expect("`full`, or a number of states"),
        Err(_) => QUICK,
    }
}

/// Explores until there are enough states. Each of the situations has to occur; those of `far` are
/// among the first `full` states.
fn check(setup: &Setup, full: usize, situations: &[&str], far: &[&str]) -> Explored {
    let begun = Instant::now();
    let enough = enough(full);
    let explored = explore(setup, enough);
    let explored = explored.unwrap_or_else(|violation| panic!("{violation:?}"));
    println!("{explored}in {:.1?}", begun.elapsed());
    if enough >= QUICK {
        explored.reached(situations);
    }
    if enough >= full {
        explored.reached(far);
    }
    explored
}

#[test]
fn promises_hold_without_faults() {
    let setup = Setup {
        cold: true,
        ..Setup::new(&[], 0, 0)
    };
    let explored = check(&setup, QUICK, &[], &[]);
    assert!(explored.complete || enough(QUICK) < QUICK);
    assert_eq!(explored.settled, 1);
}

#[test]
fn promises_hold_with_one_fault_of_those_that_change_little() {
    let setup = Setup::new(&NEAR, 1, 1);
    let situations = [
        "answer: failed",
        "answer: pass",
        "state: acquiring without a probe",
        "ended: failed, the old version is served",
    ];
    let full = 400_000;
    let explored = check(
        &setup,
        full,
        &situations,
        &["no visitor waits for another process"],
    );
    assert!(explored.complete || enough(full) < full);
}

#[test]
fn promises_hold_with_one_fault() {
    check(&Setup::with_all_faults(1), 300_000, &COMMON, &FAR);
}

#[test]
fn promises_hold_with_two_faults() {
    let situations = ["late try takes the lock"];
    let far = ["state: probing after a refused publish", "ended: overtaken"];
    check(&Setup::with_all_faults(2), 200_000, &situations, &far);
}

/// A key whose content may not be shared is a hit-for-pass until an invalidation or a purge, or
/// until its time ends.
#[test]
fn promises_hold_while_content_may_not_be_shared() {
    let setup = Setup::new(&[Unshareable, Invalidation, Purge], 1, 2);
    let situations = [
        "action: release, removes",
        "hit-for-pass is ended by an invalidation",
    ];
    check(&setup, 100_000, &situations, &[]);
}

/// A version is served unsaved while the store is slow or refuses statements.
#[test]
fn promises_hold_while_the_store_fails() {
    let setup = Setup::new(&[Refused, SlowStore], 2, 2);
    let situations = [
        "generates without a lease",
        "state: publishing, served unsaved",
        "state: waits to publish again",
        "unsaved version is served",
        "unsaved version is stored after all",
    ];
    check(&setup, 150_000, &situations, &[]);
}

/// A process that could not read a stored version generates one itself, and reads later.
#[test]
fn promises_hold_after_a_probe_without_an_answer() {
    let situations = ["a stored version is older than the unsaved one"];
    check(&Setup::new(&[Refused], 1, 1), 20_000, &situations, &[]);
}

/// A cooldown that began without the store: the process asks the store again each second, and runs
/// no generator until the store answers.
#[test]
fn promises_hold_in_a_long_cooldown() {
    let setup = Setup {
        long_cooldown: true,
        ..Setup::new(&[Failing, Purge, Refused], 2, 3)
    };
    check(
        &setup,
        100_000,
        &["the store is asked during a cooldown"],
        &[],
    );
}

/// The application demands regenerations, while others are under way, and while generators fail.
#[test]
fn promises_hold_while_regenerations_are_demanded() {
    let setup = Setup::new(&[Demand, Failing, Refused], 2, 2);
    check(&setup, 150_000, &["visitor begins anew"], &[]);
}

/// A process of other code cannot decode what is stored, and generates it anew.
#[test]
fn promises_hold_while_stored_values_cannot_be_decoded() {
    let setup = Setup::new(&[Unreadable, Leave], 2, 2);
    check(&setup, 100_000, &["stored version is unreadable"], &[]);
}

/// The application's code panics in the task of a regeneration, as a subscriber of the log may.
#[test]
fn promises_hold_while_the_application_panics() {
    let setup = Setup::new(&[Panic, Failing], 1, 2);
    check(&setup, 100_000, &["action: release with a cooldown"], &[]);
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
