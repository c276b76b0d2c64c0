//! The resources that a request by an unsafe method has changed (RFC 9111 §4.4).

use http::{HeaderMap, Uri, header, request::Parts, uri::Authority};
use perennial_store::http_util::host;

use crate::{cache::Target, layer::refresh::keying::Key};

/// The host that a request names, or `None` for an HTTP/1.0 request that names none.
pub(in crate::layer) struct RequestHost(Option<Authority>);

impl RequestHost {
    pub(in crate::layer) fn of(parts: &Parts) -> Self {
        let host = host(&parts.uri, &parts.headers);
        Self(host.and_then(|host| Authority::try_from(&*host).ok()))
    }

    /// Returns the names of the resources in `Location` and `Content-Location`, if they have the
    /// request's host. Other hosts' resources are not this site's.
    pub(in crate::layer) fn names_in(&self, headers: &HeaderMap, key: &Key) -> Vec<String> {
        let fields = [header::LOCATION, header::CONTENT_LOCATION];
        let names = fields.into_iter().filter_map(|field| {
            let uri = self.same_host_uri(headers.get(field)?.to_str().ok()?)?;
            Target::Key(&key.of_uri(&uri)?).name().ok()
        });
        names.collect()
    }

    /// Parses `reference` if it is a URI or an absolute path on the request's host. A relative reference,
    /// such as `a` or `../b`, is not resolved and yields `None`: clients resolve it against the URL that
    /// they know, which may have another path than the one that the service sees.
    fn same_host_uri(&self, reference: &str) -> Option<Uri> {
        let uri: Uri = if reference.starts_with("//") {
            format!("http:{reference}").parse().ok()?
        } else {
            reference.parse().ok()?
        };
        let default = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            Some(_) => return None,
            None => return reference.starts_with('/').then_some(uri),
        };
        let (request_host, other) = (self.0.as_ref()?, uri.authority()?);
        let port = |of: &Authority| of.port_u16().unwrap_or(default);
        let is_own = request_host.host().eq_ignore_ascii_case(other.host())
            && port(request_host) == port(other);
        is_own.then_some(uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_other_hosts_and_relative_paths_are_left() {
        let request = http::Request::builder().header("host", "Example.com:80");
        let host = RequestHost::of(&request.body(()).expect("a request").into_parts().0);
        for (reference, expected) in [
            ("/books/7", Some("key:/books/7")),
            ("/books?b=2&a=1#c", Some("key:/books?a=1&b=2")),
            ("http://example.com:80/a", Some("key:/a")),
            ("HTTPS://EXAMPLE.com:80", Some("key:/")),
            ("//example.com:80?a", Some("key:/?a")),
            ("//example.com/a", Some("key:/a")),
            ("http://example.com/a", Some("key:/a")),
            ("https://example.com/a", None),
            ("http://example.com:8080/a", None),
            ("http://example.org/a", None),
            ("ftp://example.com:80/a", None),
            ("http://me@example.com:80/a", Some("key:/a")),
            ("mailto:a@b", None),
            ("a", None),
            ("..", None),
            ("?c=d", None),
            ("", None),
            ("/a b", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("location", reference.parse().expect("a value"));
            let names = host.names_in(&headers, &Key::new());
            assert_eq!(names.first().map(String::as_str), expected, "{reference}");
        }
        assert!(host.names_in(&HeaderMap::new(), &Key::new()).is_empty());
    }
}
