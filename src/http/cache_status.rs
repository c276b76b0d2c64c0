//! The Cache-Status header (RFC 9211).

use std::fmt;

use http::HeaderName;

use crate::event::Served;

pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The way in which a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// The response was stored. `ttl`: the seconds until the version is stale; negative: the
    /// seconds since then, at most −1 for an invalidated version.
    Hit { ttl: i64 },
    /// The inner service answered.
    Forwarded(Forward),
    /// No version could be served, and no response was available.
    Unavailable,
}

/// A request that went to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// The reason (§2.2): `method`, `bypass`, `miss` or `stale`.
    pub(crate) reason: &'static str,
    /// The response is stored.
    pub(crate) stored: bool,
    /// Another request, which came first, caused the response.
    pub(crate) collapsed: bool,
    /// The reason why the response is not stored (§2.8). The documentation of `RefreshLayer` has a
    /// table of the reasons.
    pub(crate) detail: Option<&'static str>,
}

impl Forward {
    pub(crate) const METHOD: Self = Self::because("method");

    pub(crate) const fn because(reason: &'static str) -> Self {
        Self {
            reason,
            stored: false,
            collapsed: false,
            detail: None,
        }
    }

    pub(crate) const fn bypass(detail: &'static str) -> Self {
        Self::because("bypass").detailed(detail)
    }

    /// Returns true if the request bypasses the cache because of its visitor, so that the response
    /// may be the visitor's own.
    pub(crate) fn is_by_visitor(self) -> bool {
        matches!(self.detail, Some("bypass-if" | "undeclared-extension"))
    }

    pub(crate) const fn detailed(mut self, detail: &'static str) -> Self {
        self.detail = Some(detail);
        self
    }
}

impl Handling {
    /// Returns the counter of the request.
    #[inline]
    pub(crate) fn served(self) -> Served {
        match self {
            Self::Hit { ttl } if ttl < 0 => Served::Stale,
            Self::Hit { .. } => Served::Hit,
            Self::Unavailable => Served::Unavailable,
            Self::Forwarded(Forward {
                reason: "bypass" | "method",
                ..
            }) => Served::Bypass,
            Self::Forwarded(Forward {
                collapsed: true, ..
            }) => Served::Collapsed,
            Self::Forwarded(_) => Served::Generated,
        }
    }
}

/// Perennial's member of the list. Each cache on the way appends its own member (§2).
impl fmt::Display for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Forwarded(forward) = self else {
            return match self {
                Self::Hit { ttl } => write!(f, "perennial; hit; ttl={ttl}"),
                _ => f.write_str("perennial; detail=unavailable"),
            };
        };
        let stored = if forward.stored { "; stored" } else { "" };
        let collapsed = if forward.collapsed { "; collapsed" } else { "" };
        let (because, detail) = match forward.detail {
            Some(detail) => ("; detail=", detail),
            None => ("", ""),
        };
        let why = forward.reason;
        write!(
            f,
            "perennial; fwd={why}{stored}{collapsed}{because}{detail}"
        )
    }
}
