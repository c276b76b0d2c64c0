//! The Cache-Status header (RFC 9211).

use http::{HeaderName, HeaderValue};

use crate::resource::Pass;

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// How a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It was kept, and goes on being fresh for so many seconds; negative: stale for so many.
    Hit { ttl: i64 },
    /// It was generated for this request; `collapsed`: and for another one, that came first.
    Made {
        forward: Forward,
        stored: bool,
        collapsed: bool,
    },
    /// The service answered this request itself.
    Passed(Forward),
    /// There was nothing to give.
    Unavailable,
}

/// The reasons why a request went to the service, and why its response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) why: Why,
    pub(super) detail: Option<Detail>,
}

/// Why a request went to the service (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Only GET and HEAD are kept.
    Method,
    /// The response is neither looked up nor stored.
    Bypass,
    /// There was nothing.
    Miss,
    /// What there was is stale.
    Stale,
}

/// The reason why a response is not stored, in the parameter `detail` (RFC 9211 §2.8).
///
/// The documentation of `RefreshLayer` has a table of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// A request extension that neither the layer nor the site declares.
    UndeclaredExtension,
    /// A function given to `RefreshLayer::bypass_if` returned `true`.
    BypassIf,
    /// The request asks for an upgrade.
    Upgrade,
    /// The request has no key.
    NoKey,
    /// An outer layer generates the same key.
    OuterLayer,
    /// The layer stores no further keys.
    TooManyKeys,
    /// The generator failed.
    Failed,
    /// The key is left to the service.
    Pass(Pass),
}

impl Forward {
    pub(super) const METHOD: Self = Self {
        why: Why::Method,
        detail: None,
    };

    pub(super) fn bypass(detail: Detail) -> Self {
        Why::Bypass.not_stored(detail)
    }

    fn member(self, stored: bool, collapsed: bool) -> String {
        let mut member = format!("perennial; fwd={}", self.why.token());
        if stored {
            member.push_str("; stored");
        }
        if collapsed {
            member.push_str("; collapsed");
        }
        if let Some(detail) = self.detail {
            member.push_str("; detail=");
            member.push_str(detail.token());
        }
        member
    }
}

impl Why {
    /// The request went to the service for this reason, and its response is not stored.
    pub(super) fn not_stored(self, detail: Detail) -> Forward {
        let detail = Some(detail);
        Forward { why: self, detail }
    }

    fn token(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Bypass => "bypass",
            Self::Miss => "miss",
            Self::Stale => "stale",
        }
    }
}

impl Detail {
    fn token(self) -> &'static str {
        match self {
            Self::UndeclaredExtension => "undeclared-extension",
            Self::BypassIf => "bypass-if",
            Self::Upgrade => "upgrade",
            Self::NoKey => "no-key",
            Self::OuterLayer => "outer-layer",
            Self::TooManyKeys => "too-many-keys",
            Self::Failed => "failed",
            Self::Pass(Pass::Private) => "private",
            Self::Pass(Pass::Vary) => "vary",
            Self::Pass(Pass::Stream) => "event-stream",
            Self::Pass(Pass::Status) => "status",
            Self::Pass(Pass::TooLarge) => "too-large",
            Self::Pass(Pass::Purged) => "purged",
            Self::Pass(Pass::ShuttingDown) => "shutting-down",
        }
    }
}

impl How {
    /// Our member of the list, at whose end it stands, as that of each cache on the way does (§2).
    pub(super) fn value(self) -> HeaderValue {
        let member = match self {
            Self::Hit { ttl } => format!("perennial; hit; ttl={ttl}"),
            Self::Made {
                forward,
                stored,
                collapsed,
            } => forward.member(stored, collapsed),
            Self::Passed(forward) => forward.member(false, false),
            Self::Unavailable => "perennial; detail=unavailable".to_owned(),
        };
        // All of it is visible ASCII.
        HeaderValue::try_from(member).unwrap_or(HeaderValue::from_static("perennial"))
    }
}
