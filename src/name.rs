//! How a name of any length fits a column.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::key::hex;

/// The beginning of the names of the locks under which pages and content are generated. The key follows.
pub(crate) const REFRESH: &str = "refresh/";

/// The beginning of the names of the locks that remember what is done once.
pub(crate) const ONCE: &str = "once/";

/// The beginning of the names of the locks under which requests with an `Idempotency-Key` are done, and of the keys of their responses.
pub(crate) const IDEMPOTENCY: &str = "idempotency/";

/// The default beginning of the names of the tables.
pub(crate) const TABLE_PREFIX: &str = "perennial_";

/// The beginnings of the names of Perennial's own locks.
pub(crate) const RESERVED: [&str; 4] = [REFRESH, ONCE, IDEMPOTENCY, "perennial/"];

/// The longest name that is stored as it stands.
const PLAIN: usize = 180;
/// How much of another one is kept in front of its digest, to be recognised by; less is filled up.
const PREFIX: usize = 128;

/// The name as a column holds it: as it stands up to 180 bytes, else its beginning and its SHA-256.
///
/// So does one with a NUL, which PostgreSQL takes in no text, and the empty one, which some modes of MariaDB take for none.
/// Two names never share a column value: no plain one is as long as a digested one.
pub(crate) fn bounded(name: &str) -> Cow<'_, str> {
    let first = name.split('\0').next().unwrap_or_default();
    if !first.is_empty() && first.len() == name.len() && name.len() <= PLAIN {
        return Cow::Borrowed(name);
    }
    let mut bounded = first[..first.floor_char_boundary(PREFIX)].to_owned();
    while bounded.len() < PREFIX {
        bounded.push('~');
    }
    bounded.push('~');
    bounded.push_str(&hex(&Sha256::digest(name)));
    Cow::Owned(bounded)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bounded_name_is_short_and_its_own(name in "(\\PC{0,40}|[a-zä]{150,400}|[a\\x00]{0,5})") {
            let bounded_name = bounded(&name);
            let plain = !name.is_empty() && name.len() <= PLAIN && !name.contains('\0');
            prop_assert_eq!(plain, bounded_name == name);
            prop_assert!(plain || (PLAIN + 1..=PREFIX + 65).contains(&bounded_name.len()));
            prop_assert!(!bounded_name.contains('\0'));
        }
    }

    #[test]
    fn names_are_stored_as_the_protocol_says() {
        let protocol = include_str!("../docs/protocol.md");
        let cut = format!("{}😀{}", "x".repeat(126), "y".repeat(80));
        for (name, first) in [
            ("", "~".repeat(128)),
            (&"z".repeat(181), "z".repeat(128)),
            (&cut, format!("{}~~", "x".repeat(126))),
        ] {
            let stored = bounded(name);
            let digest = stored.strip_prefix(&first).expect("its beginning");
            assert!(
                protocol.contains(&format!("`{digest}`")),
                "{name}: {stored}"
            );
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
            .flat_map(|length| ["x".repeat(length), format!("x\0{}", "y".repeat(length))])
            .map(|name| bounded(&name).into_owned())
            .collect();
        assert_eq!(names.len(), 1000);
    }
}
