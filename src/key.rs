//! Keys: which resource a request asks for, and how a name of any length fits a column.

use std::borrow::Cow;

use http::Uri;
use sha2::{Digest, Sha256};

/// The longest name that is stored as it stands.
const PLAIN: usize = 180;
/// How much of a longer one is kept in front of its digest, to be recognised by.
const PREFIX: usize = 128;

/// The path and the query of a resource: its key.
///
/// The query's parameters are sorted by name, those of the same name keep their order, and an empty query is none. Borrowed
/// from the URI where that is how it was written. `None`: the URI has no path of its own (`*`, or an authority alone).
pub(crate) fn of_uri(uri: &Uri) -> Option<Cow<'_, str>> {
    let whole = uri.path_and_query()?;
    if !whole.path().starts_with('/') {
        return None;
    }
    Some(match whole.query() {
        None => Cow::Borrowed(whole.as_str()),
        Some("") => Cow::Borrowed(whole.path()),
        Some(query) if is_sorted(query) => Cow::Borrowed(whole.as_str()),
        Some(query) => Cow::Owned(format!("{}?{}", whole.path(), sorted(query))),
    })
}

fn is_sorted(query: &str) -> bool {
    parameters(query).is_sorted_by(|a, b| a.0 <= b.0)
}

fn sorted(query: &str) -> String {
    let mut parameters: Vec<_> = parameters(query).collect();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    let raw: Vec<_> = parameters.into_iter().map(|(_, raw)| raw).collect();
    raw.join("&")
}

/// Each parameter as it stands, with its name as the generator will read it: `%61=1` and `a=2` have one name.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    query.split('&').map(|raw| {
        let name = raw.split('=').next().unwrap_or_default();
        let decoded = match form_urlencoded::parse(name.as_bytes()).next() {
            Some((decoded, _)) => decoded,
            None => Cow::Borrowed(""),
        };
        (decoded, raw)
    })
}

/// The name as a column holds it: as it stands up to 180 bytes, else its beginning and its SHA-256.
///
/// Two names never share a column value: no plain one is as long as a digested one.
pub(crate) fn bounded(name: &str) -> Cow<'_, str> {
    if name.len() <= PLAIN {
        return Cow::Borrowed(name);
    }
    let prefix = &name[..name.floor_char_boundary(PREFIX)];
    let mut bounded = format!("{prefix}~");
    for byte in Sha256::digest(name) {
        bounded.push_str(&format!("{byte:02x}"));
    }
    Cow::Owned(bounded)
}

/// The place of a key in a spread, from 0 to 1: the same in every process, build and release.
pub(crate) fn unit(key: &str) -> f64 {
    let digest = Sha256::digest(key);
    let [a, b, c, d, ..] = digest.0;
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}
