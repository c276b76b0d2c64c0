//! Conditional and range requests (RFC 9110 §13, §14) on a stored response.
//!
//! The layer makes the validators and answers ranges itself, and no service behind it sees a
//! request's conditions. So it evaluates all of them, as an origin server does.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::http::{coding, entity_tag::is_generated, terms};

/// What the headers of a request ask for, from one pass over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTraits {
    /// There is a condition or a range.
    pub(crate) is_conditional: bool,
    /// The request accepts a content coding.
    pub(crate) accepts_coding: bool,
}

impl RequestTraits {
    #[inline]
    pub(crate) fn of(request: &HeaderMap) -> Self {
        let mut traits = Self::default();
        for name in request.keys() {
            match *name {
                header::ACCEPT_ENCODING => traits.accepts_coding = coding::is_accepted(request),
                header::IF_MATCH
                | header::IF_MODIFIED_SINCE
                | header::IF_NONE_MATCH
                | header::IF_UNMODIFIED_SINCE
                | header::RANGE => traits.is_conditional = true,
                _ => {}
            }
        }
        traits
    }
}

/// The answer to a request that may be conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// The stored response.
    Full,
    /// 206 with these bytes of the body.
    Part(Range<usize>),
    /// 304 Not Modified.
    NotModified,
    /// 412 Precondition Failed.
    Failed,
}

/// The date of the last modification, if the response to this request has one.
#[derive(Clone, Copy)]
pub(crate) enum Modified {
    /// The handler's own date. Conditions with dates are compared with it as RFC 9110 says, by "not later
    /// than".
    Handler(SystemTime),
    /// A date that Perennial has generated. It identifies one version. A client may also send a date from
    /// another source, such as `Date` or its own clock, and such a date says nothing about the version that the
    /// client has. So a condition is met only by exactly the same date, as RFC 9110 §13.1.3 permits.
    Generated(SystemTime),
}

impl Modified {
    /// Returns the date of the handler's header, if it has a valid one.
    pub(crate) fn of_handler(headers: &HeaderMap) -> Option<Self> {
        terms::date(headers, &header::LAST_MODIFIED).map(Self::Handler)
    }

    /// Returns a generated date, in seconds since 1970.
    pub(crate) fn generated(seconds: i64) -> Option<Self> {
        let since = Duration::from_secs(seconds.try_into().ok()?);
        SystemTime::UNIX_EPOCH
            .checked_add(since)
            .map(Self::Generated)
    }
}

/// The stored representation that a request selects (RFC 9110 §3.2), with everything that conditions and ranges
/// need.
pub(crate) struct Selected<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    /// The length of the content, in bytes.
    pub(crate) length: usize,
    pub(crate) modified: Option<Modified>,
}

/// Evaluates the preconditions of a GET or HEAD, in the order of RFC 9110 §13.2.2.
///
/// Preconditions apply only to a response that would be a success (§13.2.1). A range header is ignored unless
/// it names a single satisfiable range of bytes, as §14.2 permits. It is also ignored if the request has a
/// condition that cannot be evaluated, because the client may mean another version.
///
/// A client that accepts a content coding may have got the page from an outer layer that compresses it. The
/// positions in its range then refer to the compressed bytes. Such a client gets a part only if `If-Range` has
/// a generated tag in its strong form, which such a client never gets together with other bytes
/// (docs/design/0001-outer-layers.md).
pub(crate) fn evaluate(request: &HeaderMap, stored: &Selected<'_>, head: bool) -> Evaluation {
    if !stored.status.is_success() {
        return Evaluation::Full;
    }
    let (tag, modified) = (stored.headers.get(header::ETAG), stored.modified);
    let mut all_evaluated = true;
    if request.contains_key(header::IF_MATCH) {
        if !names(request, &header::IF_MATCH, tag, is_strong_match) {
            return Evaluation::Failed;
        }
    } else if request.contains_key(header::IF_UNMODIFIED_SINCE) {
        match since(request, &header::IF_UNMODIFIED_SINCE, modified) {
            Since::Modified => return Evaluation::Failed,
            Since::Unmodified => {}
            Since::Unknown => all_evaluated = false,
        }
    }
    if request.contains_key(header::IF_NONE_MATCH) {
        if names(request, &header::IF_NONE_MATCH, tag, is_weak_match) {
            return Evaluation::NotModified;
        }
    } else if request.contains_key(header::IF_MODIFIED_SINCE) {
        match since(request, &header::IF_MODIFIED_SINCE, modified) {
            Since::Modified => {}
            Since::Unmodified => return Evaluation::NotModified,
            Since::Unknown => all_evaluated = false,
        }
    }
    // §14.2: a Range is ignored for methods other than GET and for responses other than 200, and if
    // the response refuses ranges (§14.3).
    let refuses = stored
        .headers
        .get(header::ACCEPT_RANGES)
        .is_some_and(|unit| unit == "none");
    if head || stored.status != StatusCode::OK || refuses || !all_evaluated {
        return Evaluation::Full;
    }
    // An outer layer may have compressed the copy that this client has, without changing its tag.
    // Only if the client names the strong form of a generated tag is it certain that it has the
    // stored bytes, because outer layers weaken that tag.
    let may_be_coded = coding::is_accepted(request)
        && !stored.headers.contains_key(header::CONTENT_ENCODING)
        && !(request.contains_key(header::IF_RANGE) && tag.is_some_and(is_generated));
    // A date never matches: whether it is a strong validator depends on when the client received it
    // (§8.8.2.2), which the request does not say. A weak tag never matches either (§8.8.3.2).
    let applies = !may_be_coded
        && match (request.get(header::IF_RANGE), tag) {
            (Some(condition), Some(tag)) => is_strong_match(condition.as_bytes(), tag.as_bytes()),
            (Some(_), None) => false,
            (None, _) => true,
        };
    let part = single_range(request, stored.length).filter(|_| applies);
    part.map_or(Evaluation::Full, Evaluation::Part)
}

/// Whether the page has been modified since the date in a condition.
enum Since {
    Modified,
    Unmodified,
    /// The condition has no valid date, or the page has none to compare.
    Unknown,
}

fn since(request: &HeaderMap, condition: &HeaderName, modified: Option<Modified>) -> Since {
    let (Some(since), Some(modified)) = (terms::date(request, condition), modified) else {
        return Since::Unknown;
    };
    match modified {
        Modified::Handler(modified) if modified <= since => Since::Unmodified,
        Modified::Generated(modified) if modified == since => Since::Unmodified,
        Modified::Generated(modified) if modified < since => Since::Unknown,
        Modified::Handler(_) | Modified::Generated(_) => Since::Modified,
    }
}

/// Returns true if a condition names the stored response's entity tag, or is `*` (§13.1.1, §13.1.2). A
/// malformed tag is compared as a string.
fn names(
    request: &HeaderMap,
    condition: &HeaderName,
    tag: Option<&HeaderValue>,
    matches: fn(&[u8], &[u8]) -> bool,
) -> bool {
    let tag = tag.map(HeaderValue::as_bytes);
    let lines = request.get_all(condition).iter();
    lines.map(HeaderValue::as_bytes).any(|mut rest| {
        let text = rest.trim_ascii();
        if text == b"*" {
            return true;
        }
        let Some(tag) = tag else {
            return false;
        };
        if text == tag && !is_tag(tag) {
            return true;
        }
        // If the rest of a line is malformed, it names no tag.
        while let Some((first, more)) = first_tag(rest) {
            if matches(first, tag) {
                return true;
            }
            rest = more;
        }
        false
    })
}

/// Compares two entity tags by the weak comparison (§8.8.3.2).
fn is_weak_match(one: &[u8], other: &[u8]) -> bool {
    is_tag(other) && opaque(one) == opaque(other)
}

/// Returns an entity tag without its `W/`.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Compares two entity tags by the strong comparison (§8.8.3.2).
fn is_strong_match(one: &[u8], other: &[u8]) -> bool {
    is_tag(other) && one == other && !one.starts_with(b"W/")
}

fn is_tag(text: &[u8]) -> bool {
    first_tag(text).is_some_and(|(tag, rest)| tag.len() == text.len() && rest.is_empty())
}

/// Returns the first entity tag of a list, and the rest of the list.
fn first_tag(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_between = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let start = list.iter().position(|byte| !is_between(byte))?;
    let tag = &list[start..];
    let weak = if tag.starts_with(b"W/") { 2 } else { 0 };
    let end = tag[weak..]
        .strip_prefix(b"\"")?
        .iter()
        .position(|&byte| byte == b'"')?;
    Some(tag.split_at(weak + 2 + end))
}

/// Returns the only range of a request as positions in a body of this length (§14.1.2). `None` means that
/// there is none, more than one, or none that is satisfiable.
fn single_range(request: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let mut lines = request.get_all(header::RANGE).into_iter();
    let (line, None) = (lines.next()?, lines.next()) else {
        return None;
    };
    let (unit, range) = line.to_str().ok()?.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that is too large is beyond the end.
        is_number.then(|| text.parse().unwrap_or(usize::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        (None, Some(suffix)) if first.is_empty() => length.saturating_sub(suffix)..length,
        _ => return None,
    };
    (unit.eq_ignore_ascii_case("bytes") && range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Response;

    use super::*;

    const MODIFIED: &str = "Sat, 29 Oct 1994 19:43:31 GMT";
    const BEFORE: &str = "Sat, 29 Oct 1994 19:43:30 GMT";
    const AFTER: &str = "Sat, 29 Oct 1994 19:43:32 GMT";

    /// Evaluates the conditions of a request for this response.
    fn evaluated(
        request: &HeaderMap,
        stored: &Response<Bytes>,
        generated: Option<i64>,
        head: bool,
    ) -> Evaluation {
        let handlers = Modified::of_handler(stored.headers());
        let selected = Selected {
            status: stored.status(),
            headers: stored.headers(),
            length: stored.body().len(),
            modified: handlers.or(generated.and_then(Modified::generated)),
        };
        evaluate(request, &selected, head)
    }

    fn outcome(head: bool, request: &[(&str, &str)]) -> Evaluation {
        outcome_of(StatusCode::OK, head, request)
    }

    fn outcome_of(status: StatusCode, head: bool, request: &[(&str, &str)]) -> Evaluation {
        let mut stored = Response::new(Bytes::from_static(b"0123456789"));
        *stored.status_mut() = status;
        let headers = stored.headers_mut();
        headers.insert("etag", "\"v1\"".parse().expect("a value"));
        headers.insert("last-modified", MODIFIED.parse().expect("a value"));
        evaluated(&map(request), &stored, None, head)
    }

    fn map(request: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in request {
            let name: HeaderName = name.parse().expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        map
    }

    fn date(text: &str) -> SystemTime {
        httpdate::parse_http_date(text).expect("a date")
    }

    /// RFC 9110 §13.1 and §13.2.2.
    #[test]
    fn preconditions_are_evaluated_in_their_order() {
        use Evaluation::{Failed, Full, NotModified};

        let table: &[(&[(&str, &str)], Evaluation)] = &[
            (&[], Full),
            (&[("accept", "*/*")], Full),
            (&[("if-none-match", "\"v1\"")], NotModified),
            (&[("if-none-match", "W/\"v1\"")], NotModified),
            (&[("if-none-match", "\"v0\", \"v1\"")], NotModified),
            (
                &[("if-none-match", "\"v0\""), ("if-none-match", "\"v1\"")],
                NotModified,
            ),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"v2\"")], Full),
            (&[("if-none-match", "v1")], Full),
            // The value is not a list of entity tags.
            (&[("if-none-match", "\"v 1\"")], Full),
            (&[("if-none-match", "\"a\" b \"v1\"")], Full),
            (&[("if-none-match", "\"a"), ("if-none-match", "b\"")], Full),
            (&[("if-none-match", "\"v1\", \"")], NotModified),
            (&[("if-none-match", "\"a,\", ,W/\"v1\",")], NotModified),
            (&[("if-none-match", "\"a, \"v1\"")], Full),
            (&[("if-none-match", "w/\"v1\"")], Full),
            (&[("if-none-match", "\"v1")], Full),
            (&[("if-modified-since", MODIFIED)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", BEFORE)], Full),
            (&[("if-modified-since", "yesterday")], Full),
            // A date is ignored beside a tag.
            (
                &[("if-none-match", "\"v2\""), ("if-modified-since", AFTER)],
                Full,
            ),
            (&[("if-match", "\"v1\"")], Full),
            (&[("if-match", "\"v0\", \"v1\"")], Full),
            (&[("if-match", "*")], Full),
            (&[("if-match", "\"v2\"")], Failed),
            // The strong comparison.
            (&[("if-match", "W/\"v1\"")], Failed),
            (&[("if-match", "v1")], Failed),
            (&[("if-match", "")], Failed),
            (&[("if-unmodified-since", MODIFIED)], Full),
            (&[("if-unmodified-since", AFTER)], Full),
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", "yesterday")], Full),
            (
                &[("if-match", "\"v1\""), ("if-unmodified-since", BEFORE)],
                Full,
            ),
            (
                &[("if-match", "\"v2\""), ("if-none-match", "\"v1\"")],
                Failed,
            ),
            (
                &[("if-match", "\"v1\""), ("if-none-match", "\"v1\"")],
                NotModified,
            ),
            (
                &[
                    ("if-unmodified-since", BEFORE),
                    ("if-modified-since", AFTER),
                ],
                Failed,
            ),
            (
                &[("if-none-match", "\"v1\""), ("if-modified-since", BEFORE)],
                NotModified,
            ),
        ];
        for (request, expected) in table {
            for head in [false, true] {
                assert_eq!(outcome(head, request), *expected, "{request:?}");
            }
        }
    }

    /// RFC 9110 §13.2.1.
    #[test]
    fn preconditions_count_for_what_would_be_a_success_and_ranges_for_a_200() {
        let table = [
            (("if-none-match", "\"v1\""), Evaluation::NotModified),
            (("range", "bytes=0-4"), Evaluation::Full),
        ];
        for (header, expected) in table {
            assert_eq!(
                outcome_of(StatusCode::NON_AUTHORITATIVE_INFORMATION, false, &[header]),
                expected
            );
            assert_eq!(
                outcome_of(StatusCode::NOT_FOUND, false, &[header]),
                Evaluation::Full
            );
        }
    }

    /// RFC 9110 §14.1.2 and §13.1.5.
    #[test]
    fn a_single_satisfiable_range_is_a_part_and_all_else_is_the_whole() {
        let part = |first: usize, end: usize| Evaluation::Part(first..end);
        let whole = Evaluation::Full;
        let table = [
            ("bytes=0-4", part(0, 5)),
            ("bytes=3-3", part(3, 4)),
            ("bytes=5-", part(5, 10)),
            ("bytes=-3", part(7, 10)),
            ("bytes=8-99", part(8, 10)),
            ("bytes=8-18446744073709551615", part(8, 10)),
            ("bytes=10-", whole.clone()),
            ("bytes=4-3", whole.clone()),
            ("bytes=-0", whole.clone()),
            ("bytes=-", whole.clone()),
            ("bytes=+1-2", whole.clone()),
            ("bytes=1", whole.clone()),
            ("bytes=-99", part(0, 10)),
            ("bytes=99999999999999999999-", whole.clone()),
            ("Bytes=1-2", part(1, 3)),
            ("bytes=0-1,3-4", whole.clone()),
            ("bytes=x", whole.clone()),
            ("lines=0-4", whole.clone()),
        ];
        for (range, expected) in table {
            assert_eq!(outcome(false, &[("range", range)]), expected, "{range}");
            assert_eq!(outcome(true, &[("range", range)]), whole, "HEAD {range}");
        }
        for (condition, expected) in [
            ("\"v1\"", part(0, 5)),
            ("\"v2\"", whole.clone()),
            ("W/\"v1\"", whole.clone()),
            (MODIFIED, whole.clone()),
            ("nonsense", whole.clone()),
        ] {
            let request = [("range", "bytes=0-4"), ("if-range", condition)];
            assert_eq!(outcome(false, &request), expected, "{condition}");
        }
        // Two versions may have one weak tag.
        let mut weak = Response::new(Bytes::from_static(b"0123456789"));
        let tag = HeaderValue::from_static("W/\"v1\"");
        weak.headers_mut().insert(header::ETAG, tag.clone());
        let range = HeaderValue::from_static("bytes=0-4");
        let request = HeaderMap::from_iter([(header::RANGE, range), (header::IF_RANGE, tag)]);
        assert_eq!(evaluated(&request, &weak, None, false), whole);
        let fresh = [("range", "bytes=0-4"), ("if-none-match", "\"v1\"")];
        assert_eq!(outcome(false, &fresh), Evaluation::NotModified);
        let two = [("range", "bytes=0-4"), ("range", "bytes=5-6")];
        assert_eq!(outcome(false, &two), whole);
    }

    #[test]
    fn a_part_is_given_only_of_the_version_that_the_conditions_name() {
        use Evaluation::{Failed, Full, NotModified, Part};

        let range = ("range", "bytes=5-9");
        for (condition, expected) in [
            (("if-match", "\"v1\""), Part(5..10)),
            (("if-match", "\"v2\""), Failed),
            (("if-unmodified-since", MODIFIED), Part(5..10)),
            (("if-unmodified-since", BEFORE), Failed),
            (("if-unmodified-since", "yesterday"), Full),
            (("if-modified-since", BEFORE), Part(5..10)),
            (("if-modified-since", AFTER), NotModified),
            (("if-modified-since", "yesterday"), Full),
            // An outer layer may have compressed what this client has.
            (("accept-encoding", "gzip"), Full),
            (("accept-encoding", "identity"), Part(5..10)),
        ] {
            assert_eq!(
                outcome(false, &[range, condition]),
                expected,
                "{condition:?}"
            );
        }
        // An outer layer may have compressed the page and kept the handler's own entity tag.
        let coded = ("accept-encoding", "gzip");
        let own = ("if-range", "\"v1\"");
        assert_eq!(outcome(false, &[range, coded, own]), Full);
        // Clients that accept a coding never get the strong form of a generated tag.
        let tag = "\"p-0123456789abcdef0123456789abcdef\"";
        let mut generated = Response::new(Bytes::from_static(b"0123456789"));
        let headers = generated.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_static(tag));
        let request = map(&[range, coded, ("if-range", tag)]);
        assert_eq!(evaluated(&request, &generated, None, false), Part(5..10));
        // No layer compresses what has a coding.
        let mut encoded = Response::new(Bytes::from_static(b"0123456789"));
        let headers = encoded.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_static("\"v1\""));
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
        let request = map(&[range, coded, own]);
        assert_eq!(evaluated(&request, &encoded, None, false), Part(5..10));
        // If the page has no entity tag, an empty condition matches nothing.
        let untagged = Response::new(Bytes::from_static(b"0123456789"));
        for (condition, expected) in [("if-none-match", Full), ("if-match", Failed)] {
            let request = map(&[(condition, "")]);
            assert_eq!(evaluated(&request, &untagged, None, false), expected);
        }
    }

    /// RFC 9110 §13.1.3: a server may choose to honour exact dates only.
    #[test]
    fn a_generated_date_matches_itself_alone() {
        use Evaluation::{Failed, Full, NotModified, Part};

        let stored = Response::new(Bytes::from_static(b"0123456789"));
        let outcome = |generated, condition| {
            let request = map(&[("range", "bytes=0-4"), condition]);
            evaluated(&request, &stored, generated, false)
        };
        let modified = date(MODIFIED).duration_since(SystemTime::UNIX_EPOCH);
        let modified = Some(modified.expect("is later").as_secs() as i64);
        for (condition, expected) in [
            (("if-modified-since", MODIFIED), NotModified),
            (("if-modified-since", AFTER), Full),
            (("if-modified-since", BEFORE), Part(0..5)),
            (("if-unmodified-since", MODIFIED), Part(0..5)),
            (("if-unmodified-since", AFTER), Full),
            (("if-unmodified-since", BEFORE), Failed),
        ] {
            assert_eq!(outcome(modified, condition), expected, "{condition:?}");
            // A version that is less than a second old is served without `Last-Modified`.
            assert_eq!(outcome(None, condition), Full, "{condition:?}");
        }
    }
}
