//! Conditional and range requests (RFC 9110 §13, §14) on a stored response.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::http::terms;

/// The answer to a request that may be conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// The stored response.
    Whole,
    /// 206 with these bytes of the body.
    Part(Range<usize>),
    /// 304 Not Modified.
    NotModified,
}

/// Evaluates the preconditions of a GET or HEAD that a cache evaluates, in the order of RFC 9110
/// §13.2.2.
///
/// Preconditions apply only to a response that would be a success (§13.2.1). A range header is
/// ignored unless it names a single satisfiable range of bytes, as §14.2 permits.
pub(crate) fn evaluate(request: &HeaderMap, stored: &Response<Bytes>, head: bool) -> Evaluation {
    if !stored.status().is_success() || !request.keys().any(is_conditional) {
        return Evaluation::Whole;
    }
    let own = stored.headers();
    let is_known = match request.contains_key(header::IF_NONE_MATCH) {
        true => names_tag(request, own),
        false => {
            let since = terms::date(request, &header::IF_MODIFIED_SINCE);
            since
                .zip(terms::date(own, &header::LAST_MODIFIED))
                .is_some_and(|(since, modified)| modified <= since)
        }
    };
    if is_known {
        return Evaluation::NotModified;
    }
    // §14.2: a Range is ignored for methods other than GET and for responses other than 200, and if
    // the response refuses ranges (§14.3).
    let refuses = own
        .get(header::ACCEPT_RANGES)
        .is_some_and(|unit| unit == "none");
    if head || stored.status() != StatusCode::OK || refuses {
        return Evaluation::Whole;
    }
    // A date never matches: two versions may be from the same second (§13.1.5). A weak tag never
    // matches either (§8.8.3.2).
    let applies = match request.get(header::IF_RANGE) {
        Some(tag) => is_strong(tag) && own.get(header::ETAG) == Some(tag),
        None => true,
    };
    let part = single_range(request, stored.body().len()).filter(|_| applies);
    part.map_or(Evaluation::Whole, Evaluation::Part)
}

/// Returns true if `If-None-Match` names the stored response's entity tag, by the weak comparison
/// (§13.1.2, §8.8.3.2), or is `*`. A malformed tag is compared as a text.
fn names_tag(request: &HeaderMap, own: &HeaderMap) -> bool {
    let text = own.get(header::ETAG).map(HeaderValue::as_bytes);
    let own = own.get(header::ETAG).and_then(opaque);
    let lines = request.get_all(header::IF_NONE_MATCH).iter();
    lines.map(HeaderValue::as_bytes).any(|mut rest| {
        if rest.trim_ascii() == b"*" || text == Some(rest.trim_ascii()) {
            return text.is_some();
        }
        // A malformed rest of a line names no tag.
        while let Some((tag, more)) = first_tag(rest) {
            if Some(tag) == own {
                return true;
            }
            rest = more;
        }
        false
    })
}

/// Returns the first entity tag of a list without its `W/`, and the rest of the list.
fn first_tag(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_between = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let start = list.iter().position(|byte| !is_between(byte))?;
    let tag = &list[start..];
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    let end = 2 + tag
        .strip_prefix(b"\"")?
        .iter()
        .position(|&byte| byte == b'"')?;
    Some(tag.split_at(end))
}

/// Returns an entity tag without its `W/`.
fn opaque(tag: &HeaderValue) -> Option<&[u8]> {
    let (tag, rest) = first_tag(tag.as_bytes())?;
    rest.is_empty().then_some(tag)
}

fn is_strong(tag: &HeaderValue) -> bool {
    opaque(tag) == Some(tag.as_bytes())
}

/// Returns the only range of a request as positions in a body of this length (§14.1.2). `None`:
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

fn is_conditional(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::IF_NONE_MATCH | header::IF_MODIFIED_SINCE | header::RANGE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODIFIED: &str = "Sat, 29 Oct 1994 19:43:31 GMT";
    const BEFORE: &str = "Sat, 29 Oct 1994 19:43:30 GMT";
    const AFTER: &str = "Sat, 29 Oct 1994 19:43:32 GMT";

    fn outcome(head: bool, request: &[(&str, &str)]) -> Evaluation {
        outcome_of(StatusCode::OK, head, request)
    }

    fn outcome_of(status: StatusCode, head: bool, request: &[(&str, &str)]) -> Evaluation {
        let mut stored = Response::new(Bytes::from_static(b"0123456789"));
        *stored.status_mut() = status;
        let headers = stored.headers_mut();
        headers.insert("etag", "\"v1\"".parse().expect("a value"));
        headers.insert("last-modified", MODIFIED.parse().expect("a value"));
        let mut map = HeaderMap::new();
        for (name, value) in request {
            let name: HeaderName = name.parse().expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        evaluate(&map, &stored, head)
    }

    /// RFC 9110 §13.1 and §13.2.2.
    #[test]
    fn preconditions_are_evaluated_in_their_order() {
        use Evaluation::{NotModified, Whole};

        let table: &[(&[(&str, &str)], Evaluation)] = &[
            (&[], Whole),
            (&[("accept", "*/*")], Whole),
            (&[("if-none-match", "\"v1\"")], NotModified),
            (&[("if-none-match", "W/\"v1\"")], NotModified),
            (&[("if-none-match", "\"v0\", \"v1\"")], NotModified),
            (
                &[("if-none-match", "\"v0\""), ("if-none-match", "\"v1\"")],
                NotModified,
            ),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"v2\"")], Whole),
            (&[("if-none-match", "v1")], Whole),
            // The value is not a list of entity tags.
            (&[("if-none-match", "\"v 1\"")], Whole),
            (&[("if-none-match", "\"a\" b \"v1\"")], Whole),
            (&[("if-none-match", "\"a"), ("if-none-match", "b\"")], Whole),
            (&[("if-none-match", "\"v1\", \"")], NotModified),
            (&[("if-none-match", "\"a,\", ,W/\"v1\",")], NotModified),
            (&[("if-none-match", "\"a, \"v1\"")], Whole),
            (&[("if-none-match", "w/\"v1\"")], Whole),
            (&[("if-none-match", "\"v1")], Whole),
            (&[("if-modified-since", MODIFIED)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", BEFORE)], Whole),
            (&[("if-modified-since", "yesterday")], Whole),
            // A date is ignored beside a tag.
            (
                &[("if-none-match", "\"v2\""), ("if-modified-since", AFTER)],
                Whole,
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
            (("range", "bytes=0-4"), Evaluation::Whole),
        ];
        for (header, expected) in table {
            assert_eq!(
                outcome_of(StatusCode::NON_AUTHORITATIVE_INFORMATION, false, &[header]),
                expected
            );
            assert_eq!(
                outcome_of(StatusCode::NOT_FOUND, false, &[header]),
                Evaluation::Whole
            );
        }
    }

    /// RFC 9110 §14.1.2 and §13.1.5.
    #[test]
    fn a_single_satisfiable_range_is_a_part_and_all_else_is_the_whole() {
        let part = |first: usize, end: usize| Evaluation::Part(first..end);
        let whole = Evaluation::Whole;
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
        assert_eq!(evaluate(&request, &weak, false), whole);
        let fresh = [("range", "bytes=0-4"), ("if-none-match", "\"v1\"")];
        assert_eq!(outcome(false, &fresh), Evaluation::NotModified);
        let two = [("range", "bytes=0-4"), ("range", "bytes=5-6")];
        assert_eq!(outcome(false, &two), whole);
    }
}
