//! Entries and locks as JSON.

use perennial::{
    entries::{Entry, PastVersion},
    locks::LockInfo,
};
use serde_json::{Value, json};

pub(crate) fn entry_json(entry: &Entry) -> Value {
    json!({
        "key": entry.key,
        "layer": entry.layer,
        "state": entry.state.as_str(),
        "status": entry.status,
        "age_s": entry.age.as_secs_f64(),
        "interval_s": entry.interval.as_secs_f64(),
        "next_regeneration_s": entry.next_regeneration.as_secs_f64(),
        "bytes": entry.bytes,
        "tags": entry.tags,
        "revision": entry.revision,
        "fence": entry.fence,
        "holder": entry.holder.as_ref().map(|holder| &holder.label),
        "history": entry.history.iter().map(generation_json).collect::<Vec<_>>(),
    })
}

pub(crate) fn generation_json(generation: &PastVersion) -> Value {
    json!({
        "fence": generation.fence,
        "reason": generation.reason.as_str(),
        "took_s": generation.took.as_secs_f64(),
        "bytes": generation.bytes,
        "changed": generation.changed,
        "process": generation.process,
    })
}

pub(crate) fn lock_json(lock: &LockInfo) -> Value {
    json!({
        "kind": lock.kind.as_str(),
        "name": lock.name,
        "fence": lock.fence,
        "holder": lock.holder.as_ref().map(|holder| &holder.label),
        "action": lock.holder.as_ref().map(|holder| &holder.action),
        "age_s": lock.age.as_secs_f64(),
        "remaining_s": lock.remaining.as_secs_f64(),
    })
}
