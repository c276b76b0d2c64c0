//! The request extensions that a layer knows. An extension may identify its visitor, so a request with one that
//! nobody has declared bypasses the cache. The extensions of a request cannot be listed by type, so the layer
//! compares two counts: how many extensions there are, and how many of the known types are present.

use std::any::{TypeId, type_name};

use http::Extensions;
use perennial_store::Fence;

#[cfg(feature = "axum")]
use super::routing;
use super::{own_request::OwnRequest, request::Generating, type_names};
use crate::{generation::Generation, layer::Holes};

/// The types of extensions that a layer knows: those of the router and of the server, Perennial's own, and those that
/// the site or the layer has declared.
///
/// No type is in the list twice. [`knows`](Self::knows) counts the extensions of a request that are of a known
/// type, and compares the count with the number of all its extensions. If a type counted twice, an extension of
/// an unknown type would go unnoticed.
#[derive(Clone, Debug)]
pub struct KnownTypes(Vec<KnownType>);

#[derive(Clone, Copy, Debug)]
struct KnownType {
    id: TypeId,
    name: &'static str,
    /// Returns how many of a request's extensions are explained by this type.
    count: fn(&Extensions) -> usize,
    /// Copies the extension into the generator's request, if it is shared.
    share: Option<fn(&Extensions, &mut Extensions)>,
    /// The application has declared the type.
    declared: bool,
}

impl KnownType {
    fn new<T: Clone + Send + Sync + 'static>(shared: bool) -> Self {
        let share: fn(&Extensions, &mut Extensions) = |visitor, generator| {
            // Extensions that the routing adds are already part of the generator's request.
            if let (Some(extension), None) = (visitor.get::<T>(), generator.get::<T>()) {
                generator.insert(extension.clone());
            }
        };
        Self {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
            count: |extensions| usize::from(extensions.get::<T>().is_some()),
            share: shared.then_some(share),
            declared: true,
        }
    }

    fn undeclared<T: Clone + Send + Sync + 'static>() -> Self {
        Self {
            declared: false,
            ..Self::new::<T>(false)
        }
    }
}

impl Default for KnownTypes {
    /// Returns the types that each layer knows without a declaration; the most frequent ones first.
    fn default() -> Self {
        Self(vec![
            #[cfg(feature = "axum")]
            KnownType {
                count: routing::count,
                ..KnownType::undeclared::<axum::extract::OriginalUri>()
            },
            #[cfg(feature = "axum")]
            KnownType::undeclared::<axum::extract::MatchedPath>(),
            #[cfg(feature = "axum")]
            KnownType::undeclared::<axum::extract::NestedPath>(),
            #[cfg(feature = "axum")]
            KnownType::undeclared::<axum::extract::ConnectInfo<std::net::SocketAddr>>(),
            // Tests of an application use this extension of axum's instead of `ConnectInfo`.
            #[cfg(feature = "axum")]
            KnownType::undeclared::<
                axum::extract::connect_info::MockConnectInfo<std::net::SocketAddr>,
            >(),
            // hyper adds this type to a request that offers an upgrade.
            #[cfg(feature = "hyper")]
            KnownType::undeclared::<hyper::upgrade::OnUpgrade>(),
            KnownType::undeclared::<OwnRequest>(),
            KnownType::undeclared::<Generating>(),
            KnownType::undeclared::<Fence>(),
            KnownType::undeclared::<Holes>(),
            KnownType::undeclared::<Generation>(),
        ])
    }
}

/// A tuple of extension types, for
/// [`RefreshLayer::ignore_extensions`](crate::layer::RefreshLayer::ignore_extensions): up to twelve.
///
/// This trait cannot be implemented outside of this crate.
pub trait ExtensionTypes: sealed::ExtensionTypes {}

pub(crate) mod sealed {
    use super::KnownTypes;

    pub trait ExtensionTypes {
        fn ignored_in(known: &mut KnownTypes);
    }
}

macro_rules! extension_types {
    ($($type:ident)*) => {
        impl<$($type: Clone + Send + Sync + 'static),*> sealed::ExtensionTypes for ($($type,)*) {
            fn ignored_in(known: &mut KnownTypes) {
                $(known.declare::<$type>(false);)*
            }
        }
        impl<$($type: Clone + Send + Sync + 'static),*> ExtensionTypes for ($($type,)*) {}
    };
}

extension_types!(A);
extension_types!(A B);
extension_types!(A B C);
extension_types!(A B C D);
extension_types!(A B C D E);
extension_types!(A B C D E F);
extension_types!(A B C D E F G);
extension_types!(A B C D E F G H);
extension_types!(A B C D E F G H I);
extension_types!(A B C D E F G H I J);
extension_types!(A B C D E F G H I J K);
extension_types!(A B C D E F G H I J K L);

impl KnownTypes {
    /// Declares a type; a later declaration of the same type replaces an earlier one.
    pub(crate) fn declare<T: Clone + Send + Sync + 'static>(&mut self, shared: bool) {
        let known = KnownType::new::<T>(shared);
        match self.0.iter_mut().find(|it| it.id == known.id) {
            Some(earlier) => {
                *earlier = KnownType {
                    count: earlier.count,
                    ..known
                }
            }
            None => self.0.push(known),
        }
    }

    /// Returns true if the request has only extensions that are known. If a middleware replaces one of axum's
    /// private extensions with its own, that is not noticed, and its visitor gets the page of all visitors.
    pub(super) fn knows(&self, extensions: &Extensions) -> bool {
        let all = extensions.len();
        let mut known = 0;
        for it in &self.0 {
            known += (it.count)(extensions);
            if known == all {
                return true;
            }
        }
        #[cfg(feature = "axum")]
        return known + routing::count_private(extensions) == all;
        #[cfg(not(feature = "axum"))]
        false
    }

    /// Returns the names of the types in a request that nobody has declared. If each name is known, it
    /// returns all of them: one of the types is then of another release of its crate.
    pub(super) fn undeclared(&self, extensions: &Extensions) -> Vec<String> {
        let known = self.0.iter().map(|it| it.name.to_owned());
        #[cfg(feature = "axum")]
        let known = known.chain(match extensions.get::<axum::extract::OriginalUri>() {
            Some(_) => routing::private_names(),
            None => Vec::new(),
        });
        let known: Vec<_> = known.collect();
        let all = type_names::all(extensions);
        let undeclared = all.iter().filter(|name| !known.contains(name));
        let undeclared: Vec<_> = undeclared.cloned().collect();
        if undeclared.is_empty() {
            all
        } else {
            undeclared
        }
    }

    /// Copies the shared extensions into the generator's request. Returns the names of the ignored
    /// ones, which a handler may miss.
    pub(super) fn share(
        &self,
        visitor: &Extensions,
        generator: &mut Extensions,
    ) -> Vec<&'static str> {
        let mut missed = Vec::new();
        for it in self.0.iter().filter(|it| it.declared) {
            match it.share {
                Some(share) => share(visitor, generator),
                None if (it.count)(visitor) > 0 => missed.push(it.name),
                None => {}
            }
        }
        missed
    }
}
