//! The figures that the processes of a site share.

use std::time::Duration;

use perennial_store::{Backend, NoteProcess, Processes, PruneProcesses};

use crate::{TestDatabase, store::ask};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the names and the figures, in the order of names.
async fn listed(store: &dyn Backend) -> Vec<(String, String)> {
    let rows = ask(store, Processes::new(10)).await.into_iter();
    let mut listed: Vec<_> = rows.map(|row| (row.name, row.figures)).collect();
    listed.sort();
    listed
}

async fn note(store: &dyn Backend, name: &str, figures: &str) {
    ask(store, NoteProcess::new(name, figures)).await;
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = expected.iter();
    pairs
        .map(|(name, figures)| ((*name).to_owned(), (*figures).to_owned()))
        .collect()
}

pub async fn figures_of_a_process_are_replaced_listed_and_forgotten(db: impl TestDatabase) {
    let store = db.store().await;
    assert!(listed(&*store).await.is_empty());
    // This text is longer than a name may be, and has characters that a database or a driver could
    // change.
    let large = format!(
        "{{\"label\": \"wéb ‘1’ \\\\ $1 ?\", \"more\": \"{}\"}}",
        "x".repeat(4000)
    );
    note(&*store, "one", "first").await;
    note(&*store, "two", &large).await;
    note(&*store, "one", "second").await;
    assert_eq!(
        listed(&*store).await,
        pairs(&[("one", "second"), ("two", &large)])
    );
    let limited = ask(&*store, Processes::new(1)).await;
    assert_eq!(limited.len(), 1, "the latest alone");
    assert_eq!(limited[0].name, "one");
    assert!(limited[0].age < HOUR);
}

pub async fn figures_of_silent_processes_are_forgotten(db: impl TestDatabase) {
    let store = db.store().await;
    note(&*store, "crashed", "figures").await;
    db.shift_clock(3000).await;
    note(&*store, "running", "figures").await;
    let ages: Vec<_> = ask(&*store, Processes::new(10)).await;
    let ages: Vec<_> = ages.iter().map(|row| row.age.as_secs() / 1000).collect();
    assert_eq!(ages, [0, 3]);
    ask(&*store, PruneProcesses::new(HOUR)).await;
    assert_eq!(listed(&*store).await.len(), 2, "an hour is not over");
    db.shift_clock(700).await;
    ask(&*store, PruneProcesses::new(HOUR)).await;
    assert_eq!(listed(&*store).await, pairs(&[("running", "figures")]));
    // The rows seem to be of the future, as after a correction of the clock. They are removed,
    // because they were written before the correction, and would otherwise seem to be new for
    // hours.
    db.shift_clock(-2 * 3600).await;
    ask(&*store, PruneProcesses::new(HOUR)).await;
    assert!(listed(&*store).await.is_empty());
}
