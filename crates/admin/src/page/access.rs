//! Who may see the status page and who may act. Every handler, but for those of the style sheet and the
//! script, demands one of the two extractors here, so that no page and no action is without a check.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, NestedPath},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};

use super::{Admin, html};

/// The rights of the user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// See all pages and use all buttons. The name is logged with each action.
    Full(String),
    /// See all pages. There are no buttons, and "Explain" is switched off: on a route without a layer, its
    /// request would run the handler.
    ReadOnly(String),
    /// Nothing: each page answers 403.
    Forbidden,
}

impl Access {
    /// Returns full access for the user of this name.
    pub fn full(user: impl Into<String>) -> Self {
        Self::Full(user.into())
    }

    /// Returns read-only access for the user of this name.
    pub fn read_only(user: impl Into<String>) -> Self {
        Self::ReadOnly(user.into())
    }
}

/// A user with the right to see the pages. Every handler requires a `Viewer` or an [`Operator`],
/// but for the style sheet and the script.
pub(crate) struct Viewer {
    pub(crate) user: String,
    pub(crate) can_act: bool,
    /// The path under which the router is nested.
    pub(crate) base: String,
}

/// A user who may change something.
pub(crate) struct Operator(pub(crate) Viewer);

impl FromRequestParts<Arc<Admin>> for Viewer {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        admin: &Arc<Admin>,
    ) -> Result<Self, Self::Rejection> {
        let (user, can_act) = match (admin.access)(parts) {
            Access::Full(user) => (user, true),
            Access::ReadOnly(user) => (user, false),
            Access::Forbidden => return Err(forbidden("You have no access to this page.")),
        };
        let nested = parts.extensions.get::<NestedPath>();
        let base = nested.map_or("", NestedPath::as_str);
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self {
            user,
            can_act,
            base,
        })
    }
}

impl FromRequestParts<Arc<Admin>> for Operator {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        admin: &Arc<Admin>,
    ) -> Result<Self, Self::Rejection> {
        let viewer = Viewer::from_request_parts(parts, admin).await?;
        if viewer.can_act {
            Ok(Self(viewer))
        } else {
            Err(forbidden("You may see the pages, and change nothing."))
        }
    }
}

fn forbidden(why: &str) -> Response {
    (StatusCode::FORBIDDEN, html::message("Forbidden", why)).into_response()
}
