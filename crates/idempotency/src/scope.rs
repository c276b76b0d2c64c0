//! Tells whose `Idempotency-Key` a request has. Two callers may send the same key, but never see each
//! other's responses.

/// The user to whom an `Idempotency-Key` belongs. The same key in two scopes stands for two requests, so no
/// user gets the response to another user's request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub(super) String);

impl Scope {
    /// Returns the scope of a user, by an identity that an outer layer has verified. The identity is stored
    /// and logged.
    pub fn of(user: impl Into<String>) -> Self {
        Self(format!("user:{}", user.into()))
    }

    /// Returns the scope that all callers share, for routes without users.
    ///
    /// **A caller who knows a key of this scope and repeats the request gets the stored response.**
    pub fn public() -> Self {
        Self("public".to_owned())
    }
}
