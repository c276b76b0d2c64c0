//! Metrics, through the facade of the crate `metrics`. No label contains text that a visitor has chosen,
//! because each text would create a time series of its own.

use std::{sync::Arc, time::Duration};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use perennial_store::{LockName, StoreEvent};

use super::{Bypass, Event, Outcome, Served, Stats};

/// The macros that describe the kinds of metrics.
macro_rules! describe {
    ($($kind:ident $name:literal $unit:ident $help:literal;)+) => {{
        $(describe!(@$kind concat!("perennial_", $name), Unit::$unit, $help);)+
    }};
    (@counter $($described:tt)+) => { describe_counter!($($described)+) };
    (@gauge $($described:tt)+) => { describe_gauge!($($described)+) };
    (@histogram $($described:tt)+) => { describe_histogram!($($described)+) };
}

/// Describes the metrics to the application's recorder.
pub(crate) fn describe() {
    describe! {
        counter "requests_total" Count "Requests by result. A stale response is not a hit.";
        histogram "stale_age_seconds" Seconds "The time since a served version became stale.";
        counter "regenerations_total" Count "Regenerations that have ended.";
        histogram "regeneration_duration_seconds" Seconds "The time of the generator.";
        histogram "regeneration_bytes" Bytes "The size of generated bodies.";
        gauge "regenerations_in_progress" Count "Regenerations that run in this process.";
        counter "regenerations_skipped_total" Count "Stale versions that this process did not regenerate.";
        counter "lease_takeovers_total" Count "Leases of crashed or paused processes that were taken over.";
        counter "invalidations_total" Count "Invalidations by this process.";
        counter "missed_invalidations_total" Count "Pages with tags that were found changed, and that nobody had invalidated.";
        gauge "memory_entries" Count "Keys in memory.";
        gauge "memory_bytes" Bytes "The size of the versions in memory.";
        gauge "memory_limit_bytes" Bytes "The capacity of memory.";
        counter "memory_evictions_total" Count "Keys that had to leave memory for others.";
        gauge "database_available" Count "1, or 0 while an operation in the database fails.";
        histogram "database_operation_duration_seconds" Seconds
            "The time of each operation in the database, with the wait for a connection.";
        counter "locks_total" Count "Locks that were acquired, contended, lost or broken.";
        counter "idempotent_replays_total" Count "Repeated requests that got the stored response.";
    }
}

/// Records an event.
pub(super) fn record(event: &Event) {
    match event {
        Event::Regenerated(ended) => {
            let layer = || Arc::clone(&ended.layer);
            let (reason, outcome) = (ended.reason.as_str(), ended.outcome.as_str());
            let detail = match ended.outcome {
                Outcome::NotStored(why) => why.as_str(),
                _ => "",
            };
            counter!("perennial_regenerations_total", "layer" => layer(), "reason" => reason, "outcome" => outcome, "detail" => detail).increment(1);
            let result = match ended.outcome {
                Outcome::Failed | Outcome::TimedOut => "failed",
                _ => "ok",
            };
            histogram!("perennial_regeneration_duration_seconds", "layer" => layer(), "outcome" => result).record(ended.took);
            if ended.bytes > 0 {
                #[allow(
                    clippy::cast_precision_loss,
                    reason = "a body has less than 2^53 bytes"
                )]
                histogram!("perennial_regeneration_bytes", "layer" => layer())
                    .record(ended.bytes as f64);
            }
        }
        Event::NotRegenerated { layer, outcome, .. } => {
            counter!("perennial_regenerations_skipped_total", "layer" => Arc::clone(layer), "outcome" => outcome.as_str()).increment(1);
        }
        Event::LeaseTakenOver { .. } => counter!("perennial_lease_takeovers_total").increment(1),
        Event::Invalidated { name, .. } => {
            let scope = match name.split(':').next() {
                Some("key") => "key",
                Some("prefix") => "prefix",
                Some("tag" | "tag_prefix") => "tag",
                Some(purged) if purged.starts_with("purged") => "purge",
                _ => "revision",
            };
            counter!("perennial_invalidations_total", "scope" => scope).increment(1);
        }
        Event::MissedInvalidation(missed) => {
            counter!("perennial_missed_invalidations_total", "layer" => Arc::clone(&missed.layer))
                .increment(1);
        }
        _ => {}
    }
}

/// Records an event of the store.
pub(super) fn on_store_event(event: &StoreEvent<'_>) {
    let lock = |name: &LockName, result: &'static str| {
        counter!("perennial_locks_total", "kind" => name.kind().as_str(), "result" => result)
            .increment(1);
    };
    match *event {
        StoreEvent::Operation {
            operation,
            took,
            succeeded,
            works,
        } => {
            let outcome = if succeeded { "ok" } else { "error" };
            let labels = [("operation", operation), ("outcome", outcome)];
            histogram!("perennial_database_operation_duration_seconds", &labels).record(took);
            gauge!("perennial_database_available").set(f64::from(u8::from(works)));
        }
        StoreEvent::DatabaseUnavailable { .. } | StoreEvent::DatabaseBack { .. } => {}
        StoreEvent::LockAcquired { name, .. } => lock(name, "acquired"),
        StoreEvent::LockContended { name } => lock(name, "contended"),
        StoreEvent::LockLost { name, .. } => lock(name, "lost"),
        StoreEvent::LockBroken { name } => lock(name, "broken"),
        StoreEvent::Replayed { .. } => counter!("perennial_idempotent_replays_total").increment(1),
    }
}

/// Records a stale response.
pub(super) fn stale(since: Duration) {
    histogram!("perennial_stale_age_seconds").record(since);
}

/// Records the figures that Perennial counts by itself, even when no recorder is installed.
#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn figures(stats: &Stats) {
    for served in Served::all() {
        let detail = match served {
            Served::Bypass(why) => Bypass::as_str(why),
            _ => "",
        };
        counter!("perennial_requests_total", "result" => served.as_str(), "detail" => detail)
            .absolute(stats.requests(served));
    }
    gauge!("perennial_regenerations_in_progress").set(stats.running as f64);
    gauge!("perennial_memory_entries").set(stats.memory_entries as f64);
    gauge!("perennial_memory_bytes").set(stats.memory_bytes as f64);
    gauge!("perennial_memory_limit_bytes").set(stats.memory_capacity as f64);
    counter!("perennial_memory_evictions_total").absolute(stats.memory_evictions);
}
