//! Metrics, by the facade of the crate `metrics`.
//!
//! The value of a label comes from an enum or from the source code, never from a request or from the
//! database: visitors cannot make series.

use std::{sync::Arc, time::Duration};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{Event, Outcome, Stats};

/// Describes the metrics to the application's recorder.
pub(crate) fn describe() {
    describe_counter!(
        "perennial_requests_total",
        Unit::Count,
        "Requests by result. A stale response is not a hit."
    );
    describe_histogram!(
        "perennial_served_staleness_seconds",
        Unit::Seconds,
        "How long ago a served stale version became stale."
    );
    describe_counter!(
        "perennial_generations_total",
        Unit::Count,
        "Regenerations that have ended."
    );
    describe_histogram!(
        "perennial_generation_duration_seconds",
        Unit::Seconds,
        "The time of the generator."
    );
    describe_histogram!(
        "perennial_generation_bytes",
        Unit::Bytes,
        "The size of generated bodies."
    );
    describe_gauge!(
        "perennial_generations_in_progress",
        Unit::Count,
        "Regenerations that run in this process."
    );
    describe_counter!(
        "perennial_generations_skipped_total",
        Unit::Count,
        "Stale versions that this process did not regenerate."
    );
    describe_counter!(
        "perennial_lease_takeovers_total",
        Unit::Count,
        "Leases of crashed or paused processes that were taken over."
    );
    describe_counter!(
        "perennial_invalidations_total",
        Unit::Count,
        "Invalidations by this process."
    );
    describe_gauge!("perennial_memory_entries", Unit::Count, "Keys in memory.");
    describe_gauge!(
        "perennial_memory_bytes",
        Unit::Bytes,
        "The size of the versions in memory."
    );
    describe_gauge!(
        "perennial_memory_limit_bytes",
        Unit::Bytes,
        "The capacity of memory."
    );
    describe_counter!(
        "perennial_memory_evictions_total",
        Unit::Count,
        "Keys that had to leave memory for others."
    );
    describe_gauge!(
        "perennial_database_available",
        Unit::Count,
        "1, or 0 while a step in the database fails."
    );
    describe_histogram!(
        "perennial_database_operation_duration_seconds",
        Unit::Seconds,
        "The time of each step in the database, with the wait for a connection."
    );
    describe_counter!(
        "perennial_locks_total",
        Unit::Count,
        "Locks that were acquired, contended, lost or broken."
    );
    describe_counter!(
        "perennial_idempotent_replays_total",
        Unit::Count,
        "Repeated requests that got the stored response."
    );
}

/// Records an event.
pub(super) fn record(event: &Event) {
    match event {
        Event::RegenerationEnded(ended) => {
            let layer = || Arc::clone(&ended.layer);
            let (reason, outcome) = (ended.reason.as_str(), ended.outcome.as_str());
            counter!("perennial_generations_total", "layer" => layer(), "reason" => reason, "outcome" => outcome).increment(1);
            let result = match ended.outcome {
                Outcome::Failed | Outcome::TimedOut | Outcome::LeaseLost => "failed",
                _ => "ok",
            };
            histogram!("perennial_generation_duration_seconds", "layer" => layer(), "outcome" => result).record(ended.took);
            // Other outcomes have no content.
            if let Outcome::Stored | Outcome::Unchanged | Outcome::Unsaved | Outcome::Refused =
                ended.outcome
            {
                #[allow(
                    clippy::cast_precision_loss,
                    reason = "a body has less than 2^53 bytes"
                )]
                histogram!("perennial_generation_bytes", "layer" => layer())
                    .record(ended.bytes as f64);
            }
        }
        Event::RegenerationSkipped { layer, skip, .. } => {
            counter!("perennial_generations_skipped_total", "layer" => Arc::clone(layer), "reason" => skip.as_str()).increment(1);
        }
        Event::LeaseTakenOver { .. } => counter!("perennial_lease_takeovers_total").increment(1),
        Event::Invalidated { target, .. } => {
            let scope = match target.split(':').next() {
                Some("key") => "key",
                Some("prefix") => "prefix",
                Some("tag") => "tag",
                Some("purged" | "purged_prefix" | "purged_tag") => "purge",
                _ => "revision",
            };
            counter!("perennial_invalidations_total", "scope" => scope).increment(1);
        }
        Event::LockAcquired { kind, .. } => lock(kind.as_str(), "acquired"),
        Event::LockContended { kind, .. } => lock(kind.as_str(), "contended"),
        Event::LockLost { kind, .. } => lock(kind.as_str(), "lost"),
        Event::LockBroken { kind, .. } => lock(kind.as_str(), "broken"),
        Event::IdempotentReplay { .. } => {
            counter!("perennial_idempotent_replays_total").increment(1);
        }
        Event::RegenerationStarted { .. }
        | Event::Purged { .. }
        | Event::Warmed { .. }
        | Event::DatabaseAway { .. }
        | Event::DatabaseBack { .. }
        | Event::Bypassed { .. }
        | Event::MemoryEvicted { .. }
        | Event::Missed { .. } => {}
    }
}

fn lock(kind: &'static str, result: &'static str) {
    counter!("perennial_locks_total", "kind" => kind, "result" => result).increment(1);
}

/// Records whether every step in the database works.
pub(crate) fn database_works(works: bool) {
    gauge!("perennial_database_available").set(f64::from(u8::from(works)));
}

/// Records a stale response.
pub(super) fn stale(since: Duration) {
    histogram!("perennial_served_staleness_seconds").record(since);
}

/// Records a step in the database.
pub(super) fn step(step: &'static str, took: Duration, succeeded: bool) {
    let outcome = if succeeded { "ok" } else { "error" };
    let labels = [("operation", step), ("outcome", outcome)];
    histogram!("perennial_database_operation_duration_seconds", &labels).record(took);
}

/// Records the figures that are counted without a recorder.
#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn figures(stats: &Stats) {
    for (result, count) in stats.requests.by_result() {
        counter!("perennial_requests_total", "result" => result).absolute(count);
    }
    gauge!("perennial_generations_in_progress").set(stats.running as f64);
    gauge!("perennial_memory_entries").set(stats.memory_entries as f64);
    gauge!("perennial_memory_bytes").set(stats.memory_bytes as f64);
    gauge!("perennial_memory_limit_bytes").set(stats.memory_capacity as f64);
    counter!("perennial_memory_evictions_total").absolute(stats.memory_evictions);
}
