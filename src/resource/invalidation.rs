//! The invalidation list (Varnish calls it the ban list) as this process knows it, and the verdict
//! on a version.
//!
//! An invalidation is a name with an epoch. The database numbers the epochs: each invalidation has
//! a greater epoch than all invalidations before, and becomes visible in this order, whatever the
//! clocks say and however late the commit is. A version stores the latest epoch that was known
//! before its generator began. Invalidations with a later epoch apply to the version.

use std::sync::{
    PoisonError, RwLock,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::{
    error::Error,
    name::bounded,
    resource::{Metadata, names::Names, state::Freshness},
};

/// The number of invalidated keys, prefixes and tags above which a process folds them: one
/// invalidation of everything takes their place. Purged keys have the same limit.
pub(super) const MOST: usize = 100_000;

/// The revision of versions whose process could not store its revision yet. The epoch of the
/// revision, once it is stored, makes them stale.
const UNSAID: i64 = i64::MAX;

/// The name of the invalidation of everything.
const EVERYTHING: &str = "prefix:";

/// The target of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// The resource of this key and its variants, whose keys continue with a `#`.
    Key(&'a str),
    /// All resources whose keys begin with this text.
    Prefix(&'a str),
    /// All resources with this tag.
    Tag(&'a str),
    /// The resource of this key and its variants, whose versions are not served any more.
    Purged(&'a str),
    /// The resources whose keys begin with this text, whose versions are not served any more.
    PurgedPrefix(&'a str),
    /// The resources with this tag, whose versions are not served any more.
    PurgedTag(&'a str),
    /// All resources, as this revision of the site's code was seen for the first time.
    Revision(&'a str),
}

impl<'a> Target<'a> {
    /// Returns the name of the target for all processes, of at most 255 bytes.
    ///
    /// # Errors
    ///
    /// A prefix is longer than 180 bytes or has a NUL: a prefix cannot be shortened as other names
    /// are.
    pub(crate) fn name(self) -> Result<String, Error> {
        if let Self::Prefix(text) | Self::PurgedPrefix(text) = self
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
            Self::PurgedPrefix(prefix) => format!("purged_prefix:{prefix}"),
            Self::PurgedTag(tag) => format!("purged_tag:{}", bounded(tag)),
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
            "purged_prefix" => Self::PurgedPrefix(text),
            "purged_tag" => Self::PurgedTag(text),
            "revision" => Self::Revision(text),
            // A newer release has written the name.
            _ => return None,
        })
    }
}

/// The invalidation list of this process.
#[derive(Debug)]
pub(crate) struct Invalidations {
    list: RwLock<List>,
    /// Grows with each change, so that a version is compared again only then.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    /// The epoch up to which this process knows all invalidations.
    seen: i64,
    /// The latest epoch that this process knows.
    latest: i64,
    /// This process knows all invalidations from before its start.
    complete: bool,
    stale: Invalidated,
    purged: Invalidated,
    /// The name of the revision of the site's code, if the builder was given one.
    revision: Option<String>,
    /// The epoch in which that revision was first seen, or seen again after another one; 0 before.
    revised: i64,
    /// The name by which this process is the first to say its revision, until the name is stored.
    unsaid: Option<String>,
    /// The latest epoch of another revision; 0: there is none.
    other_revised: i64,
    /// The epoch before which all versions are stale, by the database's list.
    everything: i64,
    /// The epoch before which this process treats all versions as stale, in place of the names that
    /// it has folded.
    folded: i64,
    /// The epoch before which this process treats all versions as purged, in place of the purged
    /// keys that it has folded.
    purged_before: i64,
}

/// Names with the epochs of their latest invalidation.
#[derive(Debug, Default)]
struct Invalidated {
    keys: Names,
    prefixes: Names,
    tags: Names,
}

impl Invalidations {
    pub(crate) fn new(revision: Option<String>) -> Self {
        let revision = revision.and_then(|revision| Target::Revision(&revision).name().ok());
        let list = List {
            revision,
            ..List::default()
        };
        Self {
            list: RwLock::new(list),
            changes: AtomicU64::new(0),
        }
    }

    /// Returns the count of changes. A verdict that was computed at the same count is still valid.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// Returns the epoch up to which this process knows all invalidations.
    pub(super) fn seen(&self) -> i64 {
        self.read(|list| list.seen)
    }

    /// Returns the latest epoch that this process knows. A generator that begins now sees all data
    /// from before that epoch.
    pub(super) fn latest(&self) -> i64 {
        self.read(|list| list.latest)
    }

    /// Returns true if this process knows all invalidations from before its start.
    pub(super) fn is_complete(&self) -> bool {
        self.read(|list| list.complete)
    }

    pub(super) fn complete(&self) {
        if !self.is_complete() {
            self.change(|list| list.complete = true);
        }
    }

    /// Decides whether the process, which has read all invalidations from before its start, is the
    /// first to say its revision: the database has never seen the revision, or has seen another one
    /// later. The processes that come back together have one name: the name has the other
    /// revision's epoch.
    pub(super) fn say_revision(&self) {
        let unsaid = self.read(|list| {
            let name = list.revision.as_ref()?;
            if list.revised == 0 {
                return Some(name.clone());
            }
            let returns = list.other_revised > list.revised;
            returns.then(|| format!("{name};{}", list.other_revised))
        });
        if unsaid.is_some() {
            self.change(|list| list.unsaid = unsaid);
        }
    }

    /// Returns the name of the revision that is to be stored. Until then, the versions of other
    /// processes count as stale, as older code may have generated them.
    pub(super) fn unsaid_revision(&self) -> Option<String> {
        self.read(|list| list.unsaid.clone())
    }

    /// Returns the latest epoch in which this process's revision was seen; 0 without a revision.
    /// [`UNSAID`]: the revision is not stored yet.
    pub(crate) fn revision(&self) -> i64 {
        self.read(List::revision)
    }

    /// Returns true if there are more names than a process keeps.
    pub(super) fn is_full(&self) -> bool {
        self.read(|list| list.stale.len() > MOST)
    }

    /// Returns true if an invalidation of everything is to take the place of the names, in the
    /// database too.
    pub(super) fn is_to_be_folded(&self) -> bool {
        self.read(|list| list.stale.len() > MOST || list.folded > list.everything)
    }

    /// Returns the epoch before which all versions are stale, by the database's list.
    pub(super) fn everything(&self) -> i64 {
        self.read(|list| list.everything)
    }

    /// Adds an invalidation by this process.
    pub(super) fn add(&self, name: &str, epoch: i64) {
        self.change(|list| list.add(name, epoch));
    }

    /// Adds the invalidations that follow [`seen`](Self::seen) without a gap.
    pub(super) fn learn(&self, invalidated: &[(String, i64)]) {
        let Some(latest) = invalidated.iter().map(|(_, epoch)| *epoch).max() else {
            return;
        };
        self.change(|list| {
            list.add_all(invalidated);
            list.seen = list.seen.max(latest);
        });
    }

    /// Takes in invalidations out of their order.
    pub(super) fn add_all(&self, invalidated: &[(String, i64)]) {
        if !invalidated.is_empty() {
            self.change(|list| list.add_all(invalidated));
        }
    }

    /// Skips the names up to `epoch`. The caller has added all purges and revisions up to that
    /// epoch.
    ///
    /// Without `folds`, only names that are older than an invalidation of everything are skipped.
    /// With `folds`, all versions from before `epoch` are stale, in place of the skipped names and
    /// the known ones.
    pub(super) fn skip_to(&self, epoch: i64, folds: bool) {
        self.change(|list| {
            let epoch = if folds {
                list.folded = list.folded.max(epoch);
                list.stale.drop_older(epoch);
                epoch
            } else {
                epoch.min(list.everything)
            };
            list.seen = list.seen.max(epoch);
            list.latest = list.latest.max(epoch);
        });
    }

    /// The effect of the invalidations on the version of this key with these metadata:
    /// [`Freshness::Fresh`], `Stale` or `Purged`.
    pub(crate) fn judge(&self, key: &str, metadata: &Metadata) -> Freshness {
        self.read(|list| {
            let judged = list.judge(key, metadata);
            if judged == Freshness::Fresh && metadata.revision < list.revision() {
                // Older code generated the version after this process's revision was first seen.
                return Freshness::Stale;
            }
            judged
        })
    }

    fn read<T>(&self, what: impl FnOnce(&List) -> T) -> T {
        what(&self.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, what: impl FnOnce(&mut List)) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        what(&mut list);
        // Under the lock: a reader that sees the number sees the change.
        self.changes.fetch_add(1, Release);
    }
}

impl List {
    fn revision(&self) -> i64 {
        match self.unsaid {
            Some(_) => UNSAID,
            None => self.revised,
        }
    }

    fn add_all(&mut self, invalidated: &[(String, i64)]) {
        for (name, epoch) in invalidated {
            self.add(name, *epoch);
        }
        let purged = &mut self.purged;
        let each = [&purged.keys, &purged.prefixes, &purged.tags];
        let full = each.into_iter().find(|names| names.len() > MOST);
        if let Some(median) = full.map(Names::median) {
            // Few versions are older than half of the purges. They are generated again before they
            // are served.
            self.purged_before = self.purged_before.max(median);
            purged.drop_older(self.purged_before);
        }
    }

    fn add(&mut self, name: &str, epoch: i64) {
        self.latest = self.latest.max(epoch);
        if name == EVERYTHING {
            self.everything = self.everything.max(epoch);
            return self.stale.drop_older(epoch);
        }
        let (stale, purged) = (&mut self.stale, &mut self.purged);
        let (stale_before, purged_before) = (self.everything.max(self.folded), self.purged_before);
        let (names, text, before) = match Target::parse(name) {
            Some(Target::Key(key)) => (&mut stale.keys, key, stale_before),
            Some(Target::Prefix(prefix)) => (&mut stale.prefixes, prefix, stale_before),
            Some(Target::Tag(tag)) => (&mut stale.tags, tag, stale_before),
            Some(Target::Purged(key)) => (&mut purged.keys, key, purged_before),
            Some(Target::PurgedPrefix(prefix)) => (&mut purged.prefixes, prefix, purged_before),
            Some(Target::PurgedTag(tag)) => (&mut purged.tags, tag, purged_before),
            Some(Target::Revision(_)) => {
                let is_own = self.revision.as_ref().is_some_and(|own| {
                    let rest = name.strip_prefix(&**own);
                    rest.is_some_and(|rest| rest.is_empty() || is_return(rest))
                });
                let revised = match is_own {
                    true => &mut self.revised,
                    false => &mut self.other_revised,
                };
                *revised = (*revised).max(epoch);
                if self.unsaid.as_deref() == Some(name) {
                    self.unsaid = None;
                }
                self.everything = self.everything.max(epoch);
                return;
            }
            None => return,
        };
        if epoch > before {
            names.add(text, epoch);
        }
    }

    fn judge(&self, key: &str, metadata: &Metadata) -> Freshness {
        let since = |epoch: Option<i64>| epoch.is_some_and(|epoch| epoch > metadata.epoch);
        // The key itself, and the part before each `#`: the keys that have this key as a variant.
        let ends = key.match_indices('#').map(|(at, _)| at);
        let names: Vec<_> = ends
            .chain([key.len()])
            .map(|end| bounded(&key[..end]))
            .collect();
        let named = |list: &Names| names.iter().any(|name| since(list.get(name)));
        let tagged = |list: &Names| {
            let mut tags = metadata.tags.iter();
            tags.any(|tag| since(list.get(&bounded(tag))))
        };
        let applies = |invalidated: &Invalidated| {
            named(&invalidated.keys)
                || tagged(&invalidated.tags)
                || since(invalidated.prefixes.latest_prefix_of(key))
        };
        if self.purged_before > metadata.epoch || applies(&self.purged) {
            Freshness::Purged
        } else if self.everything.max(self.folded) > metadata.epoch || applies(&self.stale) {
            Freshness::Stale
        } else {
            Freshness::Fresh
        }
    }
}

impl Invalidated {
    fn len(&self) -> usize {
        self.keys.len() + self.prefixes.len() + self.tags.len()
    }

    fn drop_older(&mut self, epoch: i64) {
        for names in [&mut self.keys, &mut self.prefixes, &mut self.tags] {
            names.drop_older(epoch);
        }
    }
}

/// Returns true for the end of the name of a revision that has returned: `;` and an epoch.
fn is_return(rest: &str) -> bool {
    let epoch = rest.strip_prefix(';');
    epoch.is_some_and(|epoch| !epoch.is_empty() && epoch.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(epoch: i64, tags: &[&str]) -> Metadata {
        Metadata {
            epoch,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Metadata::default()
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
    fn invalidation_applies_to_older_versions_only() {
        let long = "/l".repeat(200);
        let long_variant = format!("{long}#&accept=x");
        let table: &[(Target<'_>, &str, &[&str], Freshness)] = &[
            (Target::Key("/a"), "/a", &[], Freshness::Stale),
            (Target::Key("/a"), "/a#&accept=x", &[], Freshness::Stale),
            (Target::Key("/a"), "/a#/b", &[], Freshness::Stale),
            (Target::Key("/a#/b"), "/a#/b", &[], Freshness::Stale),
            (
                Target::Key("/a#/b"),
                "/a#/b#&accept=x",
                &[],
                Freshness::Stale,
            ),
            (Target::Key("/a#/b"), "/a", &[], Freshness::Fresh),
            (Target::Key("/a"), "/a?b=1", &[], Freshness::Fresh),
            (Target::Key("/a"), "/ab", &[], Freshness::Fresh),
            (Target::Key(""), "/a", &[], Freshness::Fresh),
            (Target::Key(&long), &long, &[], Freshness::Stale),
            (Target::Key(&long), &long_variant, &[], Freshness::Stale),
            (Target::Key(&long), &long[..398], &[], Freshness::Fresh),
            (Target::Prefix("/a"), "/ab?c", &[], Freshness::Stale),
            (Target::Prefix("/a"), "/b/a", &[], Freshness::Fresh),
            (Target::Prefix(""), "anything", &[], Freshness::Stale),
            (Target::Tag("t"), "/a", &["s", "t"], Freshness::Stale),
            (Target::Tag("t"), "/a", &["tt", "T"], Freshness::Fresh),
            (Target::Tag("t"), "t", &[], Freshness::Fresh),
            (Target::Tag("a:b\n#%"), "/", &["a:b\n#%"], Freshness::Stale),
            (Target::Purged("/a"), "/a", &[], Freshness::Purged),
            (Target::Purged("/a"), "/a#x", &[], Freshness::Purged),
            (Target::Purged("/a"), "/b", &[], Freshness::Fresh),
            (Target::PurgedPrefix("/a"), "/a/b", &[], Freshness::Purged),
            (Target::PurgedPrefix(""), "/a", &[], Freshness::Purged),
            (Target::PurgedPrefix("/a"), "/b/a", &[], Freshness::Fresh),
            (Target::PurgedTag("t"), "/a", &["s", "t"], Freshness::Purged),
            (Target::PurgedTag("t"), "t", &["tt"], Freshness::Fresh),
            (Target::Revision("x"), "/a", &[], Freshness::Stale),
        ];
        for (target, key, tags, void) in table {
            let known = known(&[(*target, 7)]);
            assert_eq!(
                known.judge(key, &metadata(6, tags)),
                *void,
                "{target:?} {key}"
            );
            assert_eq!(
                known.judge(key, &metadata(7, tags)),
                Freshness::Fresh,
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
        assert_eq!(
            (all.read(|list| list.stale.len()), all.everything()),
            (1, 4)
        );
        assert_eq!((all.seen(), all.latest()), (5, 5));
        assert_eq!(all.judge("/p", &metadata(0, &[])), Freshness::Purged);
        assert_eq!(all.judge("/a", &metadata(3, &[])), Freshness::Stale);
        assert_eq!(all.judge("/b", &metadata(4, &[])), Freshness::Stale);
        assert_eq!(all.judge("/a", &metadata(4, &[])), Freshness::Fresh);
    }

    /// Returns the name that a process says which has just begun.
    fn said(process: &Invalidations) -> Option<String> {
        process.say_revision();
        process.unsaid_revision()
    }

    #[test]
    fn a_revision_that_returns_counts_as_new_once() {
        let seen = |names: &[(&str, i64)]| {
            let process = Invalidations::new(Some("1".into()));
            let names = names
                .iter()
                .map(|(name, epoch)| ((*name).to_owned(), *epoch));
            process.learn(&names.collect::<Vec<_>>());
            process
        };
        let both = [("revision:1", 3), ("revision:2", 7)];
        let began = seen(&both);
        assert_eq!(said(&began).as_deref(), Some("revision:1;7"));
        // Until the name is stored, versions of others count as stale, and own ones do not.
        let version = |revision| Metadata {
            revision,
            ..metadata(10, &[])
        };
        assert_eq!(began.judge("/", &version(8)), Freshness::Stale);
        let own = version(began.revision());
        assert_eq!(began.judge("/", &own), Freshness::Fresh);
        began.learn(&[("revision:1;7".to_owned(), 12)]);
        assert_eq!(began.unsaid_revision(), None);
        assert_eq!(began.judge("/", &own), Freshness::Stale);
        let returned = seen(&[both[0], both[1], ("revision:1;7", 9)]);
        assert_eq!((said(&returned), returned.revision()), (None, 9));
        assert_eq!(returned.judge("/", &version(7)), Freshness::Stale);
        assert_eq!(returned.judge("/", &version(9)), Freshness::Fresh);
        // Another revision, whose name only begins in the same way.
        let other = seen(&[both[0], ("revision:1;", 4), ("revision:1;x", 5)]);
        assert_eq!(said(&other).as_deref(), Some("revision:1;5"));
    }

    #[test]
    fn newer_revision_replaces_pages_of_the_older_one_only() {
        let [old, new] = ["old", "new"].map(|name| Invalidations::new(Some(name.to_owned())));
        assert_eq!(said(&old), Some("revision:old".to_owned()));
        let seen = [
            ("revision:old".to_owned(), 3),
            ("revision:new".to_owned(), 7),
        ];
        for process in [&old, &new] {
            process.learn(&seen);
            assert_eq!(process.unsaid_revision(), None);
        }
        assert_eq!((old.revision(), new.revision()), (3, 7));
        let made = |epoch, revision| Metadata {
            epoch,
            revision,
            ..Metadata::default()
        };
        let voids = |metadata: &Metadata| [&old, &new].map(|process| process.judge("/", metadata));
        let (stale, fine) = (Freshness::Stale, Freshness::Fresh);
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
    fn folded_names_count_as_everything_up_to_where_they_were_skipped() {
        let all = known(&[(Target::Tag("t"), 1), (Target::Purged("/p"), 2)]);
        all.skip_to(9, false);
        assert_eq!((all.seen(), all.latest()), (2, 2), "nothing may be skipped");
        all.skip_to(9, true);
        assert_eq!((all.seen(), all.latest()), (9, 9));
        assert_eq!(all.judge("/a", &metadata(8, &[])), Freshness::Stale);
        assert_eq!(all.judge("/a", &metadata(9, &[])), Freshness::Fresh);
        assert_eq!(all.judge("/p", &metadata(1, &[])), Freshness::Purged);
        assert!(all.is_to_be_folded() && !all.is_full());
        all.learn(&[("prefix:".to_owned(), 12)]);
        assert!(!all.is_to_be_folded(), "the database says so now");
        all.skip_to(20, false);
        assert_eq!(all.seen(), 12, "what is older is needless");
    }

    #[test]
    fn more_purged_keys_than_a_process_keeps_count_as_all_from_before_half_of_them() {
        let names = |range: std::ops::Range<i64>| range.map(|n| (format!("purged:/{n}"), n));
        let all = Invalidations::new(None);
        let most = i64::try_from(MOST).expect("fits");
        all.learn(&names(1..most + 1).collect::<Vec<_>>());
        assert_eq!(all.judge("/other", &metadata(0, &[])), Freshness::Fresh);
        all.learn(&names(most + 1..most + 2).collect::<Vec<_>>());
        assert!(all.read(|list| list.purged.keys.len()) <= MOST / 2 + 1);
        assert_eq!(all.judge("/other", &metadata(0, &[])), Freshness::Purged);
        assert_eq!(all.judge("/other", &metadata(most, &[])), Freshness::Fresh);
        let last = format!("/{}", most + 1);
        assert_eq!(all.judge(&last, &metadata(most, &[])), Freshness::Purged);
    }

    #[test]
    fn invalidation_learned_twice_or_late_changes_nothing() {
        let known = known(&[(Target::Key("/a"), 9)]);
        known.add("key:/a", 4);
        assert_eq!(known.judge("/a", &metadata(8, &[])), Freshness::Stale);
        known.learn(&[]);
        assert_eq!(known.seen(), 9);
        // The process adds its own invalidation of epoch 12 before it learns the epochs 10 and 11
        // of other processes.
        known.add("key:/b", 12);
        assert_eq!((known.seen(), known.latest()), (9, 12));
        assert_eq!(known.judge("/b", &metadata(9, &[])), Freshness::Stale);
    }
}
