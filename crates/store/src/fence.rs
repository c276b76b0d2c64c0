use std::{fmt, num::ParseIntError, str::FromStr};

use crate::words;

/// The fencing token of a lease: greater than the token of each earlier lease of the lock.
///
/// A write that stores the fence, and has no effect if a greater one is stored, cannot overwrite a
/// later holder's. `ExclusiveLayer` adds the fence to the request's extensions:
///
/// ```
/// use http::Request;
/// use perennial_store::Fence;
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
