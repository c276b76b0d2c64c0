//! Defects in the code around the decisions. For each defect there is a test that says which
//! invariant has to fail. This shows that the check is able to fail.
//!
//! Two conditions in the SQL statements have no mutant, because in this model they follow from
//! other conditions: a publish over a greater fence (the lock has that fence, too), and an attempt
//! while there is a holder (the lock's fence then differs from the fence seen).

use std::time::Instant;

use crate::cache::regeneration::check::setup::{
    Fault::{
        self, Demand, Failing, Invalidation, Leave, NoPermit, Pause, Purge, Refused, SlowStore,
        Unreadable, Unshareable,
    },
    Mutant, Setup,
};
use perennial_testkit::search::explore;

/// Panics unless this property is the first to fail.
fn is_found(mutant: Mutant, faults: &[Fault], property: &str) {
    is_found_by(
        &Setup {
            mutant: Some(mutant),
            ..Setup::new(faults, 1, 2)
        },
        property,
    );
}

fn is_found_by(setup: &Setup, property: &str) {
    let begun = Instant::now();
    let mutant = setup.mutant;
    match explore(setup, 200_000) {
        Ok(explored) => panic!("{mutant:?} survives {explored}"),
        Err(violation) => {
            let (found, states) = (violation.property, violation.states);
            println!(
                "{mutant:?}: {states} states, {:.1?}: {found}",
                begun.elapsed()
            );
            assert!(found.starts_with(property), "{violation:?}");
        }
    }
}

#[test]
fn publish_without_the_fence_is_found() {
    is_found(Mutant::PublishWithoutFence, &[Pause], "S2");
}

#[test]
fn remove_without_the_fence_is_found() {
    is_found(Mutant::RemoveWithoutFence, &[Pause, Unshareable], "S2");
}

#[test]
fn try_without_the_fence_seen_is_found() {
    is_found(Mutant::TryWithoutFence, &[], "S3");
}

#[test]
fn release_without_the_owner_is_found() {
    is_found(Mutant::ReleaseWithoutOwner, &[Pause], "S4");
}

#[test]
fn cooldown_that_is_ignored_is_found() {
    for mutant in [Mutant::ReleaseWithoutCooldown, Mutant::CooldownIgnored] {
        is_found(mutant, &[Failing], "S12");
    }
}

#[test]
fn cooldown_without_the_store_that_ends_early_is_found() {
    let setup = Setup {
        mutant: Some(Mutant::CooldownEndsEarly),
        long_cooldown: true,
        ..Setup::new(&[Failing, Refused], 2, 4)
    };
    is_found_by(&setup, "S12");
}

#[test]
fn lease_that_counts_from_the_answer_is_found() {
    is_found(Mutant::LeaseCountsFromAnswer, &[SlowStore], "S30");
}

#[test]
fn age_that_counts_from_the_answer_is_found() {
    is_found(Mutant::AgeCountsFromAnswer, &[SlowStore], "S29");
}

#[test]
fn epoch_that_is_raised_after_generating_is_found() {
    is_found(Mutant::EpochRaisedAfterGenerating, &[Invalidation], "S10");
}

#[test]
fn expired_version_that_is_served_is_found() {
    is_found(Mutant::ExpiredServed, &[], "S7");
}

#[test]
fn purged_version_that_is_served_is_found() {
    is_found(Mutant::PurgedServed, &[Purge], "S6");
}

#[test]
fn visitors_who_each_generate_alone_are_found() {
    is_found(Mutant::EachGeneratesAlone, &[Purge], "S20");
}

#[test]
fn unsaved_version_that_is_renewed_is_found() {
    is_found(Mutant::UnsavedRenews, &[SlowStore, Refused], "S11");
}

#[test]
fn release_that_counts_as_a_regeneration_is_found() {
    is_found(Mutant::ReleasingCountsAsRunning, &[Invalidation], "S23");
}

#[test]
fn visitors_who_wait_for_the_end_of_a_hit_for_pass_are_found() {
    is_found(Mutant::FollowersWaitForTheProbe, &[Unshareable], "S22");
    is_found(Mutant::LeadersWaitForThePeersProbe, &[Unshareable], "S22");
}

#[test]
fn lease_that_is_never_released_is_found() {
    is_found(Mutant::LeaseNeverReleased, &[], "S15");
}

#[test]
fn permit_that_the_driver_does_not_have_is_found() {
    is_found(Mutant::PermitInvented, &[NoPermit], "S21");
}

#[test]
fn visitor_who_does_not_wait_is_found() {
    is_found(Mutant::VisitorInvented, &[Leave], "S24");
}

#[test]
fn lease_of_a_peer_that_is_forgotten_is_found() {
    is_found(Mutant::PeerLeaseForgotten, &[], "S25");
}

#[test]
fn unreadable_version_that_is_hidden_is_found() {
    is_found(Mutant::UnreadableHidden, &[Unreadable, Leave], "S26");
}

#[test]
fn fresh_version_of_other_code_that_is_published_over_is_found() {
    is_found(Mutant::OtherCodeIsStale, &[Unreadable], "S36");
}

#[test]
fn demand_that_is_treated_as_any_visit_is_found() {
    is_found(Mutant::DemandForgotten, &[Demand], "S27");
}
