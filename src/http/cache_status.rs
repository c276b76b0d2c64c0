//! The Cache-Status header (RFC 9211).

use std::fmt;

use crate::event::{Bypass, Served};

/// The origin of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// The response came from storage. `ttl` is the number of seconds until the version is stale. It is
    /// negative after that, and at most −1 for an invalidated version.
    Hit { ttl: i64 },
    /// The inner service answered.
    Forwarded {
        why: Forward,
        served: Served,
        /// The response is stored.
        stored: bool,
        /// Another request, which came first, caused the response.
        collapsed: bool,
    },
    /// No version could be served, and no response was available.
    Unavailable,
}

/// The reason why a request went to the service (§2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forward {
    Bypass,
    Miss,
    Stale,
}

impl Forward {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Miss => "miss",
            Self::Stale => "stale",
        }
    }
}

impl Handling {
    #[inline]
    pub(crate) fn served(self) -> Served {
        match self {
            Self::Hit { ttl } if ttl < 0 => Served::Stale,
            Self::Hit { .. } => Served::Hit,
            Self::Forwarded { served, .. } => served,
            Self::Unavailable => Served::Unavailable,
        }
    }
}

/// Perennial's member of the list. Each cache on the way appends its own member (§2).
impl fmt::Display for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, served, stored, collapsed) = match *self {
            Self::Hit { ttl } => return write!(f, "perennial; hit; ttl={ttl}"),
            Self::Unavailable => return write!(f, "perennial; detail={}", Served::Unavailable),
            Self::Forwarded {
                served: Served::Bypass(Bypass::Method),
                ..
            } => return f.write_str("perennial; fwd=method"),
            Self::Forwarded {
                why,
                served,
                stored,
                collapsed,
            } => (why, served, stored, collapsed),
        };
        let stored = if stored { "; stored" } else { "" };
        let collapsed = if collapsed { "; collapsed" } else { "" };
        write!(f, "perennial; fwd={}{stored}{collapsed}", why.as_str())?;
        match served {
            Served::Bypass(detail) => write!(f, "; detail={detail}"),
            Served::Failed => write!(f, "; detail={served}"),
            _ => Ok(()),
        }
    }
}
