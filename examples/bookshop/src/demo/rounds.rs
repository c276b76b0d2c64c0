//! A round in four sentences: stale, lease, new version, counts.

use super::{
    copy::round_at,
    figures::Round,
    leases::{Lease, State},
};

/// A step of a round: whether it is over, and its sentence.
pub(super) type Step = (bool, String);

/// Returns the steps of a round.
pub(super) fn steps(round: &Round, leases: &[Lease]) -> [Step; 4] {
    let began_in_round = |lease: &&Lease| round_at(lease.began) == round.number;
    let lease = leases.iter().find(began_in_round);
    [stale(round), leased(lease), renewed(round), counts(round)]
}

fn stale(round: &Round) -> Step {
    match round.old {
        [Some(old), Some(_)] => (
            true,
            format!(
                "The page became stale. A and B served the old version {old} at once; the slowest answer took {} ms.",
                round.slowest_stale_ms,
            ),
        ),
        _ => (
            false,
            "When the page becomes stale, A and B serve the old version at once.".to_owned(),
        ),
    }
}

fn leased(lease: Option<&Lease>) -> Step {
    let Some(lease) = lease else {
        let waits = "One process takes the lease in the database and generates the page.";
        return (false, waits.to_owned());
    };
    let (holder, fence, held) = (lease.holder(), lease.fence, lease.held_for.as_secs_f64());
    match lease.state {
        State::Held => (
            false,
            format!("Now {holder} holds the lease: fence {fence}, age {held:.1} s."),
        ),
        State::Published => (
            true,
            format!("The lease was held by {holder}: fence {fence}, for {held:.2} s."),
        ),
        State::Failed => (
            true,
            format!("The lease was held by {holder}, fence {fence}; its generator failed."),
        ),
        State::Lost => (
            true,
            format!("The lease of {holder}, fence {fence}, ended without a release."),
        ),
    }
}

fn renewed(round: &Round) -> Step {
    match round.new {
        Some(new) if round.is_new_in_both() => {
            (true, format!("The new version {new} is served by A and B."))
        }
        Some(new) => (
            false,
            format!("The new version {new} is served by one process; the other learns of it."),
        ),
        None => (
            false,
            "Then both processes serve the new version.".to_owned(),
        ),
    }
}

fn counts(round: &Round) -> Step {
    // In the other cache, the visitors of a generation are counted when it has ended.
    let is_over = round.is_new_in_both() && round.without.generations > round.with.generations;
    (
        is_over,
        format!(
            "With Perennial: visitors: {}, generations: {}. With a cache in each process: visitors: {}, generations: {}.",
            round.with.visitors,
            round.with.generations,
            round.without.visitors,
            round.without.generations,
        ),
    )
}
