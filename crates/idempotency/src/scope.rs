//! The user to whom a key belongs.

/// The user to whom an `Idempotency-Key` belongs, for [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// Keys of two scopes are two keys: no user gets the response to another user's request, and two
/// users may choose the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub(super) String);

impl Scope {
    /// Returns the scope of a user, an account or a customer, by an identity that an outer layer has
    /// verified. The identity is stored, and appears in the log.
    pub fn of(user: impl Into<String>) -> Self {
        Self(format!("user:{}", user.into()))
    }

    /// Returns the scope that all callers share, for routes without users.
    ///
    /// **Whoever knows or guesses a key of this scope, and repeats the request with the same path,
    /// query, `Content-Type` and body, gets the stored response.** The keys of a client have to be
    /// random, such as UUIDs, and the response must not be a secret from someone who knows the key
    /// and the request.
    pub fn public() -> Self {
        Self("public".to_owned())
    }
}
