//! Generates the guide's chapter about defaults from the constants in the code.

use super::*;
use crate::timing::{
    DEFAULT_LEASE, FIRST_COOLDOWN, FOLLOWER_WAIT, GENERATION_TIMEOUT, LEADER_WAIT,
    LONGEST_COOLDOWN, MAX_NEGATIVE_INTERVAL, PROVISIONAL_INTERVAL, SHORTEST_COOLDOWN,
    SYNC_INTERVAL,
};
use perennial_store::timing::STATEMENT_TIMEOUT;

fn time(time: Duration) -> String {
    match time.as_millis() {
        0..1000 => format!("{} ms", time.as_millis()),
        1000..86_400_000 => format!("{} s", time.as_secs()),
        _ => format!("{} days", time.as_secs() / 86_400),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Returns the chapter.
fn chapter() -> String {
    let settings = Perennial::builder().settings;
    let store = settings.store_capacity.expect("a capacity");
    let policy = [
        ("leader_wait", time(LEADER_WAIT)),
        ("follower_wait", time(FOLLOWER_WAIT)),
        ("generator_timeout", time(GENERATION_TIMEOUT)),
        ("lease_duration", time(DEFAULT_LEASE)),
        (
            "cooldown",
            format!(
                "the interval, but at least {} and at most {}; without a servable version {}, doubled by each failure",
                time(SHORTEST_COOLDOWN),
                time(LONGEST_COOLDOWN),
                time(FIRST_COOLDOWN)
            ),
        ),
    ];
    let site = [
        ("memory_capacity", size(settings.memory_capacity as usize)),
        ("store_capacity", size(store as usize)),
        ("max_body", size(settings.max_body)),
        ("max_headers", size(settings.max_headers)),
        ("max_regenerations", settings.max_regenerations.to_string()),
        ("retention", time(settings.retention)),
        ("statement_timeout", time(STATEMENT_TIMEOUT)),
        ("database_patience", time(DATABASE_PATIENCE)),
    ];
    let layer = [("max_keys", crate::layer::refresh::MAX_KEYS.to_string())];
    let locks = [("lease_duration", time(DEFAULT_LEASE))];
    let fixed = [
        (
            "a 404, 405, 410 or 414 is stale, unless it says otherwise, after",
            time(MAX_NEGATIVE_INTERVAL),
        ),
        (
            "a page with a placeholder, or with a part that failed or came late, is stale after",
            time(PROVISIONAL_INTERVAL),
        ),
        (
            "a process asks for news of invalidations, while it has requests, every",
            time(SYNC_INTERVAL),
        ),
        (
            "while a generator runs, its process extends the lease after",
            "a third of it".to_owned(),
        ),
    ];
    let mut text = "# Defaults and limits\n\nThis chapter is generated from the code. Each method's documentation says what the setting is for.\n".to_owned();
    for (title, of, rows) in [
        ("A policy", "Refresh", &policy[..]),
        ("A site", "Builder", &site[..]),
        ("A layer", "RefreshLayer", &layer[..]),
        ("Named locks", "Locks", &locks[..]),
    ] {
        text += &format!("\n## {title}\n\n| `{of}` | default |\n|---|---|\n");
        for (method, default) in rows {
            text += &format!("| `{method}` | {default} |\n");
        }
    }
    text += "\n## What no setting changes\n\n| | |\n|---|---|\n";
    for (what, limit) in &fixed {
        text += &format!("| {what} | {limit} |\n");
    }
    text
}

/// `PERENNIAL_UPDATE=1 cargo test --lib chapter_of_defaults` writes the chapter.
#[test]
fn chapter_of_defaults_is_what_the_constants_say() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/defaults.md");
    if std::env::var_os("PERENNIAL_UPDATE").is_some() {
        std::fs::write(FILE, chapter()).expect("is written");
    }
    let present = std::fs::read_to_string(FILE).expect("is read");
    assert_eq!(present, chapter(), "PERENNIAL_UPDATE=1 writes {FILE}");
}
