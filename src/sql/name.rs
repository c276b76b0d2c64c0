//! How a name of any length fits a column.

use std::{borrow::Cow, fmt::Write};

use sha2::{Digest, Sha256};

/// The longest name that is stored as it stands.
const PLAIN: usize = 180;
/// How much of a longer one is kept in front of its digest, to be recognised by.
const PREFIX: usize = 128;

/// The name as a column holds it: as it stands up to 180 bytes, else its beginning and its SHA-256.
///
/// Two names never share a column value: no plain one is as long as a digested one.
pub(super) fn bounded(name: &str) -> Cow<'_, str> {
    if name.len() <= PLAIN {
        return Cow::Borrowed(name);
    }
    let prefix = &name[..name.floor_char_boundary(PREFIX)];
    let mut bounded = format!("{prefix}~");
    for byte in Sha256::digest(name) {
        // A string takes whatever is written.
        let _ = write!(bounded, "{byte:02x}");
    }
    Cow::Owned(bounded)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bounded_name_is_short_and_its_own(name in "(\\PC{0,40}|[a-zä]{150,400})") {
            let bounded_name = bounded(&name);
            prop_assert!(bounded_name.len() <= PREFIX + 65);
            prop_assert_eq!(name.len() <= PLAIN, bounded_name == name);
        }
    }

    #[test]
    fn no_plain_name_is_that_of_a_digested_one() {
        let long = "x".repeat(PLAIN + 1);
        let digested = bounded(&long).into_owned();
        assert_ne!(
            bounded(&digested),
            digested,
            "it would be taken for the long one"
        );
        let names: HashSet<_> = (0..500)
            .map(|length| bounded(&"x".repeat(length)).into_owned())
            .collect();
        assert_eq!(names.len(), 500);
    }
}
