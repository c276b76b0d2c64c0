//! The key of a resource as a string: the path and the query of its URI in one normal form (RFC 3986 §6.2.2),
//! so that two spellings of one URI are one page, and `invalidate("/a?b=1")` finds it.
//!
//! Most URIs are in the normal form already, and are borrowed. Which parts of a request go into the key is
//! decided by `layer/refresh/keying.rs`.

use std::borrow::Cow;

use http::Uri;
use sha2::{Digest, Sha256};

/// The largest size of a key, in bytes. A visitor chooses most of a key, and each stored page, lock and entry
/// in memory has a copy of it.
pub(crate) const MAX_KEY_BYTES: usize = 4 << 10;

/// The parameters of a query that are part of the key.
#[derive(Clone, Debug)]
pub(crate) enum Query {
    All,
    Only(Vec<String>),
    /// The generator sees the query as it was sent.
    Exact,
}

/// Returns the key of a resource: the path and the query. `None` means that the URI has no path of its own
/// (`*`, or an authority alone).
///
/// Percent-encodings that mean the same have one [form](normal). The query's parameters are sorted by name;
/// parameters of the same name stay in their order. An empty query is dropped. The result borrows a URI that
/// already has this form.
pub(crate) fn of_uri<'a>(uri: &'a Uri, counts: &Query) -> Option<Cow<'a, str>> {
    of_request(uri, counts, || false)
}

/// Returns the path and the query that the generator of a request sees, as in `of_uri`, but with
/// the path as it was sent if `is_routed`: a router has chosen the route by that path, and might
/// choose another one for the normal form.
#[inline]
pub(crate) fn of_request<'a>(
    uri: &'a Uri,
    counts: &Query,
    is_routed: impl FnOnce() -> bool,
) -> Option<Cow<'a, str>> {
    let whole = uri.path_and_query()?;
    let path = whole.path();
    if !path.starts_with('/') {
        return None;
    }
    // This is the case of most requests.
    if whole.query().is_none() && is_plain(path) {
        return Some(Cow::Borrowed(path));
    }
    let path = if is_plain(path) || is_routed() {
        Cow::Borrowed(path)
    } else {
        normal(path, Part::Path)
    };
    let sent = whole.query().unwrap_or_default();
    let query = normal(sent, Part::Query);
    let query = match counts {
        Query::Only(names) => Cow::Owned(only(&query, names)),
        Query::All => query,
        Query::Exact => {
            let mark = if sent.is_empty() { "" } else { "?" };
            return Some(Cow::Owned(format!("{path}{mark}{sent}")));
        }
    };
    let is_whole = matches!(path, Cow::Borrowed(_)) && whole.query() == Some(&query);
    Some(match &*query {
        "" => path,
        // The path of `http://host?query` is `/`, but its text has no such character to borrow.
        query if is_sorted(query) && is_whole && whole.as_str().starts_with('/') => {
            Cow::Borrowed(whole.as_str())
        }
        query => Cow::Owned(format!("{path}?{}", sorted(query))),
    })
}

/// Returns the canonical form of a key that a developer wrote, with path and query as in
/// `of_uri`.
pub fn canonical(key: &str) -> Cow<'_, str> {
    if !key.starts_with('/') {
        return Cow::Borrowed(key);
    }
    // The text after a `#` belongs to a variant.
    let (uri, variant) = key.split_at(key.find('#').unwrap_or(key.len()));
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    // No URI has a space.
    let [path, query] = [path, query].map(|part| part.replace(' ', "%20"));
    let path = normal(&path, Part::Path);
    let query = normal(&query, Part::Query);
    let query = sorted(&query);
    let mark = if query.is_empty() { "" } else { "?" };
    Cow::Owned(format!("{path}{mark}{query}{variant}"))
}

/// A part of a URI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Path,
    Query,
}

/// Returns the normal form of a path or a query (RFC 3986 §6.2.2): `%41` is `A`, as the character needs no
/// encoding, and `%c3` is `%C3`. A character outside of ASCII is encoded. In a query, `+` is `%20`, as in HTML
/// forms. A `%` that does not begin an encoding is `%25`. A string that has this form already is borrowed.
pub(crate) fn normal(text: &str, part: Part) -> Cow<'_, str> {
    if is_plain(text) && !(part == Part::Query && text.contains('+')) {
        return Cow::Borrowed(text);
    }
    let mut normal = String::with_capacity(text.len() + 8);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let encoded = match byte {
            b'%' => {
                let mut digits = bytes.clone();
                let mut digit = || char::from(digits.next()?).to_digit(16);
                let value = digit()
                    .zip(digit())
                    .map(|(high, low)| (high << 4 | low) as u8);
                if value.is_some() {
                    bytes = digits;
                }
                // A `%` that begins no encoding is encoded itself. Otherwise `%%300` would become `%00`
                // when the `%30` in it is decoded to `0`.
                value.or(Some(b'%'))
            }
            b'+' if part == Part::Query => Some(b' '),
            byte => (byte >= 0x80).then_some(byte),
        };
        match encoded {
            // Unreserved (§2.3).
            Some(value) if value.is_ascii_alphanumeric() || b"-._~".contains(&value) => {
                normal.push(char::from(value));
            }
            Some(value) => normal.push_str(&format!("%{value:02X}")),
            None => normal.push(char::from(byte)),
        }
    }
    if normal == text {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(normal)
    }
}

/// Returns true for a string of ASCII characters that contains no `%`, so that it has to be neither decoded
/// nor encoded.
fn is_plain(text: &str) -> bool {
    text.is_ascii() && !text.as_bytes().contains(&b'%')
}

/// Returns the parameters with these names.
fn only(query: &str, names: &[String]) -> String {
    joined(parameters(query).filter(|(name, _)| names.iter().any(|it| it == name)))
}

fn is_sorted(query: &str) -> bool {
    parameters(query).is_sorted_by(|a, b| a.0 <= b.0)
}

fn sorted(query: &str) -> String {
    let mut parameters: Vec<_> = parameters(query).collect();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    joined(parameters.into_iter())
}

fn joined<'a>(parameters: impl Iterator<Item = (Cow<'a, str>, &'a str)>) -> String {
    let raw: Vec<_> = parameters.map(|(_, raw)| raw).collect();
    raw.join("&")
}

/// Returns each parameter unchanged, with its decoded name: `%61=1` and `a=2` have the same name.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    query.split('&').map(|raw| {
        let name = raw.split('=').next().unwrap_or_default();
        let decoded = form_urlencoded::parse(name.as_bytes()).next();
        (decoded.unwrap_or_default().0, raw)
    })
}

/// Returns a number from 0 to 1 that depends on the key alone, for the jitter: the same in every
/// process, build and release.
pub(crate) fn unit(key: &str) -> f64 {
    let digest = Sha256::digest(key);
    let [a, b, c, d, ..] = digest.0;
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(uri: &str) -> String {
        let uri: Uri = uri.parse().expect("a URI");
        of_uri(&uri, &Query::All).expect("has a path").into_owned()
    }

    #[test]
    fn a_canonical_uri_is_borrowed() {
        for uri in ["/", "/a/b", "/a?b", "/a?b=1&c=2", "/a?b=2&b=1"] {
            let uri: Uri = uri.parse().expect("a URI");
            assert!(
                matches!(of_uri(&uri, &Query::All), Some(Cow::Borrowed(_))),
                "{uri}"
            );
        }
    }

    #[test]
    fn encodings_that_mean_the_same_have_one_key() {
        for (written, normal) in [
            ("/%7Euser/%41", "/~user/A"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            // Reserved characters mean something else when they are encoded.
            ("/a%2fb", "/a%2Fb"),
            ("/a%3Fb", "/a%3Fb"),
            ("/a+b", "/a+b"),
            ("/a%2Bb", "/a%2Bb"),
            ("/?q=a+b", "/?q=a%20b"),
            ("/?q=a%20b", "/?q=a%20b"),
            ("/?q=a%2bb", "/?q=a%2Bb"),
            ("/?b=%61&%61=b", "/?a=b&b=a"),
            // These are no encodings.
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("/%%300", "/%2500"),
        ] {
            assert_eq!(key(written), normal, "{written}");
            assert_eq!(super::canonical(written), normal, "{written}");
            assert_eq!(key(normal), normal, "{written}");
        }
        assert_eq!(
            super::canonical("/caf\u{e9}?q=\u{e9}"),
            "/caf%C3%A9?q=%C3%A9"
        );
    }

    proptest! {
        #[test]
        fn the_normal_form_is_its_own_and_means_the_same(text in "(%[0-9a-fA-F]{2}|[ -~]|\\PC){0,20}") {
            for part in [Part::Path, Part::Query] {
                let normal = normal(&text, part);
                prop_assert!(normal.is_ascii());
                prop_assert!(matches!(super::normal(&normal, part), Cow::Borrowed(_)));
            }
            let decoded = |text: &str| form_urlencoded::parse(text.as_bytes()).into_owned().collect::<Vec<_>>();
            prop_assert_eq!(decoded(&normal(&text, Part::Query)), decoded(&text));
        }
    }

    #[test]
    fn uri_without_a_path_has_no_key() {
        for uri in ["*", "example.com:80"] {
            assert_eq!(
                of_uri(&uri.parse().expect("a URI"), &Query::All),
                None,
                "{uri}"
            );
        }
        assert_eq!(key("http://example.com/a?b=1"), "/a?b=1");
        assert_eq!(key("http://example.com?b=1"), "/?b=1");
        assert_eq!(key("http://example.com"), "/");
    }

    proptest! {
        #[test]
        fn key_has_its_parameters_sorted_by_name(names in proptest::collection::vec("[a-c]", 1..6)) {
            let pairs: Vec<_> = names.iter().enumerate().map(|(value, name)| (name, value)).collect();
            let query = |pairs: &[(&String, usize)]| {
                let raw: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("/?{}", raw.join("&"))
            };
            let mut sorted = pairs.clone();
            sorted.sort_by_key(|(name, _)| *name);
            prop_assert_eq!(key(&query(&pairs)), query(&sorted));
            prop_assert_eq!(key(&key(&query(&pairs))), query(&sorted), "its own key");
        }
    }

    #[test]
    fn a_key_is_written_in_any_order() {
        for (written, canonical) in [
            ("/a?b=2&a=1", "/a?a=1&b=2"),
            ("/a?b=2&a=1#/x?b&a", "/a?a=1&b=2#/x?b&a"),
            ("/a?", "/a"),
            ("/a?#/b", "/a#/b"),
            ("/a?a&b", "/a?a&b"),
            ("/a", "/a"),
            ("side/b?b&a", "side/b?b&a"),
            ("", ""),
        ] {
            assert_eq!(super::canonical(written), canonical, "{written}");
        }
    }

    /// The expected numbers are literals, so the test fails if another build or release computes different
    /// ones.
    #[test]
    fn jitter_is_the_same_in_every_process_and_release() {
        for (key, place) in [
            ("/", 0.540),
            ("/best-sellers", 0.617),
            ("sidebar/top-10", 0.155),
        ] {
            assert!((unit(key) - place).abs() < 0.001, "{key}: {}", unit(key));
        }
    }
}
