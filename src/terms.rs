//! What a response says of its own freshness, to a shared cache (RFC 9111 §4.2, RFC 5861).

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, header};

use crate::fields::list;

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

/// What the headers say; `None`: nothing.
///
/// Stale it may be served only where that is said (`stale-while-revalidate`, `stale-if-error`), and not where it is forbidden
/// (`no-cache`, `must-revalidate`, `proxy-revalidate`). `s-maxage`, which has the meaning of the latter (RFC 9111 §5.2.2.10), forbids it only
/// to those to whom it is not said: so origins use the two together.
pub(crate) fn said(headers: &HeaderMap) -> Option<Terms> {
    let directives: Vec<(String, String)> = directives(headers).collect();
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
        shared.or_else(|| expires(headers))
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

/// How old it was when it was received, in seconds (RFC 9111 §5.1).
pub(crate) fn age(headers: &HeaderMap) -> u64 {
    let said = headers.get(header::AGE).and_then(|age| age.to_str().ok());
    said.and_then(delta_seconds).unwrap_or(0)
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

/// The directives of Cache-Control: names in lowercase, values without quotes.
pub(crate) fn directives(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    list(headers, &header::CACHE_CONTROL).map(|directive| {
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
}
