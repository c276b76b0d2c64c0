//! Warnings about a layer that is probably not used as the application's author meant. Each warning is logged
//! once per layer, and says what to write instead.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// After this many requests with other methods, and not a single GET, the layer warns.
const MANY: u32 = 100;

#[derive(Default)]
pub(super) struct Hints {
    undeclared: AtomicBool,
    response_extensions: AtomicBool,
    private: AtomicBool,
    vary: AtomicBool,
    itself: AtomicBool,
    authorization: AtomicBool,
    cookie: AtomicBool,
    upgrade: AtomicBool,
    differs: AtomicBool,
    too_large: AtomicBool,
    no_get: AtomicBool,
    got: AtomicBool,
    others: AtomicU32,
}

/// Returns the names of types for a message. With an older release of the crate `http`, the names are not
/// known.
fn listed(types: &[String]) -> String {
    match types {
        [] => "unknown, as this release of the crate `http` does not name them: `cargo update -p http`".to_owned(),
        types => types.join(", "),
    }
}

impl Hints {
    /// A request has extensions of these types, which nobody has declared.
    pub(super) fn undeclared(&self, path: &str, types: impl FnOnce() -> Vec<String>) {
        if self.undeclared.swap(true, Relaxed) {
            return;
        }
        tracing::warn!(
            path,
            types = listed(&types()),
            "requests bypass the cache, as a middleware outside of the layer adds extensions of these types, which may identify the visitor \
             (logged once for each layer). For each type T, tell the layer or, for the whole site, the builder: `.ignore_extension::<T>()` \
             if the handler can generate the page without it, `.share_extension::<T>()` if it is equal for all visitors; or let some \
             requests bypass the cache by `.bypass_if(|parts| parts.extensions.get::<T>().is_some())`. If a type is private to its crate, so \
             that your code cannot name it, put the middleware inside of the layer. If the types are axum's own, Perennial's feature `axum` \
             is off, `cargo tree -i axum` shows another axum than 0.8, or a router is the service of a route with a wildcard: nest it"
        );
    }

    /// A response has extensions of these types, which nobody has declared.
    pub(super) fn response_extensions(&self, path: &str, types: &[String]) {
        if self.response_extensions.swap(true, Relaxed) {
            return;
        }
        tracing::warn!(
            path,
            types = listed(types),
            "a response has extensions of these types, and a stored page has none, so it is not stored: an outer middleware may need them, \
             to render a template, say (logged once for each layer). Put the middleware that reads them inside of the layer, or, for each \
             type T that nobody outside needs, declare `.drop_response_extension::<T>()` at the layer or the builder"
        );
    }

    /// A response may not be given to another visitor.
    pub(super) fn private(&self, path: &str) {
        if !self.private.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "a response has `Set-Cookie`, `private` or `no-store`, so the layer gives it to nobody, and this GET has run a second time, \
                 with the visitor's own request (logged once for each layer). Later requests run once. If such a GET changes something, or \
                 counts, let it bypass the cache by `bypass_if`, or put it on a route without the layer"
            );
        }
    }

    /// A response varies by a header that is not in the key.
    pub(super) fn vary(&self, path: &str, field: &str) {
        if self.vary.swap(true, Relaxed) {
            return;
        }
        // The CORS layer of tower-http adds these.
        let cors = [
            "origin",
            "access-control-request-method",
            "access-control-request-headers",
        ];
        let remedy = if cors.iter().any(|it| field.eq_ignore_ascii_case(it)) {
            "Put the CORS layer outside of the layer, as visitors could invent any number of origins".to_owned()
        } else {
            format!(
                "To store a version for each value, add `.key(Key::new().header(…))` for `{field}` to the layer"
            )
        };
        tracing::warn!(
            path,
            "a response has `Vary: {field}`, and the header is not in the key, so the response is not stored (logged once for each layer). \
             {remedy}"
        );
    }

    /// A generator asks for the page of this key, which it is generating itself.
    pub(super) fn waits_for_itself(&self, key: &str) {
        if !self.itself.swap(true, Relaxed) {
            tracing::warn!(
                key,
                "a handler asks for its own page while it generates the page, and would wait for itself: the request is answered by 508 \
                 (logged once for each layer)"
            );
        }
    }

    /// A request with `Authorization` gets the page of all visitors.
    pub(super) fn authorization(&self, path: &str) {
        if !self.authorization.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "a request with an `Authorization` header gets the same page as all visitors, as the handler does not see the header \
                 (logged once for each layer). If the page depends on the header, let these requests bypass the cache: \
                 `.bypass_if(|parts| parts.headers.contains_key(\"authorization\"))`. If not, `.bypass_if(|_| false)` ends this warning"
            );
        }
    }

    /// A request with `Cookie` gets the page of all visitors.
    pub(super) fn cookie(&self, path: &str) {
        if !self.cookie.swap(true, Relaxed) {
            tracing::debug!(
                path,
                "the handler does not see the `Cookie` header, so a request with cookies gets the same page as all visitors (logged \
                 once for each layer). If the page depends on a cookie, see `RefreshLayer::bypass_if`"
            );
        }
    }

    /// In development: the page differs for a request with this header.
    pub(super) fn differs_by_header(&self, path: &str, name: &str) {
        if self.differs.swap(true, Relaxed) {
            return;
        }
        let remedy = match name {
            "cookie" | "authorization" => format!(
                "let such requests bypass the cache by `.bypass_if(|parts| parts.headers.contains_key({name:?}))`, or fill what \
                 differs by a hole"
            ),
            name => format!(
                "add the header to the key, by `.key(Key::new().header(HeaderName::from_static({name:?})))`, after an outer \
                 middleware has reduced its values to a few"
            ),
        };
        tracing::warn!(
            path,
            header = name,
            "this page differs by a header that is not in its key, so everybody gets the page that is made without the header (looked \
             for in development alone; logged once for each layer): {remedy}"
        );
    }

    /// In development: the page differs for a visitor's own request.
    pub(super) fn differs_by_request(&self, path: &str) {
        if !self.differs.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "the handler makes another page for a visitor's own request than for everybody, and no single header is the reason: an \
                 extension that it reads, several headers, or the spelling of the query (looked for in development alone; logged once \
                 for each layer). Name in the key what the page depends on, or let such requests bypass the cache by `bypass_if`"
            );
        }
    }

    /// A response is larger than the site stores.
    pub(super) fn too_large(&self, path: &str, size: &str, limit: usize, setting: &str) {
        if !self.too_large.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "a response has {size}, and {limit} are the most that the site stores, so each request goes to the service (logged once \
                 for each layer). Raise `Builder::{setting}`, or take the layer off the route"
            );
        }
    }

    /// A request for an upgrade gets the stored page.
    pub(super) fn upgrade(&self, path: &str) {
        if !self.upgrade.swap(true, Relaxed) {
            tracing::debug!(
                path,
                "a request for an upgrade gets the stored page, where there is one (logged once for each layer). On a route with both a \
                 page and a WebSocket, let upgrades bypass the cache: `.bypass_if(|parts| parts.headers.contains_key(\"upgrade\"))`"
            );
        }
    }

    /// A request by GET or HEAD.
    pub(super) fn get(&self) {
        if !self.got.load(Relaxed) {
            self.got.store(true, Relaxed);
        }
    }

    /// A request by another method.
    pub(super) fn other_method(&self, path: &str) {
        if self.got.load(Relaxed) || self.others.fetch_add(1, Relaxed) != MANY - 1 {
            return;
        }
        self.warn_no_get(path, "of the first 100 requests none was GET");
    }

    /// The service answered a GET with 405 Method Not Allowed.
    pub(super) fn not_allowed(&self, path: &str) {
        self.warn_no_get(path, "the route answered GET by 405 Method Not Allowed");
    }

    fn warn_no_get(&self, path: &str, why: &str) {
        if !self.no_get.swap(true, Relaxed) {
            tracing::warn!(
                path,
                "the layer does nothing on a route without GET: {why} (logged once for each layer). Responses to GET alone are stored. Put \
                 the layer on a route with `get(\u{2026})`; for a route that changes data, see `Perennial::invalidate_on_success`, `ExclusiveLayer` and \
                 `IdempotencyLayer`"
            );
        }
    }
}
