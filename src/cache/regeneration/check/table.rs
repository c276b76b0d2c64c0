//! The table and the diagram of `machine.rs`, compared with the transitions that the check sees.

use std::{cell::RefCell, collections::BTreeSet};

use crate::cache::regeneration::{
    check::{
        Extent,
        content::Read,
        exact, names,
        setup::{
            Fault::{Close, Failing, Leave, NoPermit, Panic, Refused, SlowStore, Unshareable},
            Setup,
        },
    },
    machine::{Action, State},
};
use perennial_testkit::search::explore;

/// A state and an input, and the next state with the action; `""`: the action before goes on.
type Transition = [&'static str; 4];

thread_local! {
    /// The transitions that the checks of this thread have seen.
    static SEEN: RefCell<BTreeSet<Transition>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes a transition, unless the input came too late.
pub(crate) fn note(
    (state, input): (&'static str, &'static str),
    next: &State<Read>,
    action: Option<&Action<Read>>,
) {
    let next = names::state(next);
    let action = action.map_or("", names::kind);
    if state != next || !action.is_empty() || input == "TimerFired" {
        SEEN.with_borrow_mut(|seen| seen.insert([state, input, next, action]));
    }
}

const MACHINE: &str = include_str!("../machine.rs");

/// Returns the rows of the table: states, inputs, next states and actions.
fn table() -> BTreeSet<[String; 4]> {
    let mut rows = BTreeSet::new();
    let (_, table) = MACHINE
        .split_once("//! |---|---|---|\n")
        .expect("has a table");
    for row in table.lines().map_while(|line| line.strip_prefix("//! | ")) {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        let [state, input, results] = cells[..] else {
            panic!("{row}");
        };
        for result in results.split("; ") {
            let (next, action) = result.split_once(' ').unwrap_or((result, ""));
            let row = [state, input, next, action].map(str::to_owned);
            assert!(rows.insert(row), "twice: {state} {input} {result}");
        }
    }
    rows
}

/// Returns the arrows of the diagram.
fn diagram() -> BTreeSet<(String, String)> {
    let arrows = MACHINE.lines().filter_map(|line| {
        let (from, to) = line.strip_prefix("//!     ")?.split_once(" --> ")?;
        let to = to.split(':').next().unwrap_or_default();
        Some((from.to_owned(), to.to_owned()))
    });
    arrows
        .filter(|(from, to)| from != "[*]" && to != "[*]")
        .collect()
}

/// Returns what the check sees. The settings contain the faults that are needed to reach all
/// transitions.
fn seen() -> BTreeSet<[String; 4]> {
    SEEN.with_borrow_mut(BTreeSet::clear);
    let cold = Setup {
        cold: true,
        ..Setup::new(&[Refused, NoPermit], 1, 1)
    };
    for setup in [
        cold,
        Setup::with_all_faults(1),
        Setup::new(&[Panic, Unshareable, Failing], 1, 1),
        Setup::new(&[Close, Leave, NoPermit], 1, 2),
        Setup::new(&[Refused, SlowStore], 2, 2),
    ] {
        // All transitions of the table occur within this many states. The search stops there, and a
        // transition that occurs only in states further away would be missed.
        explore(&setup, Extent::Bounded(60_000).enough())
            .unwrap_or_else(|violation| panic!("{violation:?}"));
    }
    exact::make_rare_transitions();
    SEEN.with_borrow(|seen| {
        let rows = seen.iter().map(|row| row.map(str::to_owned));
        rows.collect()
    })
}

#[test]
fn table_and_diagram_have_the_transitions_that_the_check_sees_and_no_others() {
    let (table, seen) = (table(), seen());
    let any = "any but Ended";
    let in_table = |row: &[String; 4]| {
        let mut of_any = row.clone();
        of_any[0] = any.to_owned();
        table.contains(row) || table.contains(&of_any)
    };
    let missing: Vec<_> = seen.iter().filter(|row| !in_table(row)).collect();
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
    let unseen: Vec<_> = table
        .iter()
        .filter(|row| row[0] != any && !seen.contains(*row))
        .collect();
    assert!(unseen.is_empty(), "never seen: {unseen:#?}");
    let panics: BTreeSet<_> = seen.iter().filter(|row| row[1] == "Panicked").collect();
    assert!(panics.len() >= 5, "{panics:#?}");

    let arrows = table
        .iter()
        .filter(|row| row[0] != any)
        .map(|[from, _, to, _]| (from.clone(), to.clone()));
    let arrows: BTreeSet<_> = arrows.collect();
    assert_eq!(diagram(), arrows);
}
