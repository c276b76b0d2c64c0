//! Likely mistakes do not compile, and the compiler's message leads to the remedy.

#![allow(unexpected_cfgs, reason = "the cases are compiled by their test alone")]

/// Each is a mistake that a newcomer makes.
#[cfg(mistakes)]
mod cases {
    use std::collections::BTreeMap;

    use perennial::{DAY, Key, Perennial, Refresh, Tags, layer::RefreshLayer};

    fn seconds_as_a_policy(site: Perennial) {
        let _ = site.layer(60);
    }

    fn seconds_as_an_interval() -> Refresh {
        Refresh::every(60)
    }

    fn iterator_of_parameters(names: &BTreeMap<String, u32>) {
        let _ = Key::new().query(names.keys().map(String::as_str));
    }

    fn number_as_a_tag(id: u32) {
        let _ = Tags::new(id);
    }

    async fn content_without_a_result(site: Perennial) {
        let _ = site.content("sidebar", DAY, async || "a sidebar").await;
    }

    async fn content_by_a_closure_with_another_argument(site: Perennial) {
        let _ = site
            .content("sidebar", DAY, async |_: u32| {
                Ok::<_, std::io::Error>("a sidebar")
            })
            .await;
    }

    async fn content_that_is_no_closure(site: Perennial) {
        let _ = site.content("sidebar", DAY, "a sidebar").await;
    }

    fn hole_filled_by_a_number(layer: RefreshLayer) {
        let _ = layer.hole("cart", async |_| 7);
    }

    fn key_by_a_header_alone() {
        let _ = Key::by(|parts| parts.headers.get("x-country"));
    }

    async fn page_that_is_no_path(site: Perennial, app: axum::Router) {
        let _ = site.warm(app, [7]).await;
    }

    async fn connection_of_a_pool_as_a_transaction(site: Perennial, pool: sqlx::SqlitePool) {
        let _ = site.invalidate_in(&pool, "books").await;
    }
}

/// For each case, what its message says.
const LEADS: [(&str, &[&str]); 11] = [
    (
        "site.layer(60)",
        &["Refresh: From<{integer}>", "From<Duration>"],
    ),
    (
        "Refresh::every(60)",
        &["expected `Duration`, found integer"],
    ),
    (
        "names.keys()",
        &[
            "is not a name or a list of names",
            "collect an iterator into a list",
        ],
    ),
    ("Tags::new(id)", &["`u32` is not a name or a list of names"]),
    ("async || \"a sidebar\"", &["Result<_, _>"]),
    ("async |_: u32|", &["does not generate content"]),
    (
        "DAY, \"a sidebar\"",
        &[
            "`&str` does not generate content",
            "expected a closure such as",
        ],
    ),
    (
        "async |_| 7",
        &[
            "the function of a hole returns a text",
            "return `value.to_string()`",
        ],
    ),
    (
        "parts.headers.get(\"x-country\")",
        &[
            "is not a list of pairs of a name and a value",
            "returns `Some([(name, value)])`",
        ],
    ),
    ("site.warm(app, [7])", &["Visit: From<{integer}>"]),
    ("invalidate_in(&pool", &["Connection<'_>: From<&"]),
];

/// Compiles this file with the cases, with the features and dependencies of the present build.
#[test]
fn each_mistake_has_a_message_that_leads_to_its_remedy() {
    let mut compile = std::process::Command::new(env!("CARGO"));
    compile.args(["rustc", "--profile", "test", "--test", "mistakes"]);
    compile.args([
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    let done = compile
        .args(["--", "--cfg", "mistakes"])
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "it compiles");
    let messages: Vec<_> = said.split("\nerror").collect();
    for (case, leads) in LEADS {
        let of_case = messages.iter().filter(|message| message.contains(case));
        let text = of_case.copied().collect::<Vec<_>>().join("\n");
        assert!(!text.is_empty(), "no message about {case}: {said}");
        for lead in leads {
            assert!(text.contains(lead), "{case}: {lead:?} is not in {text}");
        }
    }
}
