//! The names of locks and pages, and the form in which the database stores them. A name may have any length and
//! any characters, and the column has 255 bytes. A name that does not fit is stored as its beginning and a
//! digest ([`bounded`]).

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    convert::Infallible,
    fmt,
    str::FromStr,
};

use sha2::{Digest, Sha256};

use crate::words;

/// The default prefix of the tables' names.
pub const TABLE_PREFIX: &str = "perennial_";

words! {
    /// The kind of a lock. Lists of locks are sorted by kind. Two locks of different kinds may have the same name.
    #[derive(PartialOrd, Ord)]
    pub enum LockKind("kind of a lock") {
        /// A lock of Perennial's own housekeeping.
        Housekeeping => "housekeeping",
        /// A lock that the application takes, by [`Locks`](crate::locks::Locks) or for an exclusive
        /// route.
        Lock => "lock",
        /// The lock under which work is done once, and the mark that
        /// the work is done.
        Once => "once",
        /// The lock under which a page or other content is generated. The lock has the name of the
        /// key.
        Page => "page",
    }
}

/// The name of a lock: a string or a list of strings, and the lock's [kind](LockKind).
///
/// The parts of a list are joined by `/`, with `/` and `%` in a part written as `%2F` and `%25`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName {
    kind: LockKind,
    name: String,
}

impl LockName {
    /// Returns the name of a lock of this kind, such as `LockName::of(LockKind::Page, "/best-sellers")`. Locks of two
    /// kinds are two locks, even if their names are the same.
    pub fn of(kind: LockKind, name: impl Into<Self>) -> Self {
        Self {
            kind,
            ..name.into()
        }
    }

    /// Returns the kind of the lock.
    pub fn kind(&self) -> LockKind {
        self.kind
    }

    /// Returns the name as a string. A name longer than 180 bytes is stored as its beginning and a digest.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    fn join<T: AsRef<str>>(parts: &[T]) -> Self {
        let parts = parts.iter();
        let parts: Vec<_> = parts
            .map(|part| part.as_ref().replace('%', "%25").replace('/', "%2F"))
            .collect();
        match &*parts {
            // This differs from the name of a list with one empty part.
            [] => Self::from("%"),
            parts => Self::from(parts.join("/")),
        }
    }
}

/// Writes the name without the kind.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for LockName {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(name.into())
    }
}

impl From<&str> for LockName {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<String> for LockName {
    fn from(name: String) -> Self {
        Self {
            kind: LockKind::Lock,
            name,
        }
    }
}

impl From<&Self> for LockName {
    fn from(name: &Self) -> Self {
        name.clone()
    }
}

impl From<&String> for LockName {
    fn from(name: &String) -> Self {
        Self::from(name.clone())
    }
}

impl<T: AsRef<str>, const N: usize> From<[T; N]> for LockName {
    fn from(parts: [T; N]) -> Self {
        Self::join(&parts)
    }
}

impl<T: AsRef<str>> From<Vec<T>> for LockName {
    fn from(parts: Vec<T>) -> Self {
        Self::join(&parts)
    }
}

impl<T: AsRef<str>> From<&[T]> for LockName {
    fn from(parts: &[T]) -> Self {
        Self::join(parts)
    }
}

/// One name or several: tags, parameters of a query, columns.
///
/// A string is one name. An array, a slice, a `Vec`, a `BTreeSet` or a `HashSet` of strings is a list of names.
/// Collect an iterator first.
///
/// This trait cannot be implemented outside of this crate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a name or a list of names",
    label = "expected a text such as \"books\", or a list such as [\"books\", \"authors\"]",
    note = "collect an iterator into a list: `.collect::<Vec<_>>()`"
)]
pub trait IntoNames: sealed::IntoNames {
    #[doc(hidden)]
    fn into_names(self) -> Vec<String>;
}

mod sealed {
    pub trait IntoNames {}
}

macro_rules! into_names {
    ($([$($generics:tt)*] $type:ty: |$names:ident| $into:expr;)*) => {$(
        impl<$($generics)*> sealed::IntoNames for $type {}
        impl<$($generics)*> IntoNames for $type {
            fn into_names(self) -> Vec<String> {
                let $names = self;
                $into
            }
        }
    )*};
}

fn owned<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

fn copied<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    let names = names.into_iter();
    names.map(|name| name.as_ref().to_owned()).collect()
}

into_names! {
    [] &str: |name| vec![name.to_owned()];
    [] String: |name| vec![name];
    [] &String: |name| vec![name.clone()];
    [] Cow<'_, str>: |name| vec![name.into_owned()];
    [T: Into<String>, const N: usize] [T; N]: |names| owned(names);
    [T: Into<String>] Vec<T>: |names| owned(names);
    [T: Into<String>] BTreeSet<T>: |names| owned(names);
    [T: Into<String>, S] HashSet<T, S>: |names| owned(names);
    [T: AsRef<str>, const N: usize] &[T; N]: |names| copied(names);
    [T: AsRef<str>] &[T]: |names| copied(names);
    [T: AsRef<str>] &Vec<T>: |names| copied(names);
    [T: AsRef<str>] &BTreeSet<T>: |names| copied(names);
    [T: AsRef<str>, S] &HashSet<T, S>: |names| copied(names);
}

/// Returns true for control characters, for characters that change the direction of text, and for invisible
/// ones.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{feff}' | '\u{200b}'..='\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

/// Replaces characters that a terminal would [interpret](acts) with `\u{…}`. The caller has to escape the
/// result for HTML.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The longest name that is stored unchanged, in bytes.
pub(crate) const PLAIN: usize = 180;
/// The length of the readable part of a longer name in front of its digest, in bytes. A shorter
/// part is padded.
const PREFIX: usize = 128;

/// Returns the column value of a name: the name itself, or its beginning and its SHA-256, if the
/// name is longer than 180 bytes, has a NUL (which PostgreSQL refuses) or is empty (which MariaDB
/// may read as NULL).
pub fn bounded(name: &str) -> Cow<'_, str> {
    let first = name.split('\0').next().unwrap_or_default();
    if !first.is_empty() && first.len() == name.len() && name.len() <= PLAIN {
        return Cow::Borrowed(name);
    }
    let mut bounded = first[..first.floor_char_boundary(PREFIX)].to_owned();
    bounded.push_str(&"~".repeat(PREFIX + 1 - bounded.len()));
    bounded.push_str(&hex(&Sha256::digest(name)));
    Cow::Owned(bounded)
}

/// Returns the bytes as lowercase hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
    fn text_is_one_name_and_a_list_is_several() {
        let list = ["b".to_owned(), "a".to_owned()];
        for one in [
            "a".into_names(),
            "a".to_owned().into_names(),
            (&list[1]).into_names(),
            Cow::Borrowed("a").into_names(),
        ] {
            assert_eq!(one, ["a"]);
        }
        for several in [
            ["b", "a"].into_names(),
            list.clone().into_names(),
            (&list).into_names(),
            list.as_slice().into_names(),
            vec!["b", "a"].into_names(),
            (&vec!["b", "a"]).into_names(),
        ] {
            assert_eq!(several, ["b", "a"]);
        }
        let sorted = BTreeSet::from(list.clone());
        assert_eq!((&sorted).into_names(), ["a", "b"]);
        assert_eq!(sorted.into_names(), ["a", "b"]);
        let hashed = HashSet::<_>::from_iter(list);
        assert_eq!((&hashed).into_names().len(), 2);
        assert_eq!(hashed.into_names().len(), 2);
    }

    #[test]
    fn a_text_is_its_own_name() {
        for name in ["", "a", "a/b%", "%2F"] {
            assert_eq!(LockName::from(name).as_str(), name);
        }
        assert_eq!(LockName::from(["a", "", "b"]).as_str(), "a//b");
        assert_eq!(LockName::from(["x".to_owned()]).as_str(), "x");
    }

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
        let protocol = include_str!("../../../docs/protocol.md");
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
}
