//! The freshness directives of a response, for a shared cache (RFC 9111 §4.2, RFC 9213, RFC 5861).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sfv::{BareItem, Dictionary, Item, ListEntry, Parser};

use crate::{http::fields::list, timing::MAX_NEGATIVE_INTERVAL};

/// The time limits of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The age at which the version is stale.
    pub(crate) interval: Duration,
    /// The time after the interval for which the stale version is served during a regeneration. `None` means
    /// that there is no limit.
    pub(crate) stale_while_revalidate: Option<Duration>,
    /// The time for which the stale version is served after a failed regeneration.
    pub(crate) stale_if_error: Duration,
}

/// Returns true for a response that says that there is nothing: 404, 405, 410 and 414.
pub(crate) fn is_negative(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 405 | 410 | 414)
}

/// Returns the policy's interval for a response of this status: at most a minute for a negative one,
/// as a missing resource may exist soon.
pub(crate) fn interval_for(status: StatusCode, interval: Duration) -> Duration {
    if is_negative(status) {
        interval.min(MAX_NEGATIVE_INTERVAL)
    } else {
        interval
    }
}

/// Returns true if a shared cache may not store the response (RFC 9111 §3).
///
/// With `by_headers`, a targeted header decides alone (RFC 9213 §2.2), and
/// `must-understand` overrides `no-store` (RFC 9111 §5.2.2.3), as Perennial understands each status
/// that it stores. Without `by_headers`, `private` or `no-store` in either header forbids
/// storing.
pub(crate) fn forbid_storing(headers: &HeaderMap, by_headers: bool) -> bool {
    let understood =
        |field| by_headers && directives(headers, field).any(|(name, _)| name == "must-understand");
    let forbids = |field| {
        // `private="field"` counts as `private`, as §5.2.2.7 allows.
        mentions(headers, field, "private")
            || (mentions(headers, field, "no-store") && !understood(field))
    };
    let decides_alone = by_headers && targeted(headers).is_some();
    (!decides_alone && forbids(&header::CACHE_CONTROL)) || forbids(&header::CDN_CACHE_CONTROL)
}

/// Returns the terms that the headers declare, or `None` if they declare none. A valid `CDN-Cache-Control`
/// replaces the other headers.
///
/// A stale version is served only as `stale-while-revalidate` and `stale-if-error` allow, and not if
/// `no-cache`, `must-revalidate` or `proxy-revalidate` forbids it. `s-maxage` implies `proxy-revalidate` (RFC
/// 9111 §5.2.2.10), but a `stale-…` directive beside `s-maxage` has precedence: origins combine the two in
/// this way.
pub(crate) fn declared(headers: &HeaderMap) -> Option<Terms> {
    let (directives, expires) = match targeted(headers) {
        Some(targeted) => (targeted, None),
        None => {
            let directives = directives(headers, &header::CACHE_CONTROL);
            (directives.collect(), expires(headers))
        }
    };
    let find = |name: &str| {
        let mut found = directives.iter().filter(|(it, _)| it == name);
        found.next().map(|(_, value)| value.as_str())
    };
    // An unreadable number counts as zero (§4.2.1).
    let seconds = |name| {
        let value = find(name)?;
        Some(Duration::from_secs(delta_seconds(value).unwrap_or(0)))
    };
    let lifetime = if find("no-cache").is_some() {
        Some(Duration::ZERO)
    } else {
        let shared = seconds("s-maxage").or_else(|| seconds("max-age"));
        shared.or(expires)
    };
    let revalidate = ["must-revalidate", "proxy-revalidate", "no-cache"];
    let allowed = |name| {
        if revalidate.iter().any(|it| find(it).is_some()) {
            Duration::ZERO
        } else {
            seconds(name).unwrap_or_default()
        }
    };
    let interval = lifetime?.saturating_sub(Duration::from_secs(age(headers)));
    Some(Terms {
        interval,
        stale_while_revalidate: Some(allowed("stale-while-revalidate")),
        stale_if_error: allowed("stale-if-error"),
    })
}

/// Returns the age of the response when it was received, in seconds: the first member of the header
/// `Age`, or zero if it is missing or is not a number (RFC 9111 §5.1).
pub(crate) fn age(headers: &HeaderMap) -> u64 {
    let first = list(headers, &header::AGE).next();
    first.and_then(|age| delta_seconds(&age)).unwrap_or(0)
}

/// Returns the number of seconds. A number that does not fit into 64 bits counts as 2^31 (RFC 9111 §1.2.2).
fn delta_seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(1 << 31))
}

/// Returns the date in a header.
pub(crate) fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let value = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(value).ok()
}

/// Returns the time from `Date` to `Expires`.
fn expires(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::EXPIRES)?;
    let made = date(headers, &header::DATE).unwrap_or(SystemTime::UNIX_EPOCH);
    // `0` and every other invalid date is in the past (§5.3).
    let until = date(headers, &header::EXPIRES).unwrap_or(SystemTime::UNIX_EPOCH);
    Some(until.duration_since(made).unwrap_or_default())
}

/// Returns the directives of `CDN-Cache-Control` if the header is a valid, non-empty dictionary
/// (RFC 9651 §3.2) whose numeric directives have numbers. Any other value is ignored (RFC 9213
/// §2.1).
fn targeted(headers: &HeaderMap) -> Option<Vec<(String, String)>> {
    const NUMBERS: [&str; 4] = [
        "max-age",
        "s-maxage",
        "stale-while-revalidate",
        "stale-if-error",
    ];
    let lines = headers.get_all(header::CDN_CACHE_CONTROL).into_iter();
    let lines: Vec<_> = lines.map(HeaderValue::as_bytes).collect();
    let field = lines.join(&b", "[..]);
    let dictionary: Dictionary = Parser::new(&field).parse().ok()?;
    let mut directives = Vec::with_capacity(dictionary.len());
    for (name, member) in dictionary {
        let name = String::from(name);
        let item = match member {
            ListEntry::Item(Item { bare_item, .. }) => Some(bare_item),
            ListEntry::InnerList(_) => None,
        };
        let value = match item {
            Some(BareItem::Integer(number)) => number.to_string(),
            _ if NUMBERS.contains(&&*name) => return None,
            Some(BareItem::Boolean(false)) => continue,
            // Values of other directives are not read.
            _ => String::new(),
        };
        directives.push((name, value));
    }
    (!directives.is_empty()).then_some(directives)
}

/// Returns true if the word occurs anywhere in the header, even in a malformed header such as `private;
/// max-age=0`. Not storing a response is always permitted.
pub(crate) fn mentions(headers: &HeaderMap, field: &HeaderName, word: &str) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    headers.get_all(field).iter().any(|line| {
        let mut words = line.as_bytes().split(|byte| !is_part(byte));
        words.any(|it| it.eq_ignore_ascii_case(word.as_bytes()))
    })
}

/// Returns the directives of a header such as `Cache-Control`: names in lowercase, values without
/// quotes.
pub(crate) fn directives(
    headers: &HeaderMap,
    field: &HeaderName,
) -> impl Iterator<Item = (String, String)> {
    list(headers, field).map(|directive| {
        let (name, value) = directive.split_once('=').unwrap_or((&*directive, ""));
        let value = value.trim().trim_matches('"').to_owned();
        (name.trim().to_ascii_lowercase(), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_as_a_shared_cache_reads_it() {
        const DATE: (&str, &str) = ("date", "Sat, 29 Oct 1994 19:43:31 GMT");
        const LATER: (&str, &str) = ("expires", "Sat, 29 Oct 1994 19:44:31 GMT");
        let cc = |value| vec![("cache-control", value)];
        let aged = |age| vec![("cache-control", "max-age=60"), ("age", age)];
        let cdn = |value| {
            let other = "max-age=60, stale-while-revalidate=30";
            vec![("cache-control", other), ("cdn-cache-control", value)]
        };
        // The headers, and the expected seconds: fresh, stale while revalidating, stale if error.
        let table = [
            (vec![], None),
            (cc("public"), None),
            (cc("max-age=60"), Some((60, 0, 0))),
            (cc("Max-Age=\"60\""), Some((60, 0, 0))),
            (cc("max-age=60, s-maxage=10"), Some((10, 0, 0))),
            (cc("max-age=60, max-age=10"), Some((60, 0, 0))),
            (cc("max-age=soon"), Some((0, 0, 0))),
            (cc("max-age=-1"), Some((0, 0, 0))),
            (cc("max-age=+1"), Some((0, 0, 0))),
            (cc("max-age="), Some((0, 0, 0))),
            (cc("max-age=99999999999999999999"), Some((1 << 31, 0, 0))),
            (
                vec![
                    ("cache-control", "max-age=60"),
                    ("age", "99999999999999999999"),
                ],
                Some((0, 0, 0)),
            ),
            (cc("no-cache"), Some((0, 0, 0))),
            (cc("no-cache, max-age=60"), Some((0, 0, 0))),
            (
                cc("max-age=60, stale-while-revalidate=30"),
                Some((60, 30, 0)),
            ),
            (cc("max-age=60, stale-if-error=90"), Some((60, 0, 90))),
            (
                cc("max-age=60, stale-while-revalidate=30, must-revalidate"),
                Some((60, 0, 0)),
            ),
            (
                cc("max-age=60, stale-if-error=30, proxy-revalidate"),
                Some((60, 0, 0)),
            ),
            (
                cc("s-maxage=60, stale-while-revalidate=30"),
                Some((60, 30, 0)),
            ),
            (vec![DATE, LATER], Some((60, 0, 0))),
            (vec![DATE, ("expires", "0")], Some((0, 0, 0))),
            (vec![LATER, ("date", LATER.1)], Some((0, 0, 0))),
            (
                vec![DATE, LATER, ("cache-control", "max-age=5")],
                Some((5, 0, 0)),
            ),
            (
                vec![("cache-control", "max-age=60"), ("age", "45")],
                Some((15, 0, 0)),
            ),
            (
                vec![("cache-control", "max-age=60"), ("age", "90")],
                Some((0, 0, 0)),
            ),
            (
                vec![("cache-control", "public"), ("cache-control", "max-age=7")],
                Some((7, 0, 0)),
            ),
            // The first of several ages counts (§5.1).
            (aged("45, 0"), Some((15, 0, 0))),
            (aged("0, 45"), Some((60, 0, 0))),
            (aged("45;a=b"), Some((60, 0, 0))),
            (aged("45.0"), Some((60, 0, 0))),
            (aged("-45"), Some((60, 0, 0))),
            (aged("old"), Some((60, 0, 0))),
            (aged(""), Some((60, 0, 0))),
            (
                vec![("cache-control", "max-age=60"), ("age", "45"), ("age", "0")],
                Some((15, 0, 0)),
            ),
            // RFC 9213: a valid targeted header replaces the others, and an invalid one is ignored.
            (cdn("max-age=9"), Some((9, 0, 0))),
            (cdn("max-age=9;a=b, unknown=(a b)"), Some((9, 0, 0))),
            (cdn("max-age=8, max-age=9"), Some((9, 0, 0))),
            (
                cdn("max-age=999999999999999"),
                Some((999_999_999_999_999, 0, 0)),
            ),
            (cdn("max-age=-9"), Some((0, 0, 0))),
            (cdn("max-age=9, s-maxage=8"), Some((8, 0, 0))),
            (cdn("max-age=9, stale-while-revalidate=5"), Some((9, 5, 0))),
            (
                cdn("max-age=9, stale-if-error=5, must-revalidate"),
                Some((9, 0, 0)),
            ),
            (cdn("no-cache"), Some((0, 0, 0))),
            (cdn("no-cache=?0, max-age=9"), Some((9, 0, 0))),
            (cdn("max-age=0"), Some((0, 0, 0))),
            (cdn("public"), None),
            (cdn(""), Some((60, 30, 0))),
            (cdn("max-age=\"9\""), Some((60, 30, 0))),
            (cdn("max-age"), Some((60, 30, 0))),
            (cdn("max-age=(9)"), Some((60, 30, 0))),
            (cdn("max-age=9.5"), Some((60, 30, 0))),
            (cdn("max-age = 9"), Some((60, 30, 0))),
            (cdn("Max-Age=9"), Some((60, 30, 0))),
            (cdn("max-age=9, &&&&&"), Some((60, 30, 0))),
            (cdn("max-age=9,"), Some((60, 30, 0))),
            (
                vec![
                    DATE,
                    LATER,
                    ("cdn-cache-control", "s-maxage=9"),
                    ("cdn-cache-control", "stale-if-error=5"),
                    ("age", "2"),
                ],
                Some((7, 0, 5)),
            ),
        ];
        for (lines, expected) in table {
            let mut headers = HeaderMap::new();
            for (name, value) in &lines {
                headers.append(*name, value.parse().expect("a value"));
            }
            let terms = declared(&headers).map(|terms| {
                (
                    terms.interval.as_secs(),
                    terms.stale_while_revalidate.expect("is limited").as_secs(),
                    terms.stale_if_error.as_secs(),
                )
            });
            assert_eq!(terms, expected, "{lines:?}");
        }
    }

    #[test]
    fn either_field_forbids_storing_unless_the_targeted_one_is_honoured() {
        // The columns: `Cache-Control`, `CDN-Cache-Control`, whether storing is forbidden with
        // `by_headers`, and whether storing is forbidden without it.
        let table = [
            ("", "", false, false),
            ("private", "", true, true),
            ("private=\"x\"", "", true, true),
            ("No-Store", "", true, true),
            ("max-age=9", "private", true, true),
            ("max-age=9", "private=\"x\"", true, true),
            ("max-age=9", "no-store", true, true),
            ("max-age=9", "no-cache", false, false),
            ("no-store", "max-age=9", false, true),
            ("private", "max-age=9", false, true),
            ("no-store", "max-age=9, &&&&&", true, true),
            ("no-store", "max-age=\"9\"", true, true),
            // Malformed dictionaries: names in upper case, blanks around `=`.
            ("max-age=9", "No-Store", true, true),
            ("max-age=9", "PRIVATE, max-age=0", true, true),
            ("max-age=9", "no-store, max-age = 0", true, true),
            ("max-age=9", "Max-Age=0", false, false),
            ("max-age=9, no-cache=\"private\"", "", true, true),
            ("x-private, no-store-x, privates", "", false, false),
            (", ,max-age=9 ,", "", false, false),
            ("no-store; must-understand", "", true, true),
            ("no-store, must-understand", "", false, true),
            ("private, must-understand", "", true, true),
        ];
        // In a malformed field, the directives that can be recognised still count.
        let malformed = [
            "private; max-age=0",
            "no-store; private",
            "no-cache no-store private",
            "private max-age=0",
            "max-age=0 private",
            "max-age=60; private",
            "max-age = 60, private",
            "private = x",
            "private=",
            "private=\"set-cookie",
            "\"private\"",
            "'private'",
            "max-age=\"60, private",
            "max-age=60\tprivate",
            "=private",
            "max-age==60, no-store",
            "no-store;",
            "no-store:",
            "no-store/private",
            "public|private;",
            "(private)",
            "[no-store]",
            "{no-store}",
            "<private>",
            "PRIVATE;MAX-AGE=0",
            "No-Store; No-Cache",
            "cache-control: private",
            "max-age=60 , , no-store ; x",
            "private\\",
            "private@example",
            "max-age=60,private?",
            "private.",
            "\u{e9}, private",
        ];
        let malformed = malformed
            .into_iter()
            .flat_map(|value| [(value, "", true, true), ("", value, true, true)]);
        for (general, targeted, honoured, otherwise) in table.into_iter().chain(malformed) {
            let mut headers = HeaderMap::new();
            for (name, value) in [("cache-control", general), ("cdn-cache-control", targeted)] {
                let value = HeaderValue::from_bytes(value.as_bytes());
                headers.insert(name, value.expect("a value"));
            }
            let forbidden = [true, false].map(|by_headers| forbid_storing(&headers, by_headers));
            assert_eq!(
                forbidden,
                [honoured, otherwise],
                "{general:?}, {targeted:?}"
            );
        }
    }

    #[test]
    fn negative_interval_is_a_minute_at_most() {
        const HOUR: Duration = Duration::from_hours(1);
        for status in [404, 405, 410, 414] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(
                interval_for(status, HOUR),
                MAX_NEGATIVE_INTERVAL,
                "{status}"
            );
            let second = Duration::from_secs(1);
            assert_eq!(interval_for(status, second), second, "{status}");
        }
        for status in [200, 203, 204, 300, 301, 308] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(interval_for(status, HOUR), HOUR, "{status}");
        }
    }
}
