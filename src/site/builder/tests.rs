//! The defaults and limits that documents and comments name are those of the code.

use super::*;
use crate::timing::{
    DEFAULT_LEASE, FIRST_COOLDOWN, FIRST_WAIT, GENERATION_TIMEOUT, LONGEST_COOLDOWN,
    MAX_NEGATIVE_INTERVAL, PROVISIONAL_INTERVAL, SHORTEST_COOLDOWN, SOFT_TIMEOUT,
};
use perennial_store::timing::STATEMENT_TIMEOUT;

const FRESHNESS: &str = include_str!("../../../docs/guide/freshness.md");
const OPERATING: &str = include_str!("../../../docs/guide/operating.md");
const CACHED: &str = include_str!("../../../docs/guide/is-my-page-cached.md");
const KEYS: &str = include_str!("../../../docs/guide/keys.md");
const PROMISES: &str = include_str!("../../../docs/guide/promises.md");
const README: &str = include_str!("../../../README.md");
const POLICY: &str = include_str!("../../policy.rs");
const BUILDER: &str = include_str!("../builder.rs");
const LAYER: &str = include_str!("../../layer/refresh/layer.rs");

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

/// Returns the words of a text, without the marks of comments.
fn words(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| *word != "///");
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the default that the comment of a method names.
fn default_in(source: &str, method: &str) -> String {
    let (before, _) = source
        .split_once(&format!(" fn {method}("))
        .unwrap_or_else(|| panic!("no method {method}"));
    let (_, default) = before
        .rsplit_once("Default: ")
        .unwrap_or_else(|| panic!("no default of {method}"));
    words(default)
}

#[test]
fn documents_name_the_defaults_of_the_policy() {
    let cooldown = format!(
        "the interval, but at least {} and at most {}",
        time(SHORTEST_COOLDOWN),
        time(LONGEST_COOLDOWN)
    );
    for (method, default) in [
        ("soft_timeout", time(SOFT_TIMEOUT)),
        ("first_wait", time(FIRST_WAIT)),
        ("timeout", time(GENERATION_TIMEOUT)),
        ("lease", time(DEFAULT_LEASE)),
        ("cooldown", cooldown),
    ] {
        let comment = default_in(POLICY, method);
        assert!(
            comment.starts_with(&format!("{default}.")),
            "{method}: {comment}"
        );
        let row = FRESHNESS
            .lines()
            .find(|line| line.starts_with(&format!("| `{method}(d)`")));
        let cell = row.and_then(|row| row.strip_suffix(" |")?.rsplit(" | ").next());
        assert_eq!(cell, Some(&*default), "{method}");
    }
}

#[test]
fn documents_name_the_limits_of_a_site() {
    let settings = Perennial::builder().settings;
    let store = settings.store_capacity.expect("a capacity") as usize;
    let (memory, keys) = (settings.memory_capacity as usize, "10,000".to_owned());
    for (method, default) in [
        ("memory_capacity", size(memory)),
        ("store_capacity", size(store)),
        ("max_body", size(settings.max_body)),
        ("max_headers", size(settings.max_headers)),
        ("max_regenerations", settings.max_regenerations.to_string()),
        ("retention", time(settings.retention)),
        ("statement_timeout", time(STATEMENT_TIMEOUT)),
        ("database_patience", time(DATABASE_PATIENCE)),
    ] {
        let comment = default_in(BUILDER, method);
        let named = [".", ","].map(|end| format!("{default}{end}"));
        assert!(
            named.iter().any(|named| comment.starts_with(named)),
            "{method}: {comment}"
        );
    }
    assert!(default_in(LAYER, "max_keys").starts_with(&format!("{keys}.")));
    assert!(LAYER.contains("const MAX_KEYS: usize = 10_000;"));
    let (body, headers) = (size(settings.max_body), size(settings.max_headers));
    let (lease, third) = (time(DEFAULT_LEASE), time(DEFAULT_LEASE / 3));
    for (document, text) in [
        (
            OPERATING,
            format!("`Builder::memory_capacity`, {} by default", size(memory)),
        ),
        (
            OPERATING,
            format!("`Builder::store_capacity`, {} by default", size(store)),
        ),
        (
            OPERATING,
            format!("`Builder::retention`, {} after", time(settings.retention)),
        ),
        (OPERATING, format!("rest of its lease, {lease} at most")),
        (
            OPERATING,
            format!(
                "served, after {} s at most",
                DATABASE_PATIENCE.as_secs_f32()
            ),
        ),
        (
            CACHED,
            format!("`Builder::max_body` ({body}) or `Builder::max_headers` ({headers})"),
        ),
        (KEYS, format!("at most {keys} new keys")),
        (
            FRESHNESS,
            format!(
                "`Builder::database_patience` ({} s)",
                DATABASE_PATIENCE.as_secs_f32()
            ),
        ),
        (
            FRESHNESS,
            format!(
                "a wait of up to {} (`Builder::statement_timeout`)",
                time(STATEMENT_TIMEOUT)
            ),
        ),
        (
            FRESHNESS,
            format!(
                "without a servable version {}, doubled",
                time(FIRST_COOLDOWN)
            ),
        ),
        (
            FRESHNESS,
            format!(
                "did not come in time, is stale after {}",
                time(PROVISIONAL_INTERVAL)
            ),
        ),
        (PROMISES, format!("a lease of {lease}")),
        (PROMISES, format!("extends the lease every {third}")),
        (README, format!("after the lease, {lease} by default")),
    ] {
        assert!(words(document).contains(&text), "{text}");
    }
    assert_eq!(
        MAX_NEGATIVE_INTERVAL,
        Duration::from_secs(60),
        "a minute, in the guide"
    );
}
