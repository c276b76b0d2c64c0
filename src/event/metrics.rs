//! Metrics, by the facade of the crate `metrics`.
//!
//! The value of a label comes from an enum or from the source code, never from a request or from the
//! database: visitors cannot make series.

use std::{sync::Arc, time::Duration};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{Bypass, Event, Outcome, Served, Stats};

enum Kind {
    Counter,
    Gauge,
    Histogram,
}
use Kind::{Counter, Gauge, Histogram};

/// All metrics, without the prefix `perennial_` of their names.
const METRICS: [(&str, Kind, Unit, &str); 17] = [
    (
        "requests_total",
        Counter,
        Unit::Count,
        "Requests by result. A stale response is not a hit.",
    ),
    (
        "stale_age_seconds",
        Histogram,
        Unit::Seconds,
        "The time since a served version became stale.",
    ),
    (
        "regenerations_total",
        Counter,
        Unit::Count,
        "Regenerations that have ended.",
    ),
    (
        "regeneration_duration_seconds",
        Histogram,
        Unit::Seconds,
        "The time of the generator.",
    ),
    (
        "regeneration_bytes",
        Histogram,
        Unit::Bytes,
        "The size of generated bodies.",
    ),
    (
        "regenerations_in_progress",
        Gauge,
        Unit::Count,
        "Regenerations that run in this process.",
    ),
    (
        "regenerations_skipped_total",
        Counter,
        Unit::Count,
        "Stale versions that this process did not regenerate.",
    ),
    (
        "lease_takeovers_total",
        Counter,
        Unit::Count,
        "Leases of crashed or paused processes that were taken over.",
    ),
    (
        "invalidations_total",
        Counter,
        Unit::Count,
        "Invalidations by this process.",
    ),
    ("memory_entries", Gauge, Unit::Count, "Keys in memory."),
    (
        "memory_bytes",
        Gauge,
        Unit::Bytes,
        "The size of the versions in memory.",
    ),
    (
        "memory_limit_bytes",
        Gauge,
        Unit::Bytes,
        "The capacity of memory.",
    ),
    (
        "memory_evictions_total",
        Counter,
        Unit::Count,
        "Keys that had to leave memory for others.",
    ),
    (
        "database_available",
        Gauge,
        Unit::Count,
        "1, or 0 while a step in the database fails.",
    ),
    (
        "database_operation_duration_seconds",
        Histogram,
        Unit::Seconds,
        "The time of each step in the database, with the wait for a connection.",
    ),
    (
        "locks_total",
        Counter,
        Unit::Count,
        "Locks that were acquired, contended, lost or broken.",
    ),
    (
        "idempotent_replays_total",
        Counter,
        Unit::Count,
        "Repeated requests that got the stored response.",
    ),
];

/// Describes the metrics to the application's recorder.
pub(crate) fn describe() {
    for (name, kind, unit, help) in METRICS {
        let name = format!("perennial_{name}");
        match kind {
            Counter => describe_counter!(name, unit, help),
            Gauge => describe_gauge!(name, unit, help),
            Histogram => describe_histogram!(name, unit, help),
        }
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
        _ => {}
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
    histogram!("perennial_stale_age_seconds").record(since);
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
