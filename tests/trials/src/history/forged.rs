//! Forged histories: the judge finds each breach, and none in a sound history.

use super::*;

fn held(process: &str, fence: i64, from: Micros, until: Micros) -> Fact {
    Fact::Held {
        lock: "job".to_owned(),
        fence,
        process: process.to_owned(),
        from,
        until,
    }
}

fn published(process: &str, fence: i64, number: u64) -> Fact {
    Fact::Published {
        key: "/list".to_owned(),
        fence,
        number,
        process: process.to_owned(),
    }
}

fn stored(fence: i64, number: u64, at: Micros) -> Fact {
    Fact::Stored {
        key: "/list".to_owned(),
        fence,
        number,
        at,
    }
}

fn visited(process: &str, number: u64, from: Micros, until: Micros) -> Fact {
    Fact::Visited {
        key: "/list".to_owned(),
        number,
        process: process.to_owned(),
        from,
        until,
    }
}

fn charged() -> Fact {
    Fact::Charged {
        payment: "p1".to_owned(),
    }
}

fn answered(status: u16, body: &str) -> Fact {
    Fact::Answered {
        payment: "p1".to_owned(),
        status,
        body: body.to_owned(),
    }
}

fn sound() -> Vec<Fact> {
    vec![
        held("a", 1, 100, 200),
        held("b", 2, 200, 300),
        held("a", 5, 450, 500),
        published("a", 1, 10),
        published("b", 2, 11),
        stored(1, 10, 210),
        stored(1, 10, 220),
        stored(2, 11, 320),
        // Two visitors at the same time: the later one may get the older version.
        visited("a", 11, 310, 330),
        visited("a", 10, 320, 325),
        visited("a", 11, 331, 340),
        // Another process learns of the version later.
        visited("b", 10, 350, 360),
        charged(),
        answered(500, "the database is away"),
        answered(200, "charge 1"),
        answered(200, "charge 1"),
        answered(409, "unknown"),
    ]
}

/// The promises that a sound history with these further facts breaks.
fn broken(further: impl IntoIterator<Item = Fact>) -> Vec<Promise> {
    let mut history = sound();
    history.extend(further);
    let mut promises: Vec<_> = judge(&history).iter().map(|it| it.promise).collect();
    promises.dedup();
    promises
}

#[test]
fn a_sound_history_has_no_breach() {
    assert_eq!(judge(&sound()), []);
    let mut backwards = sound();
    backwards.reverse();
    // Reversing the record must change nothing. If a payment has two different answers, the order
    // of their texts decides which one counts as the first, because the order in the record must
    // not matter.
    assert_eq!(judge(&backwards), []);
}

#[test]
fn two_holders_at_once_are_found() {
    assert_eq!(broken([held("c", 3, 299, 310)]), [Promise::Exclusion]);
    assert_eq!(broken([held("c", 3, 210, 220)]), [Promise::Exclusion]);
    // A lock that is held for a short time in between does not hide that two other leases overlap.
    let overlaps = [held("c", 3, 210, 220), held("d", 4, 290, 310)];
    let mut history = sound();
    history.extend(overlaps);
    let count = judge(&history).len();
    assert_eq!(count, 2);
}

#[test]
fn fences_that_go_back_are_found() {
    assert_eq!(broken([held("c", 2, 310, 320)]), [Promise::Fences]);
    assert_eq!(broken([held("c", 4, 600, 700)]), [Promise::Fences]);
}

#[test]
fn publishes_that_are_done_twice_are_found() {
    assert_eq!(broken([published("c", 2, 12)]), [Promise::OnePublish]);
}

#[test]
fn stored_content_that_goes_back_is_found() {
    assert_eq!(broken([published("c", 3, 9)]), [Promise::Stored]);
    assert_eq!(broken([stored(1, 10, 330)]), [Promise::Stored]);
    assert_eq!(broken([stored(2, 12, 330)]), [Promise::Stored]);
    assert_eq!(broken([stored(3, 10, 330)]), [Promise::Stored]);
}

#[test]
fn served_content_that_goes_back_is_found() {
    assert_eq!(broken([visited("a", 10, 341, 350)]), [Promise::Served]);
    assert_eq!(broken([visited("b", 9, 361, 370)]), [Promise::Served]);
    // A visitor may first get content that could not be stored, and then the older content that is
    // stored.
    let unsaved = [visited("a", 12, 341, 350), visited("a", 11, 351, 360)];
    assert_eq!(broken(unsaved), []);
}

#[test]
fn payments_that_are_made_twice_or_never_are_found() {
    assert_eq!(broken([charged()]), [Promise::OnePayment]);
    let lost = Fact::Answered {
        payment: "p2".to_owned(),
        status: 200,
        body: "charge 7".to_owned(),
    };
    assert_eq!(broken([lost]), [Promise::OnePayment]);
    assert_eq!(broken([answered(200, "charge 2")]), [Promise::OneAnswer]);
}

#[test]
fn a_record_with_a_gap_is_found() {
    let missed = Fact::Missed {
        process: "a".to_owned(),
        facts: 3,
    };
    assert_eq!(broken([missed]), [Promise::Complete]);
}

#[test]
fn each_promise_has_a_forged_history() {
    let text = include_str!("forged.rs");
    for promise in Promise::ALL {
        let name = format!("[Promise::{promise:?}]");
        assert!(text.contains(&name), "{name}");
    }
}
