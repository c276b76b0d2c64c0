//! The two numbers that order what processes do: the fencing token of a lease, and the epoch of an
//! invalidation. Each is a type of its own, so that one cannot be passed in place of the other.

use std::{fmt, num::ParseIntError, str::FromStr};

use crate::words;

/// The fencing token of a lease: greater than the token of each earlier lease of the lock.
///
/// A write that stores the fence, and has no effect if a greater one is stored, cannot overwrite a
/// later holder's. `ExclusiveLayer` adds the fence to the request's extensions:
///
/// ```
/// use http::Request;
/// # use perennial_store::Fence;
///
/// async fn upload(request: Request<String>) {
///     let fence = request.extensions().get::<Fence>();
///     // UPDATE album SET photos = …, fence = $fence WHERE id = … AND fence <= $fence
/// }
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Fence(pub i64);

#[doc(hidden)]
impl Fence {
    /// Stands for the fence of a lock or of a version that does not exist. Every real fence is greater.
    pub const NONE: Self = Self(0);

    /// Greater than each fence.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns the smallest fence after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the time at which the lease was acquired, in microseconds since 1970 by the database's clock.
    ///
    /// A new fence is the time of the acquisition. If that would not be greater than the previous fence, the
    /// new fence is the previous one plus one. The result is therefore later than the real time of the
    /// acquisition in two cases: the clock was set back, or the lock was acquired or broken more than once in
    /// one tick of the clock, which is a microsecond, or a millisecond on SQLite.
    pub fn acquired_at(self) -> i64 {
        self.0
    }
}

/// The number of an invalidation: greater than the number of each earlier one, over all processes.
///
/// A version has the latest epoch that its process knew before its generator began: later invalidations
/// apply to the version.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Epoch(pub i64);

#[doc(hidden)]
impl Epoch {
    /// Before each invalidation.
    pub const NONE: Self = Self(0);

    /// After each invalidation.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns the smallest epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

words! {
    /// The reason for the loss of a lease before its release.
    pub enum LockLoss("reason for a loss") {
        /// The lease ended, and no extension has reached the database.
        Expired => "expired",
        /// The database refused the extension: another holder has taken the lock over, the lock was
        /// broken, or the lease has expired by the database's clock.
        TakenOver => "taken-over",
    }
}
