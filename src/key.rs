//! Keys: the names of the resources that requests ask for.

use std::borrow::Cow;

use http::Uri;
use sha2::{Digest, Sha256};

/// The parameters of a query that are part of the key.
#[derive(Clone, Debug)]
pub(crate) enum Query {
    All,
    Only(Vec<String>),
}

/// Returns the key of a resource: the path and the query. `None`: the URI has no path of its own
/// (`*`, or an authority alone).
///
/// The query's parameters are sorted by name; parameters of the same name stay in their order. An
/// empty query is dropped. The result borrows a URI that already has this form.
pub(crate) fn of_uri<'a>(uri: &'a Uri, counts: &Query) -> Option<Cow<'a, str>> {
    let whole = uri.path_and_query()?;
    if !whole.path().starts_with('/') {
        return None;
    }
    let query = match (whole.query(), counts) {
        (Some(query), Query::Only(names)) => Cow::Owned(only(query, names)),
        (query, _) => Cow::Borrowed(query.unwrap_or_default()),
    };
    Some(match &*query {
        "" => Cow::Borrowed(whole.path()),
        // The path of `http://host?query` is `/`, but its text has no such character to borrow.
        query
            if is_sorted(query)
                && whole.query() == Some(query)
                && whole.as_str().starts_with('/') =>
        {
            Cow::Borrowed(whole.as_str())
        }
        query => Cow::Owned(format!("{}?{}", whole.path(), sorted(query))),
    })
}

/// Returns the canonical form of a key that a developer wrote, with its query as in [`of_uri`].
pub(crate) fn canonical(key: &str) -> Cow<'_, str> {
    if !key.starts_with('/') {
        return Cow::Borrowed(key);
    }
    // The text after a `#` belongs to a variant.
    let (uri, variant) = key.split_at(key.find('#').unwrap_or(key.len()));
    match uri.split_once('?') {
        None => Cow::Borrowed(key),
        Some((path, "")) => Cow::Owned(format!("{path}{variant}")),
        Some((_, query)) if is_sorted(query) => Cow::Borrowed(key),
        Some((path, query)) => Cow::Owned(format!("{path}?{}{variant}", sorted(query))),
    }
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

/// Returns each parameter unchanged, with its decoded name: `%61=1` and `a=2` have one name.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    query.split('&').map(|raw| {
        let name = raw.split('=').next().unwrap_or_default();
        let decoded = form_urlencoded::parse(name.as_bytes()).next();
        (decoded.unwrap_or_default().0, raw)
    })
}

/// Returns the bytes as lowercase hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

    /// The expected numbers are literals, so that another build or release cannot have others.
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

    #[test]
    fn jitter_is_spread_evenly() {
        let mut tenths = [0; 10];
        for page in 0..10_000 {
            tenths[(unit(&format!("/{page}")) * 9.999) as usize] += 1;
        }
        assert!(
            tenths.iter().all(|count| (800..1200).contains(count)),
            "{tenths:?}"
        );
    }
}
