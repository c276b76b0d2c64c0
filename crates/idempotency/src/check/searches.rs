//! The searches, each with its processes, its faults, and the situations that have to occur in it.

use super::{
    Check, Mutant, OWN, SETTLES,
    promises::{DONE, ONCE, OTHER, REPLAY},
};
use perennial_testkit::search::{Explored, Violation, explore};

fn search<const N: usize>(check: &Check<N>) -> Result<Explored, Violation<Check<N>>> {
    explore(check, 20_000_000)
}

fn holds<const N: usize>(check: &Check<N>) -> Explored {
    let explored = search(check).unwrap_or_else(|violation| panic!("{violation:?}"));
    println!("{N} processes, {check:?}: {explored}");
    assert!(explored.complete);
    explored
}

#[test]
fn request_runs_once_after_three_faults() {
    let check = Check::<2> {
        requests: 1,
        faults: 3,
        ..Check::default()
    };
    holds(&check).reached(&[
        "begun",
        "begun again",
        "replayed",
        "not stored",
        "in progress",
        "outcome unknown",
        "unavailable",
        "nothing done",
        "finish refused",
        "given up",
        "stored without the response",
        "stored",
    ]);
}

#[test]
fn no_request_gets_the_response_to_another_one() {
    let check = Check::<2> {
        requests: 3,
        faults: 1,
        ..Check::default()
    };
    holds(&check).reached(&["replayed", "other request"]);
}

#[test]
fn request_runs_once_in_three_processes() {
    holds(&Check::<3> {
        requests: 1,
        faults: 2,
        ..Check::default()
    });
}

#[test]
fn request_runs_again_only_after_its_time() {
    for (requests, faults) in [(1, 2), (2, 1)] {
        let check = Check::<2> {
            requests,
            faults,
            run_again: true,
            ..Check::default()
        };
        holds(&check).reached(&["runs again", "finish refused", "replayed"]);
    }
}

#[test]
fn each_condition_is_needed() {
    for (mutant, requests, faults, run_again, property) in [
        (Mutant::BeginOverwrites, 1, 0, false, ONCE),
        (Mutant::TakeEarly, 1, 0, true, ONCE),
        (Mutant::TakeAnyRequest, 2, 0, true, OTHER),
        (Mutant::RunAgainByDefault, 1, 0, false, ONCE),
        (Mutant::IgnoreRetention, 1, 0, false, REPLAY),
        (Mutant::FinishAnyOwner, 1, 0, true, OWN),
        (Mutant::FinishInserts, 1, 1, false, OWN),
        (Mutant::FinishAgain, 1, 1, false, DONE),
        (Mutant::ForgetAnyOwner, 1, 1, false, ONCE),
        (Mutant::NewOwner, 1, 1, false, SETTLES),
        (Mutant::ForgetNothing, 1, 1, false, SETTLES),
        (Mutant::ForgetAfterRun, 1, 1, false, ONCE),
        (Mutant::TrustLostBegin, 1, 2, false, SETTLES),
        (Mutant::TrustForget, 1, 2, false, SETTLES),
        (Mutant::AnswerAnyRequest, 2, 0, false, OTHER),
    ] {
        let check = Check::<2> {
            requests,
            faults,
            run_again,
            mutant: Some(mutant),
        };
        let found = search(&check).map_err(|violation| {
            println!(
                "{mutant:?}: {} after {} states",
                violation.property, violation.states
            );
            violation.property
        });
        let found = found.map(|explored| explored.states);
        assert_eq!(found, Err(property), "{mutant:?}");
    }
}
