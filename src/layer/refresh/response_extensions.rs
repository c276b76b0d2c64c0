//! Extensions of a response: a stored page has none, so a response with one that an outer
//! middleware may need is not stored.

use std::any::{TypeId, type_name};

use http::Extensions;

use super::type_names;
use crate::extensions::{ExpireAfter, RefreshAfter, Tags};

/// Types of other crates that make no difference to a page, so they are dropped.
const KNOWN_RESPONSE_EXTENSIONS: [&str; 7] = [
    // What an outer middleware for metrics or for the log wants to know about the request.
    "axum::extract::matched_path::MatchedPath",
    "axum::extract::nested_path::NestedPath",
    "axum::extract::original_uri::OriginalUri",
    // The connection over which a proxy got the response.
    "hyper_util::client::legacy::connect::http::HttpInfo",
    // The text after the status code in HTTP/1.
    "hyper::ext::h1_reason_phrase::ReasonPhrase",
    "tower_http::follow_redirect::RequestUri",
    // It is in the header, too.
    "tower_http::request_id::RequestId",
];

/// The types of response extensions that the application has declared as dispensable.
#[derive(Clone, Debug, Default)]
pub(crate) struct DroppedTypes(Vec<Dropped>);

#[derive(Clone, Copy, Debug)]
struct Dropped {
    id: TypeId,
    name: &'static str,
    is_in: fn(&Extensions) -> bool,
}

impl Dropped {
    fn new<T: Clone + Send + Sync + 'static>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
            is_in: |extensions| extensions.get::<T>().is_some(),
        }
    }
}

impl DroppedTypes {
    pub(crate) fn declare<T: Clone + Send + Sync + 'static>(&mut self) {
        let dropped = Dropped::new::<T>();
        if !self.0.iter().any(|it| it.id == dropped.id) {
            self.0.push(dropped);
        }
    }

    /// Returns the names of the types in a response that nobody has declared and that the layer does not
    /// know. If there are none, the response can be stored without its extensions.
    pub(super) fn undeclared(&self, extensions: &Extensions) -> Vec<String> {
        let internal = [
            Dropped::new::<Tags>(),
            Dropped::new::<RefreshAfter>(),
            Dropped::new::<ExpireAfter>(),
        ];
        let known = internal
            .iter()
            .chain(&self.0)
            .filter(|it| (it.is_in)(extensions));
        let known: Vec<_> = known.map(|it| it.name).collect();
        if known.len() == extensions.len() {
            return Vec::new();
        }
        let names = type_names::all(extensions);
        if names.is_empty() {
            return vec!["a type that this release of `http` does not name".to_owned()];
        }
        let is_known =
            |name: &str| known.contains(&name) || KNOWN_RESPONSE_EXTENSIONS.contains(&name);
        names.into_iter().filter(|name| !is_known(name)).collect()
    }
}
