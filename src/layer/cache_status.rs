//! The Cache-Status header (RFC 9211).

use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// How a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It was kept, and goes on being fresh for so many seconds; negative: stale for so many.
    Hit { ttl: i64 },
    /// It was generated for this request; `collapsed`: and for another one, that came first.
    Made {
        why: Why,
        stored: bool,
        collapsed: bool,
    },
    /// The service answered this request itself.
    Passed(Why),
    /// There was nothing to give.
    Unavailable,
}

/// Why a request went to the service (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Only GET and HEAD are kept.
    Method,
    /// What it asks for is not kept.
    Bypass,
    /// There was nothing.
    Miss,
    /// What there was is stale.
    Stale,
}

impl Why {
    fn token(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Bypass => "bypass",
            Self::Miss => "miss",
            Self::Stale => "stale",
        }
    }
}

/// Adds our member at the end of the list, as each cache on the way does (§2).
pub(super) fn append(headers: &mut HeaderMap, how: How) {
    let member = match how {
        How::Hit { ttl } => format!("perennial; hit; ttl={ttl}"),
        How::Made {
            why,
            stored,
            collapsed,
        } => format!(
            "perennial; fwd={}{}{}",
            why.token(),
            if stored { "; stored" } else { "" },
            if collapsed { "; collapsed" } else { "" },
        ),
        How::Passed(why) => format!("perennial; fwd={}", why.token()),
        How::Unavailable => "perennial; detail=unavailable".to_owned(),
    };
    if let Ok(member) = HeaderValue::try_from(member) {
        headers.append(CACHE_STATUS, member);
    }
}
