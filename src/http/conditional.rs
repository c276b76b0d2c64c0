//! Conditional and range requests (RFC 9110 §13, §14) on a stored response.

use std::ops::{Bound, Range as Span};

use bytes::Bytes;
use headers::{
    ETag, Header, HeaderMapExt, IfMatch, IfModifiedSince, IfNoneMatch, IfRange, IfUnmodifiedSince,
    LastModified, Range,
};
use http::{HeaderMap, HeaderName, Response, StatusCode, header};

/// The answer to a request that may be conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// The stored response.
    Whole,
    /// 206 with these bytes of the body.
    Part(Span<usize>),
    /// 304 Not Modified.
    NotModified,
    /// 412 Precondition Failed.
    PreconditionFailed,
}

/// Evaluates the preconditions of a GET or HEAD in the order of RFC 9110 §13.2.2.
///
/// Preconditions apply only to a response that would be a success (§13.2.1). A range header is
/// ignored unless it names a single satisfiable range of bytes, as §14.2 permits.
pub(crate) fn evaluate(request: &HeaderMap, stored: &Response<Bytes>, head: bool) -> Evaluation {
    if !stored.status().is_success() || !request.keys().any(is_conditional) {
        return Evaluation::Whole;
    }
    if is_revalidation(request, stored) {
        return Evaluation::NotModified;
    }
    let etag = tags::<ETag>(stored.headers());
    let modified = || stored.headers().typed_get::<LastModified>();

    if let Some(condition) = tags::<IfMatch>(request) {
        let passes = |etag| condition.precondition_passes(etag);
        if !condition.is_any() && !etag.as_ref().is_some_and(passes) {
            return Evaluation::PreconditionFailed;
        }
    } else if let (Some(condition), Some(modified)) =
        (request.typed_get::<IfUnmodifiedSince>(), modified())
        && !condition.precondition_passes(modified.into())
    {
        return Evaluation::PreconditionFailed;
    }

    if request.contains_key(header::IF_NONE_MATCH) {
        let condition = tags::<IfNoneMatch>(request);
        if let (Some(condition), Some(etag)) = (condition, &etag)
            && !condition.precondition_passes(etag)
        {
            return Evaluation::NotModified;
        }
    } else if let (Some(condition), Some(modified)) =
        (request.typed_get::<IfModifiedSince>(), modified())
        && !condition.is_modified(modified.into())
    {
        return Evaluation::NotModified;
    }

    // §14.2: a Range is ignored for methods other than GET and for responses other than 200, and if
    // the response refuses ranges (§14.3).
    let ranges = stored.headers().get(header::ACCEPT_RANGES);
    if head || stored.status() != StatusCode::OK || ranges.is_some_and(|unit| unit == "none") {
        return Evaluation::Whole;
    }
    let applies = match tags::<IfRange>(request) {
        // A date never matches: two versions may be from the same second (§13.1.5).
        Some(condition) => !condition.is_modified(etag.as_ref(), None),
        None => !request.contains_key(header::IF_RANGE),
    };
    match single_range(request).filter(|_| applies) {
        Some(range) => {
            part(&range, stored.body().len()).map_or(Evaluation::Whole, Evaluation::Part)
        }
        None => Evaluation::Whole,
    }
}

/// Returns true for the revalidation that browsers send: an `If-None-Match` with the current tag
/// alone. Needs no parser.
fn is_revalidation(request: &HeaderMap, stored: &Response<Bytes>) -> bool {
    let mut conditions = request.iter().filter(|(name, _)| is_conditional(name));
    let (first, more) = (conditions.next(), conditions.next());
    let tag = stored.headers().get(header::ETAG);
    more.is_none()
        && first.is_some_and(|(name, value)| *name == header::IF_NONE_MATCH && Some(value) == tag)
}

/// Returns a header with entity tags. `None`: a tag has a forbidden character (RFC 9110 §8.8.3) or
/// continues on the next line. The parser panics on such input in a debug build.
fn tags<H: Header>(headers: &HeaderMap) -> Option<H> {
    let well_formed = headers.get_all(H::name()).iter().all(|line| {
        let parts: Vec<_> = line.as_bytes().split(|&byte| byte == b'"').collect();
        let mut quoted = parts.iter().copied().skip(1).step_by(2).flatten();
        parts.len() % 2 == 1 && quoted.all(|&byte| byte > b' ' && byte != 0x7f)
    });
    if well_formed {
        headers.typed_get()
    } else {
        None
    }
}

/// Returns the only range of a request. `None`: there is none, or more than one.
fn single_range(request: &HeaderMap) -> Option<Range> {
    let mut lines = request.get_all(header::RANGE).into_iter();
    let line = lines.next()?;
    let single = lines.next().is_none() && !line.as_bytes().contains(&b',');
    request.typed_get().filter(|_| single)
}

/// Returns the range as positions in a body of this length.
fn part(range: &Range, length: usize) -> Option<Span<usize>> {
    let (first, last) = range.satisfiable_ranges(length as u64).next()?;
    let Bound::Included(first) = first else {
        return None;
    };
    let end = match last {
        Bound::Included(last) => last.saturating_add(1).min(length as u64),
        _ => length as u64,
    };
    (first < end).then_some(first as usize..end as usize)
}

fn is_conditional(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::IF_NONE_MATCH
            | header::IF_MODIFIED_SINCE
            | header::RANGE
            | header::IF_MATCH
            | header::IF_UNMODIFIED_SINCE
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
        use Evaluation::{NotModified, PreconditionFailed, Whole};

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
            (&[("if-none-match", "\"v1\", \"\t\"")], Whole),
            (&[("if-none-match", "\"a\" b \"c\"")], Whole),
            (&[("if-match", "W/\"v 1\"")], Whole),
            (&[("if-none-match", "\"a"), ("if-none-match", "b\"")], Whole),
            (&[("if-match", "\"v1\", \"")], Whole),
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
            (&[("if-match", "\"v1\"")], Whole),
            (&[("if-match", "*")], Whole),
            (&[("if-match", "\"v2\"")], PreconditionFailed),
            (&[("if-match", "W/\"v1\"")], PreconditionFailed),
            (&[("if-unmodified-since", MODIFIED)], Whole),
            (&[("if-unmodified-since", BEFORE)], PreconditionFailed),
            (
                &[("if-match", "\"v1\""), ("if-unmodified-since", BEFORE)],
                Whole,
            ),
            (
                &[("if-match", "\"v2\""), ("if-none-match", "\"v1\"")],
                PreconditionFailed,
            ),
            (
                &[("if-match", "\"v1\""), ("if-none-match", "\"v1\"")],
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
            (("if-match", "\"v2\""), Evaluation::PreconditionFailed),
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
        let fresh = [("range", "bytes=0-4"), ("if-none-match", "\"v1\"")];
        assert_eq!(outcome(false, &fresh), Evaluation::NotModified);
        let two = [("range", "bytes=0-4"), ("range", "bytes=5-6")];
        assert_eq!(outcome(false, &two), whole);
    }
}
