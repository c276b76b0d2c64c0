//! The resources that a request by an unsafe method has changed (RFC 9111 §4.4).

use http::{HeaderMap, Uri, header, request::Parts};
use url::Url;

use crate::{
    layer::refresh::{
        keying::Key,
        request::{host, original_uri},
    },
    resource::Target,
};

/// The URI of such a request, for as long as its response is waited for.
pub(in crate::layer) struct RequestUrl(Option<Url>);

impl RequestUrl {
    pub(in crate::layer) fn of(parts: &Parts) -> Self {
        // A request of HTTP/1.0 may have no host.
        let host = host(&parts.uri, &parts.headers).unwrap_or_else(|| b"unknown.invalid".into());
        let (host, path) = (String::from_utf8_lossy(&host), original_uri(parts).path());
        Self(Url::parse(&format!("http://{host}{path}")).ok())
    }

    /// Returns the names of the resources in `Location` and `Content-Location`, if they have the
    /// request's host. Other hosts' resources are not this site's.
    ///
    /// References are resolved as browsers resolve them, since browsers send the following
    /// requests.
    pub(in crate::layer) fn names_in(&self, headers: &HeaderMap, key: &Key) -> Vec<String> {
        let fields = [header::LOCATION, header::CONTENT_LOCATION];
        let names = fields.into_iter().filter_map(|field| {
            let uri = self.resolve(headers.get(field)?.to_str().ok()?)?;
            Target::Key(&key.of_uri(&uri)?).name().ok()
        });
        names.collect()
    }

    fn resolve(&self, reference: &str) -> Option<Uri> {
        let base = self.0.as_ref()?;
        let url = base.join(reference).ok()?;
        // With the reference's scheme, `port()` is `None` for the default port in both URLs.
        let mut own = base.clone();
        own.set_scheme(url.scheme()).ok()?;
        let is_http = matches!(url.scheme(), "http" | "https");
        let is_same_host = url.host() == own.host() && url.port() == own.port();
        let uri = url.as_str().parse().ok()?;
        (is_http && is_same_host).then_some(uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_and_those_to_other_hosts_are_left() {
        let request = http::Request::builder()
            .uri("/books/7/edit?a=b")
            .header("host", "Example.com:80");
        let url = RequestUrl::of(&request.body(()).expect("a request").into_parts().0);
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
            ("HTTPS://EXAMPLE.com", Some("key:/")),
            ("//example.com:80?a", Some("key:/?a")),
            ("//example.com/a", Some("key:/a")),
            ("http://example.com:8080/a", None),
            ("http://example.org/a", None),
            ("ftp://example.com:80/a", None),
            ("http://me@example.com:80/a", Some("key:/a")),
            ("mailto:a@b", None),
            ("", Some("key:/books/7/edit")),
            ("/a b", Some("key:/a%20b")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("location", reference.parse().expect("a value"));
            let names = url.names_in(&headers, &Key::new());
            assert_eq!(names.first().map(String::as_str), expected, "{reference}");
        }
        assert!(url.names_in(&HeaderMap::new(), &Key::new()).is_empty());
    }
}
