//! Whatever visitors, origins and rows say: no panic, no hang, no growth, and a sound answer.
//!
//! Each target has a corpus of inputs in `random_input/corpus`, which are tried first. `scripts/fuzz` runs the
//! targets for longer.

mod cache_control;
mod conditions;
mod explanations;
mod keys;
mod middleware_stacks;
mod request_heads;
mod stored_rows;

use proptest::{collection::vec, prelude::*, sample::select};

/// Header fields, each with the words that its values are made of.
type Fields = &'static [(&'static str, &'static [&'static str])];

/// Text that is made of these words in any order, and of any bytes that a header may have.
fn said(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let any_byte = prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8];
    let bytes = vec(any_byte, 0..4);
    let word = prop_oneof![
        8 => select(words).prop_map(str::to_owned),
        2 => any::<u64>().prop_map(|number| number.to_string()),
        1 => bytes.prop_map(|bytes| bytes.into_iter().map(char::from).collect()),
    ];
    vec(word, 0..8).prop_map(|words| words.concat())
}

/// Lines such as `etag: "v1"`.
fn lines(fields: Fields) -> impl Strategy<Value = Vec<String>> {
    let field = select(fields).prop_flat_map(|(name, words)| (Just(name), said(words)));
    let line = field.prop_map(|(name, value)| format!("{name}: {value}"));
    vec(line, 0..5)
}

const DATES: &[&str] = &[
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994",
    "Sun, 06 Nov 9999 08:49:37 GMT",
    "GMT",
    "-1",
];

/// What a visitor may ask for.
const OF_VISITORS: Fields = &[
    (
        "range",
        &[
            "bytes",
            "=",
            "-",
            ",",
            " ",
            "0",
            "5",
            "35",
            "36",
            "lines",
            "18446744073709551615",
        ],
    ),
    ("if-range", &["\"v1\"", "W/", "\"", DATES[0], DATES[3]]),
    (
        "if-none-match",
        &["\"v1\"", "W/", "*", ",", " ", "\"", "\"v2\""],
    ),
    ("if-match", &["\"v1\"", "W/", "*", ",", " ", "\""]),
    ("if-modified-since", DATES),
    ("if-unmodified-since", DATES),
    (
        "accept-encoding",
        &[
            "gzip", "br", "identity", "*", ";q=", "0", "1", "0.5", ",", " ", ";",
        ],
    ),
    (
        "cache-control",
        &[
            "no-cache",
            "no-store",
            "max-age",
            "=",
            "only-if-cached",
            ",",
            "max-stale",
            "min-fresh",
        ],
    ),
];

/// What a response may say.
const OF_ORIGINS: Fields = &[
    (
        "cache-control",
        &[
            "max-age",
            "=",
            "s-maxage",
            "no-store",
            "no-cache",
            "private",
            "public",
            ",",
            " ",
            "stale-while-revalidate",
            "stale-if-error",
            "must-revalidate",
            "immutable",
            "\"",
            "-",
            ";",
            "/",
            "PRIVATE",
            "No-Store",
        ],
    ),
    (
        "cdn-cache-control",
        &[
            "max-age", "=", "no-store", "private", ",", ";", " ", "?1", "?0", "\"",
        ],
    ),
    ("expires", DATES),
    ("date", DATES),
    ("age", &["0", "-", "9"]),
    ("vary", &["*", ",", "accept-encoding", "cookie", " "]),
    ("set-cookie", &["a=b", ";", "Max-Age="]),
    ("etag", &["\"", "W/", "v1"]),
    ("last-modified", DATES),
    ("content-type", &["text/html", ";", "charset", "=", "\""]),
    ("content-encoding", &["gzip", "br", ",", "identity"]),
    ("content-length", &["3", "7", "-"]),
];
