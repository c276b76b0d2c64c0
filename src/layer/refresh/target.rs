//! Which resources a request by an unsafe method has changed (RFC 9111 §4.4).

use http::{HeaderMap, HeaderName, Uri, header, request::Parts};

use crate::{
    layer::refresh::{
        keying::Key,
        request::{asked_uri, host},
    },
    resource::Target,
};

/// The URI of such a request, for as long as its response is waited for.
pub(in crate::layer) struct Asked {
    host: Option<Vec<u8>>,
    path_and_query: Option<String>,
}

impl Asked {
    pub(in crate::layer) fn of(parts: &Parts) -> Self {
        let asked = asked_uri(parts).path_and_query();
        Self {
            host: host(&parts.uri, &parts.headers),
            path_and_query: asked.map(|asked| asked.as_str().to_owned()),
        }
    }

    /// The names of what `Location` and `Content-Location` refer to, of the same host: others are not to be trusted with this one's.
    pub(in crate::layer) fn names_in(&self, headers: &HeaderMap, key: &Key) -> Vec<String> {
        let fields = [header::LOCATION, header::CONTENT_LOCATION];
        let names = fields.into_iter().filter_map(|field| {
            let uri: Uri = self.resolve(headers, &field)?.parse().ok()?;
            Target::Key(&key.of_uri(&uri)?).name().ok()
        });
        names.collect()
    }

    /// The path and query of a reference in a header (RFC 3986 §5.2).
    fn resolve(&self, headers: &HeaderMap, field: &HeaderName) -> Option<String> {
        let reference = headers.get(field)?.to_str().ok()?;
        let reference = without_scheme(reference.split('#').next()?)?;
        let (base, _) = split(self.path_and_query.as_deref()?);
        let path_and_query = match authority(reference) {
            Some((authority, rest)) => {
                let same = self.host.as_deref() == Some(authority.to_ascii_lowercase().as_bytes());
                let slash = if rest.starts_with('/') { "" } else { "/" };
                same.then(|| format!("{slash}{rest}"))?
            }
            None if reference.starts_with('/') => reference.to_owned(),
            None if reference.starts_with('?') => format!("{base}{reference}"),
            None if reference.is_empty() => return None,
            None => format!("{}{reference}", &base[..=base.rfind('/')?]),
        };
        let (path, query) = split(&path_and_query);
        Some(format!("{}{query}", without_dots(path)))
    }
}

/// A reference without its scheme. `None`: it is not of HTTP.
fn without_scheme(reference: &str) -> Option<&str> {
    match reference.split_once(':') {
        Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
            let is_http = ["http", "https"]
                .iter()
                .any(|it| scheme.eq_ignore_ascii_case(it));
            (is_http && rest.starts_with("//")).then_some(rest)
        }
        _ => Some(reference),
    }
}

/// The authority of a reference that has one, and what follows it.
fn authority(reference: &str) -> Option<(&str, &str)> {
    let rest = reference.strip_prefix("//")?;
    Some(rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())))
}

/// A path and, from its `?`, a query.
fn split(path_and_query: &str) -> (&str, &str) {
    path_and_query.split_at(path_and_query.find('?').unwrap_or(path_and_query.len()))
}

/// A path without `.` and `..` (RFC 3986 §5.2.4).
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_and_those_to_other_hosts_are_left() {
        let request = http::Request::builder()
            .uri("/books/7/edit?a=b")
            .header("host", "Example.com:80");
        let asked = Asked::of(&request.body(()).expect("a request").into_parts().0);
        for (reference, expected) in [
            ("/books/7", Some("key:/books/7")),
            ("/books?b=2&a=1#c", Some("key:/books?a=1&b=2")),
            ("..", Some("key:/books/")),
            ("../8", Some("key:/books/8")),
            ("./x/../y", Some("key:/books/7/y")),
            ("../../../..", Some("key:/")),
            ("x", Some("key:/books/7/x")),
            ("?c=d", Some("key:/books/7/edit?c=d")),
            ("http://example.com:80/a", Some("key:/a")),
            ("HTTPS://EXAMPLE.com:80", Some("key:/")),
            ("//example.com:80?a", Some("key:/?a")),
            ("//example.com/a", None),
            ("http://example.org/a", None),
            ("ftp://example.com:80/a", None),
            ("http://me@example.com:80/a", None),
            ("mailto:a@b", None),
            ("", None),
            ("/a b", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("location", reference.parse().expect("a value"));
            let names = asked.names_in(&headers, &Key::new());
            assert_eq!(names.first().map(String::as_str), expected, "{reference}");
        }
        assert!(asked.names_in(&HeaderMap::new(), &Key::new()).is_empty());
    }
}
