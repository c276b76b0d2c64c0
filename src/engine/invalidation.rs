//! What has been invalidated, as far as this process knows; and what that makes of a version.
//!
//! An invalidation is a name with an epoch. Epochs are the database's: they grow with each invalidation and are seen in their order, by
//! whatever clock and however late they are committed. A version was made in an epoch; what is invalidated in a later one was so after it.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

use crate::{engine::Notes, error::Error, name::bounded};

/// More names than this are not kept, as [`Engine`](crate::engine::Engine) sees to.
pub(super) const MOST: usize = 100_000;

/// What can be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// The resource of this key, and its variants: keys that begin with it and a `#`.
    Key(&'a str),
    /// All whose keys begin so.
    Prefix(&'a str),
    /// All that bear this tag.
    Tag(&'a str),
    /// As `Key`, but not to be served any more.
    Purged(&'a str),
    /// All, as this revision of the site's code has been seen for the first time.
    Revision(&'a str),
}

/// What the invalidations make of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Void {
    No,
    /// Served while it regrows.
    Stale,
    /// Not to be served.
    Purged,
}

impl<'a> Target<'a> {
    /// The name by which all processes know it, of 255 bytes at most.
    ///
    /// # Errors
    ///
    /// A prefix that is longer than 180 bytes, or has a NUL: it can't be shortened as other names are.
    pub(crate) fn name(self) -> Result<String, Error> {
        if let Self::Prefix(text) = self
            && !text.is_empty()
            && bounded(text) != text
        {
            return Err(Error::invalid(format!(
                "the prefix {text:?} cannot be used: write one of at most 180 bytes, without a NUL"
            )));
        }
        Ok(match self {
            Self::Key(key) => format!("key:{}", bounded(key)),
            Self::Prefix(prefix) => format!("prefix:{prefix}"),
            Self::Tag(tag) => format!("tag:{}", bounded(tag)),
            Self::Purged(key) => format!("purged:{}", bounded(key)),
            Self::Revision(revision) => format!("revision:{}", bounded(revision)),
        })
    }

    fn parse(name: &'a str) -> Option<Self> {
        let (kind, text) = name.split_once(':')?;
        Some(match kind {
            "key" => Self::Key(text),
            "prefix" => Self::Prefix(text),
            "tag" => Self::Tag(text),
            "purged" => Self::Purged(text),
            "revision" => Self::Revision(text),
            // A newer release's.
            _ => return None,
        })
    }
}

/// What this process knows of all invalidations.
#[derive(Debug)]
pub(crate) struct Invalidations {
    known: RwLock<Known>,
    /// Grows with each change, so that a version is compared again only then.
    changes: AtomicU64,
    /// What the site says of its own code.
    revision: Option<String>,
}

#[derive(Debug, Default)]
struct Known {
    /// All up to this epoch are known.
    seen: i64,
    /// The latest one known.
    latest: i64,
    /// It has been asked for them once.
    complete: bool,
    keys: Epochs,
    prefixes: Epochs,
    tags: Epochs,
    purged: Epochs,
    revisions: Epochs,
    /// All that is older is stale.
    everything: i64,
}

type Epochs = HashMap<Box<str>, i64>;

impl Invalidations {
    pub(crate) fn new(revision: Option<String>) -> Self {
        Self {
            known: RwLock::default(),
            changes: AtomicU64::new(0),
            revision,
        }
    }

    /// Whatever is compared with a number that is this one still is up to date.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// All up to this epoch are known.
    pub(super) fn seen(&self) -> i64 {
        self.read(|known| known.seen)
    }

    /// The latest epoch of which this process has heard: whatever is made from now on is made after it.
    pub(super) fn latest(&self) -> i64 {
        self.read(|known| known.latest)
    }

    /// Whether all that had been invalidated before this process began is known.
    pub(super) fn is_complete(&self) -> bool {
        self.read(|known| known.complete)
    }

    pub(super) fn complete(&self) {
        if !self.is_complete() {
            self.change(|known| known.complete = true);
        }
    }

    /// The revision that no process has ever told of, if ours is.
    pub(super) fn unseen_revision(&self) -> Option<Target<'_>> {
        let revision = self.revision.as_deref()?;
        let seen = self.read(|known| known.revisions.contains_key(&*bounded(revision)));
        (!seen).then_some(Target::Revision(revision))
    }

    /// The epoch in which our revision was first seen; 0 without one.
    pub(crate) fn revision(&self) -> i64 {
        self.read(|known| self.revision_in(known))
    }

    fn revision_in(&self, known: &Known) -> i64 {
        let revision = self.revision.as_deref().map(bounded);
        let epoch = revision.and_then(|revision| known.revisions.get(&*revision));
        epoch.copied().unwrap_or(0)
    }

    /// How many names are known of what is stale.
    pub(super) fn names(&self) -> usize {
        self.read(|known| known.keys.len() + known.prefixes.len() + known.tags.len())
    }

    /// All that is older is stale.
    pub(super) fn everything(&self) -> i64 {
        self.read(|known| known.everything)
    }

    /// Takes in one of this process's own.
    pub(super) fn add(&self, name: &str, epoch: i64) {
        self.change(|known| known.add(name, epoch));
    }

    /// Takes in all that came after those that were known.
    pub(super) fn learn(&self, invalidated: &[(String, i64)]) {
        let Some(latest) = invalidated.iter().map(|(_, epoch)| *epoch).max() else {
            return;
        };
        self.change(|known| {
            for (name, epoch) in invalidated {
                known.add(name, *epoch);
            }
            known.seen = known.seen.max(latest);
        });
    }

    /// What they make of the version of this key with these notes.
    pub(crate) fn void(&self, key: &str, notes: &Notes) -> Void {
        self.read(|known| {
            let void = known.void(key, notes);
            if void == Void::No && notes.revision < self.revision_in(known) {
                // Made by older code, though after that of ours was first seen.
                return Void::Stale;
            }
            void
        })
    }

    fn read<T>(&self, what: impl FnOnce(&Known) -> T) -> T {
        what(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, what: impl FnOnce(&mut Known)) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        what(&mut known);
        // Under the lock: whoever sees the number sees the change.
        self.changes.fetch_add(1, Release);
    }
}

impl Known {
    fn add(&mut self, name: &str, epoch: i64) {
        self.latest = self.latest.max(epoch);
        let (list, text) = match Target::parse(name) {
            Some(Target::Prefix("")) => return self.add_everything(epoch),
            Some(Target::Key(key)) => (&mut self.keys, key),
            Some(Target::Prefix(prefix)) => (&mut self.prefixes, prefix),
            Some(Target::Tag(tag)) => (&mut self.tags, tag),
            Some(Target::Purged(key)) => (&mut self.purged, key),
            Some(Target::Revision(revision)) => {
                self.everything = self.everything.max(epoch);
                (&mut self.revisions, revision)
            }
            None => return,
        };
        let latest = list.entry(text.into()).or_default();
        *latest = epoch.max(*latest);
    }

    /// What is older says nothing more, but that it is not to be served.
    fn add_everything(&mut self, epoch: i64) {
        self.everything = self.everything.max(epoch);
        for list in [&mut self.keys, &mut self.prefixes, &mut self.tags] {
            list.retain(|_, earlier| *earlier > epoch);
        }
    }

    fn void(&self, key: &str, notes: &Notes) -> Void {
        let since = |epoch: Option<&i64>| epoch.is_some_and(|epoch| *epoch > notes.epoch);
        // The key, and all of which it is a variant.
        let ends = key.match_indices('#').map(|(at, _)| at);
        let names: Vec<_> = ends
            .chain([key.len()])
            .map(|end| bounded(&key[..end]))
            .collect();
        let named = |list: &Epochs| names.iter().any(|name| since(list.get(&**name)));
        if named(&self.purged) {
            return Void::Purged;
        }
        let mut tags = notes.tags.iter();
        let mut prefixes = self.prefixes.iter();
        let stale = self.everything > notes.epoch
            || named(&self.keys)
            || tags.any(|tag| since(self.tags.get(&*bounded(tag))))
            || prefixes.any(|(prefix, epoch)| since(Some(epoch)) && key.starts_with(&**prefix));
        if stale { Void::Stale } else { Void::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(epoch: i64, tags: &[&str]) -> Notes {
        Notes {
            epoch,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Notes::default()
        }
    }

    fn known(list: &[(Target<'_>, i64)]) -> Invalidations {
        let invalidations = Invalidations::new(None);
        let named = |(target, epoch): &(Target<'_>, i64)| (target.name().expect("fits"), *epoch);
        let list: Vec<_> = list.iter().map(named).collect();
        invalidations.learn(&list);
        invalidations
    }

    #[test]
    fn what_is_invalidated_is_void_until_it_is_made_anew() {
        let long = "/l".repeat(200);
        let long_variant = format!("{long}#&accept=x");
        let table: &[(Target<'_>, &str, &[&str], Void)] = &[
            (Target::Key("/a"), "/a", &[], Void::Stale),
            (Target::Key("/a"), "/a#&accept=x", &[], Void::Stale),
            (Target::Key("/a"), "/a#/b", &[], Void::Stale),
            (Target::Key("/a#/b"), "/a#/b", &[], Void::Stale),
            (Target::Key("/a#/b"), "/a#/b#&accept=x", &[], Void::Stale),
            (Target::Key("/a#/b"), "/a", &[], Void::No),
            (Target::Key("/a"), "/a?b=1", &[], Void::No),
            (Target::Key("/a"), "/ab", &[], Void::No),
            (Target::Key(""), "/a", &[], Void::No),
            (Target::Key(&long), &long, &[], Void::Stale),
            (Target::Key(&long), &long_variant, &[], Void::Stale),
            (Target::Key(&long), &long[..398], &[], Void::No),
            (Target::Prefix("/a"), "/ab?c", &[], Void::Stale),
            (Target::Prefix("/a"), "/b/a", &[], Void::No),
            (Target::Prefix(""), "anything", &[], Void::Stale),
            (Target::Tag("t"), "/a", &["s", "t"], Void::Stale),
            (Target::Tag("t"), "/a", &["tt", "T"], Void::No),
            (Target::Tag("t"), "t", &[], Void::No),
            (Target::Tag("a:b\n#%"), "/", &["a:b\n#%"], Void::Stale),
            (Target::Purged("/a"), "/a", &[], Void::Purged),
            (Target::Purged("/a"), "/a#x", &[], Void::Purged),
            (Target::Purged("/a"), "/b", &[], Void::No),
            (Target::Revision("x"), "/a", &[], Void::Stale),
        ];
        for (target, key, tags, void) in table {
            let known = known(&[(*target, 7)]);
            assert_eq!(known.void(key, &notes(6, tags)), *void, "{target:?} {key}");
            assert_eq!(
                known.void(key, &notes(7, tags)),
                Void::No,
                "{target:?} {key}"
            );
        }
    }

    #[test]
    fn an_invalidation_of_everything_takes_the_place_of_older_ones() {
        let all = known(&[
            (Target::Key("/a"), 1),
            (Target::Tag("t"), 2),
            (Target::Purged("/p"), 3),
            (Target::Prefix(""), 4),
            (Target::Key("/b"), 5),
        ]);
        assert_eq!((all.names(), all.everything()), (1, 4));
        assert_eq!((all.seen(), all.latest()), (5, 5));
        assert_eq!(all.void("/p", &notes(0, &[])), Void::Purged);
        assert_eq!(all.void("/a", &notes(3, &[])), Void::Stale);
        assert_eq!(all.void("/b", &notes(4, &[])), Void::Stale);
        assert_eq!(all.void("/a", &notes(4, &[])), Void::No);
    }

    #[test]
    fn of_two_revisions_the_newer_one_replaces_what_the_older_one_makes_and_not_the_other_way_round()
     {
        let [old, new] = ["old", "new"].map(|name| Invalidations::new(Some(name.to_owned())));
        assert_eq!(old.unseen_revision(), Some(Target::Revision("old")));
        let seen = [
            ("revision:old".to_owned(), 3),
            ("revision:new".to_owned(), 7),
        ];
        for process in [&old, &new] {
            process.learn(&seen);
            assert_eq!(process.unseen_revision(), None);
        }
        assert_eq!((old.revision(), new.revision()), (3, 7));
        let made = |epoch, revision| Notes {
            epoch,
            revision,
            ..Notes::default()
        };
        let voids = |notes: &Notes| [&old, &new].map(|process| process.void("/", notes));
        let (stale, fine) = (Void::Stale, Void::No);
        assert_eq!(voids(&made(3, 3)), [stale, stale], "before the deploy");
        assert_eq!(voids(&made(7, 3)), [fine, stale], "by old code after it");
        assert_eq!(voids(&made(7, 7)), [fine, fine], "by new code");
    }

    #[test]
    fn names_are_short_and_come_back() {
        let long = "x".repeat(10_000);
        for text in ["", "a", "a:b", &long, "a\0b"] {
            for target in [
                Target::Key(text),
                Target::Tag(text),
                Target::Purged(text),
                Target::Revision(text),
            ] {
                let name = target.name().expect("fits");
                assert!(name.len() <= 255 && !name.contains('\0'), "{name}");
                assert!(Target::parse(&name).is_some());
            }
        }
        assert_eq!(Target::parse("prefix:/a:b"), Some(Target::Prefix("/a:b")));
        assert!(Target::Prefix(&long).name().is_err());
        assert!(Target::Prefix("a\0").name().is_err());
        assert_eq!(Target::Prefix("").name().expect("fits"), "prefix:");
        assert_eq!(Target::parse("*"), None);
        assert_eq!(Target::parse("sparkle:a"), None);
    }

    #[test]
    fn what_is_learned_twice_or_late_changes_nothing() {
        let known = known(&[(Target::Key("/a"), 9)]);
        known.add("key:/a", 4);
        assert_eq!(known.void("/a", &notes(8, &[])), Void::Stale);
        known.learn(&[]);
        assert_eq!(known.seen(), 9);
        // One's own, before those of others up to it are known.
        known.add("key:/b", 12);
        assert_eq!((known.seen(), known.latest()), (9, 12));
        assert_eq!(known.void("/b", &notes(9, &[])), Void::Stale);
    }
}
