//! The directives of a response on its own freshness, for a shared cache (RFC 9111 §4.2, RFC 9213, RFC 5861).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sfv::{BareItem, Dictionary, Item, ListEntry, Parser};

use crate::{http::fields::list, timing::NEGATIVE_INTERVAL};

/// How long a version may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// It is fresh for so long.
    pub(crate) interval: Duration,
    /// And then served for so long, while it regrows; `None`: without limit.
    pub(crate) max_stale: Option<Duration>,
    /// Or for so long, when regenerating it fails.
    pub(crate) if_error: Duration,
}

/// The directives for the caches of a site, apart from those of its visitors (RFC 9213 §3.1).
const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// The interval of a policy for a response of this status: for 404, 405, 410 and 414 at most a minute, as what is not there
/// today may be there tomorrow.
pub(crate) fn interval_for(status: StatusCode, interval: Duration) -> Duration {
    match status.as_u16() {
        404 | 405 | 410 | 414 => interval.min(NEGATIVE_INTERVAL),
        _ => interval,
    }
}

/// Returns true if a shared cache may not store the response (RFC 9111 §3).
///
/// With `honours` the targeted field decides alone where there is one (RFC 9213 §2.2), and `must-understand` outdoes `no-store`
/// (RFC 9111 §5.2.2.3), as each status that is stored is understood. Without, any of these directives forbids it. A targeted field
/// that is not valid allows nothing, but its directives forbid all the same: a cache need not store.
pub(crate) fn forbid_storing(headers: &HeaderMap, honours: bool) -> bool {
    let forbid = |directives: &[(String, String)]| {
        let has = |name: &str| directives.iter().any(|(it, _)| it == name);
        // `private="field"` is taken for `private`, as §5.2.2.7 allows.
        has("private") || (has("no-store") && !(honours && has("must-understand")))
    };
    let forbids = |field| forbid(&directives(headers, field).collect::<Vec<_>>());
    match targeted(headers) {
        Some(targeted) => forbid(&targeted) || (!honours && forbids(&header::CACHE_CONTROL)),
        None => forbids(&header::CACHE_CONTROL) || forbids(&CDN_CACHE_CONTROL),
    }
}

/// Returns the terms in the headers; `None`: there are none. A valid `CDN-Cache-Control` takes the place of the other headers.
///
/// Stale it may be served only where that is said (`stale-while-revalidate`, `stale-if-error`), and not where it is forbidden
/// (`no-cache`, `must-revalidate`, `proxy-revalidate`). `s-maxage`, which has the meaning of the latter (RFC 9111 §5.2.2.10), forbids it only
/// to those to whom it is not said: so origins use the two together.
pub(crate) fn said(headers: &HeaderMap) -> Option<Terms> {
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
    // What can't be read is taken for no time at all (§4.2.1).
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
    let allowed = |name| match revalidate.iter().any(|it| find(it).is_some()) {
        true => Duration::ZERO,
        false => seconds(name).unwrap_or_default(),
    };
    Some(Terms {
        interval: lifetime?.saturating_sub(Duration::from_secs(age(headers))),
        max_stale: Some(allowed("stale-while-revalidate")),
        if_error: allowed("stale-if-error"),
    })
}

/// Returns the age of the response when it was received, in seconds: the first member, and zero if that is no number (RFC 9111 §5.1).
pub(crate) fn age(headers: &HeaderMap) -> u64 {
    let first = list(headers, &header::AGE).next();
    first.and_then(|age| delta_seconds(&age)).unwrap_or(0)
}

/// What is too large is as large as can be told apart (RFC 9111 §1.2.2).
fn delta_seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(1 << 31))
}

/// The date in a header.
pub(crate) fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let value = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(value).ok()
}

/// The time from `Date` to `Expires`.
fn expires(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::EXPIRES)?;
    let made = date(headers, &header::DATE).unwrap_or(SystemTime::UNIX_EPOCH);
    // `0` and all else that is no date is in the past (§5.3).
    let until = date(headers, &header::EXPIRES).unwrap_or(SystemTime::UNIX_EPOCH);
    Some(until.duration_since(made).unwrap_or_default())
}

/// The directives of `CDN-Cache-Control`, if it is a valid dictionary (RFC 9651 §3.2) that is not empty, with numbers where
/// numbers belong. Any other is as if it were not there (RFC 9213 §2.1).
fn targeted(headers: &HeaderMap) -> Option<Vec<(String, String)>> {
    const NUMBERS: [&str; 4] = [
        "max-age",
        "s-maxage",
        "stale-while-revalidate",
        "stale-if-error",
    ];
    let lines = headers.get_all(CDN_CACHE_CONTROL).into_iter();
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
            // Of the others nothing is read.
            _ => String::new(),
        };
        directives.push((name, value));
    }
    (!directives.is_empty()).then_some(directives)
}

/// The directives of a field such as Cache-Control: names in lowercase, values without quotes.
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
        // Headers; fresh for, stale while revalidating, stale if error: all in seconds.
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
            // Of several ages the first (§5.1).
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
            // RFC 9213: in place of the others where it is valid, and as if it were not there where it isn't.
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
            let terms = said(&headers).map(|terms| {
                (
                    terms.interval.as_secs(),
                    terms.max_stale.expect("is limited").as_secs(),
                    terms.if_error.as_secs(),
                )
            });
            assert_eq!(terms, expected, "{lines:?}");
        }
    }

    #[test]
    fn either_field_forbids_storing_unless_the_targeted_one_is_honoured() {
        // Cache-Control, CDN-Cache-Control; forbidden where the targeted field is honoured, and where it isn't.
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
            // No dictionaries: names in upper case, blanks around `=`.
            ("max-age=9", "No-Store", true, true),
            ("max-age=9", "PRIVATE, max-age=0", true, true),
            ("max-age=9", "no-store, max-age = 0", true, true),
            ("max-age=9", "Max-Age=0", false, false),
            ("no-store, must-understand", "", false, true),
            ("private, must-understand", "", true, true),
        ];
        for (general, targeted, honoured, otherwise) in table {
            let mut headers = HeaderMap::new();
            for (name, value) in [("cache-control", general), ("cdn-cache-control", targeted)] {
                headers.insert(name, value.parse().expect("a value"));
            }
            let forbidden = [true, false].map(|honours| forbid_storing(&headers, honours));
            assert_eq!(
                forbidden,
                [honoured, otherwise],
                "{general:?}, {targeted:?}"
            );
        }
    }

    #[test]
    fn what_is_not_there_is_so_for_a_minute_at_most() {
        const HOUR: Duration = Duration::from_hours(1);
        for status in [404, 405, 410, 414] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(interval_for(status, HOUR), NEGATIVE_INTERVAL, "{status}");
            let second = Duration::from_secs(1);
            assert_eq!(interval_for(status, second), second, "{status}");
        }
        for status in [200, 203, 204, 300, 301, 308] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(interval_for(status, HOUR), HOUR, "{status}");
        }
    }
}
