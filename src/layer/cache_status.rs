//! The Cache-Status header (RFC 9211).

use http::{HeaderName, HeaderValue};

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
    /// The response is neither looked up nor stored, for this reason.
    Bypass(Option<Detail>),
    /// There was nothing.
    Miss,
    /// What there was is stale.
    Stale,
}

/// The reason for a bypass, in the parameter `detail` (RFC 9211 §2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(dead_code, reason = "the checks that return these follow")]
pub(super) enum Detail {
    /// A request extension that neither the layer nor the site declares.
    UndeclaredExtension,
    /// A function given to `RefreshLayer::bypass_if` returned `true`.
    BypassIf,
}

impl Detail {
    fn token(self) -> &'static str {
        match self {
            Self::UndeclaredExtension => "undeclared-extension",
            Self::BypassIf => "bypass-if",
        }
    }
}

impl Why {
    fn token(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Bypass(_) => "bypass",
            Self::Miss => "miss",
            Self::Stale => "stale",
        }
    }
}

impl How {
    /// Our member of the list, at whose end it stands, as that of each cache on the way does (§2).
    pub(super) fn value(self) -> HeaderValue {
        let member = match self {
            Self::Hit { ttl } => format!("perennial; hit; ttl={ttl}"),
            Self::Made {
                why,
                stored,
                collapsed,
            } => format!(
                "perennial; fwd={}{}{}",
                why.token(),
                if stored { "; stored" } else { "" },
                if collapsed { "; collapsed" } else { "" },
            ),
            Self::Passed(Why::Bypass(Some(detail))) => {
                format!("perennial; fwd=bypass; detail={}", detail.token())
            }
            Self::Passed(why) => format!("perennial; fwd={}", why.token()),
            Self::Unavailable => "perennial; detail=unavailable".to_owned(),
        };
        // All of it is visible ASCII.
        HeaderValue::try_from(member).unwrap_or(HeaderValue::from_static("perennial"))
    }
}
