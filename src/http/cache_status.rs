//! The Cache-Status header (RFC 9211).

use http::{HeaderName, HeaderValue};

use crate::http::fields::ascii;

pub(crate) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// How a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It was stored, and goes on being fresh for so many seconds; negative: stale for so many.
    Hit { ttl: i64 },
    /// The service answered.
    Forwarded(Forward),
    /// There was nothing to give.
    Unavailable,
}

/// A request that went to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// The reason (§2.2): `method`, `bypass`, `miss` or `stale`.
    pub(crate) why: &'static str,
    /// The response is stored.
    pub(crate) stored: bool,
    /// Another request, that came first, had caused the response.
    pub(crate) collapsed: bool,
    /// The reason why the response is not stored (§2.8). The documentation of `RefreshLayer` has a table of the reasons.
    pub(crate) detail: Option<&'static str>,
}

impl Forward {
    pub(crate) const METHOD: Self = Self::because("method");

    pub(crate) const fn because(why: &'static str) -> Self {
        Self {
            why,
            stored: false,
            collapsed: false,
            detail: None,
        }
    }

    pub(crate) const fn bypass(detail: &'static str) -> Self {
        Self::because("bypass").detailed(detail)
    }

    pub(crate) const fn detailed(mut self, detail: &'static str) -> Self {
        self.detail = Some(detail);
        self
    }
}

impl How {
    /// Our member of the list, at whose end it stands, as that of each cache on the way does (§2).
    pub(crate) fn value(self) -> HeaderValue {
        ascii(match self {
            Self::Hit { ttl } => format!("perennial; hit; ttl={ttl}"),
            Self::Forwarded(forward) => {
                let stored = if forward.stored { "; stored" } else { "" };
                let collapsed = if forward.collapsed { "; collapsed" } else { "" };
                let (because, detail) = match forward.detail {
                    Some(detail) => ("; detail=", detail),
                    None => ("", ""),
                };
                let why = forward.why;
                format!("perennial; fwd={why}{stored}{collapsed}{because}{detail}")
            }
            Self::Unavailable => return HeaderValue::from_static("perennial; detail=unavailable"),
        })
    }
}
