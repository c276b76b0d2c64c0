//! The known extensions of a request, and those that a generator sees.

use std::{
    any::{TypeId, type_name},
    fmt::{self, Write},
    sync::LazyLock,
};

use http::Extensions;
use hyper::upgrade::OnUpgrade;

use super::request::Generating;
#[cfg(feature = "axum")]
use super::routing::Routing;
use crate::extensions::Fence;

/// The extensions that a layer knows: the router's, the server's, Perennial's own, and those that
/// the site or the layer has declared.
///
/// `http::Extensions` can be counted, but not listed by type. A request with as many extensions as
/// known ones has no unknown extension. Each type is in the list once: a type that counted twice
/// would hide an unknown one.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    types: Vec<Declaration>,
    #[cfg(feature = "axum")]
    routing: &'static Routing,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Declaration {
    id: TypeId,
    pub(super) name: &'static str,
    is_in: fn(&Extensions) -> bool,
    remove: fn(&mut Extensions),
    /// The generator sees the extension.
    shared: bool,
}

impl Declaration {
    pub(super) fn new<T: Clone + Send + Sync + 'static>(shared: bool) -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
            is_in: |extensions| extensions.get::<T>().is_some(),
            remove: |extensions| drop(extensions.remove::<T>()),
            shared,
        }
    }
}

/// The types that each layer knows without a declaration; the most frequent ones first.
pub(super) static KNOWN: LazyLock<Vec<Declaration>> = LazyLock::new(|| {
    vec![
        #[cfg(feature = "axum")]
        Declaration::new::<axum::extract::OriginalUri>(true),
        #[cfg(feature = "axum")]
        Declaration::new::<axum::extract::MatchedPath>(true),
        #[cfg(feature = "axum")]
        Declaration::new::<axum::extract::NestedPath>(true),
        #[cfg(feature = "axum")]
        Declaration::new::<axum::extract::ConnectInfo<std::net::SocketAddr>>(false),
        // hyper adds this type to a GET that offers h2c.
        Declaration::new::<OnUpgrade>(false),
        Declaration::new::<Generating>(false),
        Declaration::new::<Fence>(false),
    ]
});

impl Default for Declared {
    fn default() -> Self {
        Self {
            types: KNOWN.clone(),
            #[cfg(feature = "axum")]
            routing: Routing::of_axum(),
        }
    }
}

impl Declared {
    /// Declares a type; a later declaration of the same type replaces an earlier one.
    pub(crate) fn declare<T: Clone + Send + Sync + 'static>(&mut self, shared: bool) {
        let declaration = Declaration::new::<T>(shared);
        match self.types.iter_mut().find(|it| it.id == declaration.id) {
            Some(earlier) => *earlier = declaration,
            None => self.types.push(declaration),
        }
    }

    /// Returns true if each extension is known, for the hit path. A request with a `MatchedPath`
    /// counts as having the private extensions that axum's router adds in the same call. See
    /// [`knows_exactly`](Self::knows_exactly).
    pub(super) fn knows(&self, extensions: &Extensions) -> bool {
        let all = extensions.len();
        #[cfg(feature = "axum")]
        let mut known = self.routing.beside_match(extensions);
        #[cfg(not(feature = "axum"))]
        let mut known = 0;
        for declaration in &self.types {
            known += usize::from((declaration.is_in)(extensions));
            if known == all {
                return true;
            }
        }
        self.knows_exactly(extensions)
    }

    /// Returns true if each extension is a known one: nothing is inferred from the presence of
    /// another. Checked before a generator gets the extensions.
    pub(super) fn knows_exactly(&self, extensions: &Extensions) -> bool {
        let named = self.types.iter().filter(|it| (it.is_in)(extensions));
        let named = named.count();
        #[cfg(feature = "axum")]
        let named = named + self.routing.private_in(extensions);
        named == extensions.len()
    }

    /// Removes the extensions that a generator does not see. Returns the names of those that a
    /// handler may miss.
    pub(super) fn hide(&self, extensions: &mut Extensions) -> Vec<&'static str> {
        let mut missed = Vec::new();
        for declaration in self.types.iter().filter(|it| !it.shared) {
            let own = ["perennial::", "hyper::"];
            let is_own = own.iter().any(|own| declaration.name.starts_with(own));
            if !is_own && (declaration.is_in)(extensions) {
                missed.push(declaration.name);
            }
            (declaration.remove)(extensions);
        }
        missed
    }

    /// Returns the names of the unknown types, for the log.
    pub(super) fn unknown(&self, extensions: &Extensions) -> Vec<String> {
        let mut names = names(extensions);
        names.retain(|name| !self.types.iter().any(|it| it.name == name));
        #[cfg(feature = "axum")]
        names.retain(|name| !self.routing.names.contains(name));
        names
    }
}

/// Returns the type names of the extensions. `Debug` of `http::Extensions` writes each name in one
/// piece. If a release of `http` writes `Debug` in another way, the pieces equal no known name, and
/// such requests bypass the cache.
pub(super) fn names(extensions: &Extensions) -> Vec<String> {
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            if !matches!(piece, "{" | ", " | "}") {
                self.0.push(piece.to_owned());
            }
            Ok(())
        }
    }

    let mut pieces = Pieces(Vec::new());
    // Writing to memory never fails.
    let _ = write!(pieces, "{extensions:?}");
    pieces.0
}
