//! The name of a lock.

/// What a lock is called: a text, or a list of them.
///
/// A list is joined by `/`, with `/` and `%` in its parts written as `%2F` and `%25`, so that no two lists make one name, whatever the
/// parts are: `["sync", "bookmarks", customer]`.
///
/// ```
/// use perennial::LockName;
///
/// assert_eq!(LockName::from(["sync", "a/b"]).as_str(), "sync/a%2Fb");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockName(String);

impl LockName {
    /// As it is stored, if it is short enough.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn join<T: AsRef<str>>(parts: &[T]) -> Self {
        let parts = parts.iter();
        let parts: Vec<_> = parts
            .map(|part| part.as_ref().replace('%', "%25").replace('/', "%2F"))
            .collect();
        match &*parts {
            // Not that of one empty part.
            [] => Self("%".to_owned()),
            parts => Self(parts.join("/")),
        }
    }
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl From<String> for LockName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl From<&String> for LockName {
    fn from(name: &String) -> Self {
        Self(name.clone())
    }
}

impl<T: AsRef<str>, const N: usize> From<[T; N]> for LockName {
    fn from(parts: [T; N]) -> Self {
        Self::join(&parts)
    }
}

impl<T: AsRef<str>> From<&[T]> for LockName {
    fn from(parts: &[T]) -> Self {
        Self::join(parts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_two_lists_make_one_name(
            a in proptest::collection::vec("[a/%2F5]{0,3}", 0..4),
            b in proptest::collection::vec("[a/%2F5]{0,3}", 0..4),
        ) {
            prop_assert_eq!(LockName::from(&*a) == LockName::from(&*b), a == b);
        }
    }

    #[test]
    fn a_text_is_its_own_name() {
        for name in ["", "a", "a/b%", "%2F"] {
            assert_eq!(LockName::from(name).as_str(), name);
        }
        assert_eq!(LockName::from(["a", "", "b"]).as_str(), "a//b");
        assert_eq!(LockName::from(["x".to_owned()]).as_str(), "x");
    }
}
