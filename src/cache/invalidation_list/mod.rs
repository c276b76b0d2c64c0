//! The invalidation list (Varnish calls it the ban list) as this process knows it: it answers whether a
//! version is valid, invalidated or purged.
//!
//! An invalidation is a name with an epoch: a number from the database that only grows. A version stores the
//! latest epoch that was known before its generator began, and invalidations with a later epoch apply to it.
//!
//! A transaction of the application cannot give its invalidation an epoch, because epochs have to become
//! visible in their order. It writes a row into the outbox instead, which is numbered after the commit, soon
//! after a process first sees it. From that *sighting* on, the process honours the row, although it has no
//! epoch: the row applies to versions whose generators may have begun before the commit. These are all
//! versions that the process itself had made before the sighting. They also include the versions of other
//! processes, except for those with an epoch that is later than all epochs which this process knew at the
//! sighting.
//!
//! Invariants: epochs only grow. Once the list has called a version invalidated or purged, it never calls it
//! valid again. And if a process has forgotten names because there were too many, it counts too many versions
//! as invalid, and never too few.

mod names;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::{
        PoisonError, RwLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

use perennial_store::{Epoch, Error, NameList, OutboxRow, name::bounded};

use names::Names;

use crate::cache::{
    entry::InvalidationView,
    epochs::{RevisionEpoch, Sighting, Validity},
    metadata::{Meta, Metadata},
};

/// The number of stale names, and of purged names, that a process keeps: the latest ones. All versions from
/// before the oldest name that is kept count as stale, or as purged.
pub(crate) const KEPT_NAMES: usize = 100_000;

/// The number of names above which a process drops all but the latest [`KEPT_NAMES`]. It is half as many
/// again, as dropping them takes a while.
const MAX_NAMES: usize = KEPT_NAMES + KEPT_NAMES / 2;

/// What an invalidation applies to. Its [name](Self::name) is what the database stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// The resource of this key and its variants, whose keys continue with a `#`.
    Key(&'a str),
    /// All resources whose keys begin with this text.
    Prefix(&'a str),
    /// All resources with this tag.
    Tag(&'a str),
    /// All resources with a tag that begins with this text.
    TagPrefix(&'a str),
    /// The resource of this key and its variants, whose versions are not served any more.
    Purged(&'a str),
    /// The resources whose keys begin with this text. Their versions are not served any more.
    PurgedPrefix(&'a str),
    /// The resources with this tag, whose versions are not served any more.
    PurgedTag(&'a str),
    /// The resources with a tag that begins with this text. Their versions are not served any more.
    PurgedTagPrefix(&'a str),
    /// All resources. A revision of the site's code invalidates them when it starts after a different one.
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
        if let Self::Prefix(text)
        | Self::PurgedPrefix(text)
        | Self::TagPrefix(text)
        | Self::PurgedTagPrefix(text) = self
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
            Self::TagPrefix(prefix) => format!("tag_prefix:{prefix}"),
            Self::Purged(key) => format!("purged:{}", bounded(key)),
            Self::PurgedPrefix(prefix) => format!("purged_prefix:{prefix}"),
            Self::PurgedTag(tag) => format!("purged_tag:{}", bounded(tag)),
            Self::PurgedTagPrefix(prefix) => format!("purged_tag_prefix:{prefix}"),
            Self::Revision(revision) => format!("revision:{}", bounded(revision)),
        })
    }

    fn parse(name: &'a str) -> Option<Self> {
        let (kind, text) = name.split_once(':')?;
        Some(match kind {
            "key" => Self::Key(text),
            "prefix" => Self::Prefix(text),
            "tag" => Self::Tag(text),
            "tag_prefix" => Self::TagPrefix(text),
            "purged" => Self::Purged(text),
            "purged_prefix" => Self::PurgedPrefix(text),
            "purged_tag" => Self::PurgedTag(text),
            "purged_tag_prefix" => Self::PurgedTagPrefix(text),
            "revision" => Self::Revision(text),
            // This name was written by a newer release.
            _ => return None,
        })
    }
}

/// The invalidation list of this process.
#[derive(Debug)]
pub(crate) struct InvalidationList {
    list: RwLock<List>,
    /// Grows with each change of the list, so that a version is checked again only after a change.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    /// This process knows all invalidations up to this epoch, without a gap.
    seen: Epoch,
    /// The latest epoch that this process knows. There may be a gap before it: a process learns its own
    /// invalidations before the earlier ones of others.
    latest: Epoch,
    /// This process knows all invalidations from before its start.
    complete: bool,
    invalidated: InvalidatedNames<Epoch>,
    unnumbered: Unnumbered,
    /// The name of the revision of the site's code, if the site has one.
    revision: Option<String>,
    /// The epoch in which that revision was first seen, or seen again after another one. `None` means that it
    /// was never seen.
    revision_epoch: Option<Epoch>,
    /// The name under which this process has still to store its revision.
    pending: Option<String>,
    /// The latest epoch of another revision.
    other_revision_epoch: Option<Epoch>,
}

/// The committed invalidations that have no epoch yet.
#[derive(Debug, Default)]
struct Unnumbered {
    /// The name of each row of the outbox, and the number of the sighting at which this process first
    /// saw the row.
    rows: BTreeMap<String, (String, Sighting)>,
    /// The number of the latest sighting.
    latest: Sighting,
    /// The latest epoch at each sighting of these rows. A version with a later one was generated after the
    /// sighting.
    epochs: BTreeMap<Sighting, Epoch>,
    /// The names of the rows.
    invalidated: InvalidatedNames<Sighting>,
}

/// The invalidated names: those that make versions stale, and those that purge them. `N` is what orders them:
/// an [`Epoch`], or a [`Sighting`] for rows that have no epoch yet.
#[derive(Debug, Default)]
struct InvalidatedNames<N> {
    stale: NameSet<N>,
    purged: NameSet<N>,
}

/// A set of invalidated names, each with the number of its latest invalidation.
#[derive(Debug, Default)]
struct NameSet<N> {
    keys: Names<N>,
    prefixes: Names<N>,
    tags: Names<N>,
    /// The beginnings of tags.
    tag_prefixes: Names<N>,
    /// All versions from before this number are affected: it is the number of an invalidation of everything,
    /// or of the latest name that was dropped.
    before: N,
    /// The number of the latest invalidation.
    latest: N,
}

impl InvalidationList {
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

    /// Returns the number of changes so far. What was computed at the same count is still right.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// Returns the latest epoch without a gap before it: this process knows all invalidations up to it.
    pub(crate) fn seen(&self) -> Epoch {
        self.read(|list| list.seen)
    }

    /// Returns the latest epoch that this process knows. Earlier ones may be missing. What a generator that
    /// begins now reads from the application's data is not older than that epoch. A part that it takes from
    /// memory may be older: such a part has been checked only up to [`seen`](Self::seen).
    pub(crate) fn latest(&self) -> Epoch {
        self.read(|list| list.latest)
    }

    /// Returns true if this process knows all invalidations from before its start.
    pub(crate) fn is_complete(&self) -> bool {
        self.read(|list| list.complete)
    }

    pub(crate) fn complete(&self) {
        if !self.is_complete() {
            self.change(|list| list.complete = true);
        }
    }

    /// Decides whether this process has to announce its revision, once it knows all invalidations from before
    /// its start:
    ///
    /// - The database has never seen the revision: it is announced.
    /// - The database has seen it, and no other one later: there is nothing to do.
    /// - The database has seen another revision later, so this is a rollback: the revision is announced again.
    ///   Its name then ends with the epoch of the other revision, so that all processes that return to the old
    ///   code store the same name.
    pub(crate) fn decide_announcement(&self) {
        let pending = self.read(|list| {
            let name = list.revision.as_ref()?;
            let Some(revision_epoch) = list.revision_epoch else {
                return Some(name.clone());
            };
            let later = list
                .other_revision_epoch
                .filter(|other| *other > revision_epoch)?;
            Some(format!("{name};{later}"))
        });
        if pending.is_some() {
            self.change(|list| list.pending = pending);
        }
    }

    /// Returns the name under which the revision is still to be announced. Until then the versions of other
    /// processes count as stale, as older code may have generated them.
    pub(crate) fn pending_revision(&self) -> Option<String> {
        self.read(|list| list.pending.clone())
    }

    /// Returns the epoch of this process's revision.
    pub(crate) fn revision(&self) -> RevisionEpoch {
        self.read(List::revision)
    }

    /// Adds an invalidation that this process has stored.
    pub(crate) fn add(&self, name: &str, epoch: Epoch) {
        self.change(|list| list.add(name, epoch));
    }

    /// Adds the invalidations that follow [`seen`](Self::seen) without a gap, as a sync has read them.
    pub(crate) fn apply(&self, invalidated: &[(String, Epoch)]) {
        let Some(latest) = invalidated.iter().map(|(_, epoch)| *epoch).max() else {
            return;
        };
        self.change(|list| {
            list.add_all(invalidated);
            list.seen = list.seen.max(latest);
        });
    }

    /// Records rows of the outbox, which have no epoch yet. `knows_all` says whether this process knows all
    /// epochs that were stored when the rows were read.
    pub(crate) fn record_unnumbered(&self, rows: &[OutboxRow], knows_all: bool) {
        let is_new = |list: &List| {
            let known = &list.unnumbered.rows;
            rows.iter().any(|row| !known.contains_key(&row.id))
        };
        if self.read(is_new) {
            self.change(|list| {
                let latest = if knows_all { list.latest } else { Epoch::MAX };
                list.unnumbered.record(rows, latest);
            });
        }
    }

    /// Keeps only the rows of the outbox with these ids, which a sync has just read. The others have been
    /// numbered, and this process knows their epochs.
    pub(crate) fn retain_unnumbered(&self, ids: &HashSet<String>) {
        let has_left = |list: &List| list.unnumbered.rows.keys().any(|id| !ids.contains(id));
        if self.read(has_left) {
            self.change(|list| list.unnumbered.retain(ids));
        }
    }

    /// Returns the ids of the rows of the outbox that have no epoch yet, as far as this process knows.
    pub(crate) fn unnumbered(&self) -> Vec<String> {
        self.read(|list| list.unnumbered.rows.keys().cloned().collect())
    }

    /// Returns the latest sighting of rows in the outbox that have no epoch yet. A generator that begins now
    /// reads the data of all these rows.
    pub(crate) fn sightings(&self) -> Sighting {
        self.read(|list| list.unnumbered.latest)
    }

    /// Adds invalidations out of order, which leaves [`seen`](Self::seen) as it is.
    pub(crate) fn add_all(&self, invalidated: &[(String, Epoch)]) {
        if !invalidated.is_empty() {
            self.change(|list| list.add_all(invalidated));
        }
    }

    /// Invalidates, or purges, all versions from before `epoch`. That replaces the older names of a list.
    pub(crate) fn invalidate_all_before(&self, list: NameList, epoch: Epoch) {
        self.change(|known| match list {
            NameList::Purged => known.invalidated.purged.invalidate_all_before(epoch),
            NameList::Stale | NameList::Revisions => {
                known.invalidated.stale.invalidate_all_before(epoch);
            }
        });
    }

    /// Notes that all invalidations up to this epoch have been added.
    pub(crate) fn mark_seen(&self, epoch: Epoch) {
        self.change(|list| {
            list.seen = list.seen.max(epoch);
            list.latest = list.latest.max(epoch);
        });
    }

    /// Says what the invalidations mean for a version of this key with these metadata.
    pub(crate) fn validity_of(&self, key: &str, metadata: &Metadata) -> Validity {
        self.read(|list| {
            let validity = list.validity_of(key, metadata);
            if validity == Validity::Valid && metadata.revision < list.revision() {
                // The version was generated by older code, after this process's revision was first seen.
                return Validity::Invalidated;
            }
            validity
        })
    }

    /// Returns true if any invalidation applies to a version with these metadata.
    pub(crate) fn applies_to(&self, meta: &Meta) -> bool {
        self.validity_of(meta.key(), &meta.stored) != Validity::Valid
    }

    fn read<T>(&self, what: impl FnOnce(&List) -> T) -> T {
        what(&self.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, what: impl FnOnce(&mut List)) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        what(&mut list);
        // This happens under the lock, so that a reader who sees the number also sees the change.
        self.changes.fetch_add(1, Release);
    }
}

impl InvalidationView for InvalidationList {
    fn latest(&self) -> Epoch {
        InvalidationList::latest(self)
    }

    fn revision(&self) -> RevisionEpoch {
        InvalidationList::revision(self)
    }

    fn sightings(&self) -> Sighting {
        InvalidationList::sightings(self)
    }

    fn validity(&self, meta: &Meta) -> Validity {
        meta.validity_at(self.changes(), || {
            self.validity_of(meta.key(), &meta.stored)
        })
    }
}

impl List {
    fn revision(&self) -> RevisionEpoch {
        match self.pending {
            Some(_) => RevisionEpoch::Unannounced,
            None => self
                .revision_epoch
                .map_or(RevisionEpoch::NoRevision, RevisionEpoch::Announced),
        }
    }

    fn add_all(&mut self, invalidated: &[(String, Epoch)]) {
        for (name, epoch) in invalidated {
            self.add(name, *epoch);
        }
        self.invalidated.keep_latest();
    }

    fn add(&mut self, name: &str, epoch: Epoch) {
        self.latest = self.latest.max(epoch);
        if let Some(target) = Target::parse(name) {
            if let Target::Revision(_) = target {
                self.apply_revision(name, epoch);
            }
            self.invalidated.add(target, epoch);
        }
    }

    fn apply_revision(&mut self, name: &str, epoch: Epoch) {
        let is_own = self.revision.as_ref().is_some_and(|revision| {
            let rest = name.strip_prefix(&**revision);
            rest.is_some_and(|rest| rest.is_empty() || is_return(rest))
        });
        let revision_epoch = if is_own {
            &mut self.revision_epoch
        } else {
            &mut self.other_revision_epoch
        };
        *revision_epoch = (*revision_epoch).max(Some(epoch));
        if self.pending.as_deref() == Some(name) {
            self.pending = None;
        }
    }

    fn validity_of(&self, key: &str, metadata: &Metadata) -> Validity {
        let names = variants_of(key);
        let applies = |numbered: &NameSet<Epoch>, unnumbered: &NameSet<Sighting>| {
            numbered.latest_for(key, &names, metadata) > metadata.epoch
                || self
                    .unnumbered
                    .is_since(unnumbered.latest_for(key, &names, metadata), metadata)
        };
        let InvalidatedNames { stale, purged } = &self.invalidated;
        let unnumbered = &self.unnumbered.invalidated;
        if applies(purged, &unnumbered.purged) {
            Validity::Purged
        } else if applies(stale, &unnumbered.stale) {
            Validity::Invalidated
        } else {
            Validity::Valid
        }
    }
}

impl Unnumbered {
    fn record(&mut self, rows: &[OutboxRow], latest: Epoch) {
        self.latest = Sighting(self.latest.0 + 1);
        self.epochs.insert(self.latest, latest);
        for OutboxRow { id, name } in rows {
            if !self.rows.contains_key(id) {
                self.rows.insert(id.clone(), (name.clone(), self.latest));
                self.invalidate(name, self.latest);
            }
        }
        self.invalidated.keep_latest();
    }

    fn retain(&mut self, ids: &HashSet<String>) {
        let mut rows = std::mem::take(&mut self.rows);
        rows.retain(|id, _| ids.contains(id));
        self.invalidated = InvalidatedNames::default();
        for (name, sighting) in rows.values() {
            self.invalidate(name, *sighting);
        }
        let oldest = rows.values().map(|(_, sighting)| *sighting).min();
        self.epochs
            .retain(|sighting, _| oldest.is_some_and(|oldest| *sighting >= oldest));
        self.rows = rows;
    }

    fn invalidate(&mut self, name: &str, sighting: Sighting) {
        if let Some(target) = Target::parse(name) {
            self.invalidated.add(target, sighting);
        }
    }

    /// Returns true if a row that was first seen at this sighting may have been committed
    /// after the version's generator began.
    fn is_since(&self, sighting: Sighting, metadata: &Metadata) -> bool {
        let latest = self.epochs.get(&sighting);
        sighting > metadata.sightings && latest.is_some_and(|latest| metadata.epoch <= *latest)
    }
}

impl<N: Copy + Default + Ord> InvalidatedNames<N> {
    fn add(&mut self, target: Target<'_>, number: N) {
        let Self { stale, purged } = self;
        match target {
            Target::Key(key) => stale.add(number, key, |names| &mut names.keys),
            Target::Tag(tag) => stale.add(number, tag, |names| &mut names.tags),
            Target::TagPrefix(text) => stale.add(number, text, |names| &mut names.tag_prefixes),
            Target::Prefix("") | Target::Revision(_) => stale.invalidate_all_before(number),
            Target::Prefix(text) => stale.add(number, text, |names| &mut names.prefixes),
            Target::Purged(key) => purged.add(number, key, |names| &mut names.keys),
            Target::PurgedTag(tag) => purged.add(number, tag, |names| &mut names.tags),
            Target::PurgedTagPrefix(text) => {
                purged.add(number, text, |names| &mut names.tag_prefixes);
            }
            Target::PurgedPrefix("") => purged.invalidate_all_before(number),
            Target::PurgedPrefix(text) => purged.add(number, text, |names| &mut names.prefixes),
        }
    }

    fn keep_latest(&mut self) {
        self.stale.keep_latest();
        self.purged.keep_latest();
    }
}

impl<N: Copy + Default + Ord> NameSet<N> {
    fn add(&mut self, number: N, name: &str, kind: impl FnOnce(&mut Self) -> &mut Names<N>) {
        self.latest = self.latest.max(number);
        if number > self.before {
            kind(self).add(name, number);
        }
    }

    /// Invalidates all versions from before `number`. The names with lower numbers are no longer needed then.
    fn invalidate_all_before(&mut self, number: N) {
        self.latest = self.latest.max(number);
        if number > self.before {
            self.before = number;
            for names in [
                &mut self.keys,
                &mut self.prefixes,
                &mut self.tags,
                &mut self.tag_prefixes,
            ] {
                names.drop_older(number);
            }
        }
    }

    fn names(&self) -> [&Names<N>; 4] {
        [&self.keys, &self.prefixes, &self.tags, &self.tag_prefixes]
    }

    /// Drops all names but the latest [`KEPT_NAMES`], if there are more than [`MAX_NAMES`]. Versions that are
    /// as old as the dropped names count as invalidated from then on; few of them are still in use.
    fn keep_latest(&mut self) {
        let names = self.names();
        if names.iter().map(|names| names.len()).sum::<usize>() > MAX_NAMES {
            let mut numbers: Vec<_> = names.iter().flat_map(|names| names.numbers()).collect();
            let last_dropped = numbers.len() - KEPT_NAMES - 1;
            let last_dropped = *numbers.select_nth_unstable(last_dropped).1;
            self.invalidate_all_before(last_dropped);
        }
    }

    /// Returns the number of the latest invalidation of this resource or of one of its parts. `names` are the
    /// names of the resource's key.
    fn latest_for(&self, key: &str, names: &[Cow<'_, str>], metadata: &Metadata) -> N {
        if metadata.depends_on_everything {
            return self.latest;
        }
        let tags = metadata.tags.iter().filter_map(|tag| {
            let exactly = self.tags.get(&bounded(tag));
            exactly.max(self.tag_prefixes.latest_prefix_of(tag))
        });
        let parts = metadata.parts.iter();
        let parts = parts.map(|part| self.latest_for_key(part, &variants_of(part)));
        let latest = parts.chain(tags).max().unwrap_or_default();
        latest.max(self.latest_for_key(key, names)).max(self.before)
    }

    fn latest_for_key(&self, key: &str, names: &[Cow<'_, str>]) -> N {
        let keys = names.iter().filter_map(|name| self.keys.get(name));
        let latest = keys.chain(self.prefixes.latest_prefix_of(key));
        latest.max().unwrap_or_default()
    }
}

/// Returns the names under which a key may be invalidated: the key itself, and the part before each
/// `#`. If the key is a variant, that part is the key of all variants.
fn variants_of(key: &str) -> Vec<Cow<'_, str>> {
    let ends = key.match_indices('#').map(|(at, _)| at);
    let ends = ends.chain([key.len()]);
    ends.map(|end| bounded(&key[..end])).collect()
}

/// Returns true if a revision's name ends with `;` and an epoch. It does so when the revision was announced
/// again, after a rollback.
fn is_return(rest: &str) -> bool {
    let epoch = rest.strip_prefix(';');
    epoch.is_some_and(|epoch| !epoch.is_empty() && epoch.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(epoch: i64, tags: &[&str]) -> Metadata {
        Metadata {
            epoch: Epoch(epoch),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Metadata::default()
        }
    }

    fn list_of(list: &[(Target<'_>, i64)]) -> InvalidationList {
        let invalidations = InvalidationList::new(None);
        let named =
            |(target, epoch): &(Target<'_>, i64)| (target.name().expect("fits"), Epoch(*epoch));
        let list: Vec<_> = list.iter().map(named).collect();
        invalidations.apply(&list);
        invalidations
    }

    #[test]
    fn invalidation_applies_to_older_versions_only() {
        let long = "/l".repeat(200);
        let long_variant = format!("{long}#&accept=x");
        let table: &[(Target<'_>, &str, &[&str], Validity)] = &[
            (Target::Key("/a"), "/a", &[], Validity::Invalidated),
            (
                Target::Key("/a"),
                "/a#&accept=x",
                &[],
                Validity::Invalidated,
            ),
            (Target::Key("/a"), "/a#/b", &[], Validity::Invalidated),
            (Target::Key("/a#/b"), "/a#/b", &[], Validity::Invalidated),
            (
                Target::Key("/a#/b"),
                "/a#/b#&accept=x",
                &[],
                Validity::Invalidated,
            ),
            (Target::Key("/a#/b"), "/a", &[], Validity::Valid),
            (Target::Key("/a"), "/a?b=1", &[], Validity::Valid),
            (Target::Key("/a"), "/ab", &[], Validity::Valid),
            (Target::Key(""), "/a", &[], Validity::Valid),
            (Target::Key(&long), &long, &[], Validity::Invalidated),
            (
                Target::Key(&long),
                &long_variant,
                &[],
                Validity::Invalidated,
            ),
            (Target::Key(&long), &long[..398], &[], Validity::Valid),
            (Target::Prefix("/a"), "/ab?c", &[], Validity::Invalidated),
            (Target::Prefix("/a"), "/b/a", &[], Validity::Valid),
            (Target::Prefix(""), "anything", &[], Validity::Invalidated),
            (Target::Tag("t"), "/a", &["s", "t"], Validity::Invalidated),
            (Target::Tag("t"), "/a", &["tt", "T"], Validity::Valid),
            (Target::Tag("t"), "t", &[], Validity::Valid),
            (
                Target::Tag("a:b\n#%"),
                "/",
                &["a:b\n#%"],
                Validity::Invalidated,
            ),
            (
                Target::TagPrefix("t-"),
                "/",
                &["s", "t-1"],
                Validity::Invalidated,
            ),
            (Target::TagPrefix("t-"), "/", &["t-"], Validity::Invalidated),
            (
                Target::TagPrefix("t-"),
                "t-1",
                &["t", "st-1"],
                Validity::Valid,
            ),
            (Target::TagPrefix(""), "/", &["t"], Validity::Invalidated),
            (Target::TagPrefix(""), "/", &[], Validity::Valid),
            (
                Target::TagPrefix("/l"),
                "/",
                &[&long],
                Validity::Invalidated,
            ),
            (Target::Purged("/a"), "/a", &[], Validity::Purged),
            (Target::Purged("/a"), "/a#x", &[], Validity::Purged),
            (Target::Purged("/a"), "/b", &[], Validity::Valid),
            (Target::PurgedPrefix("/a"), "/a/b", &[], Validity::Purged),
            (Target::PurgedPrefix(""), "/a", &[], Validity::Purged),
            (Target::PurgedPrefix("/a"), "/b/a", &[], Validity::Valid),
            (Target::PurgedTag("t"), "/a", &["s", "t"], Validity::Purged),
            (Target::PurgedTag("t"), "t", &["tt"], Validity::Valid),
            (Target::PurgedTagPrefix("t"), "/", &["tt"], Validity::Purged),
            (Target::PurgedTagPrefix("t"), "t", &["s"], Validity::Valid),
            (Target::Revision("x"), "/a", &[], Validity::Invalidated),
        ];
        for (target, key, tags, void) in table {
            let list = list_of(&[(*target, 7)]);
            assert_eq!(
                list.validity_of(key, &metadata(6, tags)),
                *void,
                "{target:?} {key}"
            );
            assert_eq!(
                list.validity_of(key, &metadata(7, tags)),
                Validity::Valid,
                "{target:?} {key}"
            );
        }
    }

    #[test]
    fn an_invalidation_of_everything_takes_the_place_of_older_ones() {
        let all = list_of(&[
            (Target::Key("/a"), 1),
            (Target::Tag("t"), 2),
            (Target::Purged("/p"), 3),
            (Target::Prefix(""), 4),
            (Target::Key("/b"), 5),
        ]);
        assert_eq!(
            all.read(|list| list.invalidated.stale.names().map(Names::len)),
            [1, 0, 0, 0]
        );
        assert_eq!((all.seen().0, all.latest().0), (5, 5));
        assert_eq!(all.validity_of("/p", &metadata(0, &[])), Validity::Purged);
        assert_eq!(
            all.validity_of("/a", &metadata(3, &[])),
            Validity::Invalidated
        );
        assert_eq!(
            all.validity_of("/b", &metadata(4, &[])),
            Validity::Invalidated
        );
        assert_eq!(all.validity_of("/a", &metadata(4, &[])), Validity::Valid);
    }

    /// Returns the name that a process which has just begun would announce.
    fn pending(process: &InvalidationList) -> Option<String> {
        process.decide_announcement();
        process.pending_revision()
    }

    #[test]
    fn a_revision_that_returns_counts_as_new_once() {
        let seen = |names: &[(&str, i64)]| {
            let process = InvalidationList::new(Some("1".into()));
            let names = names
                .iter()
                .map(|(name, epoch)| ((*name).to_owned(), Epoch(*epoch)));
            process.apply(&names.collect::<Vec<_>>());
            process
        };
        assert_eq!(pending(&seen(&[])).as_deref(), Some("revision:1"));
        let both = [("revision:1", 3), ("revision:2", 7)];
        let began = seen(&both);
        assert_eq!(pending(&began).as_deref(), Some("revision:1;7"));
        // Until the name of the revision is stored in the list of invalidations, versions of other processes
        // count as stale, and those of this process do not.
        let version = |revision| Metadata {
            revision,
            ..metadata(10, &[])
        };
        assert_eq!(
            began.validity_of("/", &version(RevisionEpoch::Announced(Epoch(8)))),
            Validity::Invalidated
        );
        let own = version(began.revision());
        assert_eq!(began.validity_of("/", &own), Validity::Valid);
        began.apply(&[("revision:1;7".to_owned(), Epoch(12))]);
        assert_eq!(began.pending_revision(), None);
        assert_eq!(began.validity_of("/", &own), Validity::Invalidated);
        let returned = seen(&[both[0], both[1], ("revision:1;7", 9)]);
        assert_eq!(
            (pending(&returned), returned.revision()),
            (None, RevisionEpoch::Announced(Epoch(9)))
        );
        assert_eq!(
            returned.validity_of("/", &version(RevisionEpoch::Announced(Epoch(7)))),
            Validity::Invalidated
        );
        assert_eq!(
            returned.validity_of("/", &version(RevisionEpoch::Announced(Epoch(9)))),
            Validity::Valid
        );
        // Another revision, whose name merely begins in the same way.
        let other = seen(&[both[0], ("revision:1;", 4), ("revision:1;x", 5)]);
        assert_eq!(pending(&other).as_deref(), Some("revision:1;5"));
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
        assert!(Target::TagPrefix(&long).name().is_err());
        assert!(Target::PurgedTagPrefix("a\0").name().is_err());
        let name = Target::TagPrefix("a:b").name().expect("fits");
        assert_eq!(Target::parse(&name), Some(Target::TagPrefix("a:b")));
        assert!(Target::Prefix("a\0").name().is_err());
        assert_eq!(Target::Prefix("").name().expect("fits"), "prefix:");
        assert_eq!(Target::parse("*"), None);
        assert_eq!(Target::parse("sparkle:a"), None);
    }

    #[test]
    fn names_that_are_not_kept_count_as_everything_of_their_list() {
        let all = list_of(&[(Target::Tag("t"), 1), (Target::Purged("/p"), 2)]);
        all.invalidate_all_before(NameList::Stale, Epoch(9));
        assert_eq!((all.seen().0, all.latest().0), (2, 2), "not all are known");
        all.mark_seen(Epoch(9));
        assert_eq!((all.seen().0, all.latest().0), (9, 9));
        assert_eq!(
            all.validity_of("/a", &metadata(8, &[])),
            Validity::Invalidated
        );
        assert_eq!(all.validity_of("/a", &metadata(9, &[])), Validity::Valid);
        assert_eq!(all.validity_of("/p", &metadata(1, &[])), Validity::Purged);
        all.invalidate_all_before(NameList::Purged, Epoch(8));
        assert_eq!(all.validity_of("/a", &metadata(7, &[])), Validity::Purged);
        assert_eq!(
            all.validity_of("/a", &metadata(8, &[])),
            Validity::Invalidated
        );
    }

    #[test]
    fn too_many_names_count_as_everything_of_their_list_but_for_the_latest() {
        for (kinds, effect) in [
            (
                ["key:", "tag:", "prefix:/", "tag_prefix:"],
                Validity::Invalidated,
            ),
            (
                [
                    "purged:",
                    "purged_tag:",
                    "purged_prefix:/",
                    "purged_tag_prefix:",
                ],
                Validity::Purged,
            ),
        ] {
            let names = |range: std::ops::Range<i64>| {
                let kinds = kinds.iter().cycle();
                let names = range
                    .zip(kinds)
                    .map(|(n, kind)| (format!("{kind}{n}"), Epoch(n)));
                names.collect::<Vec<_>>()
            };
            let all = InvalidationList::new(None);
            let most = i64::try_from(MAX_NAMES).expect("fits");
            all.apply(&names(1..most + 1));
            assert_eq!(all.validity_of("?", &metadata(0, &[])), Validity::Valid);
            all.apply(&names(most + 1..most + 2));
            let left = all.read(|list| {
                let invalidated =
                    [&list.invalidated.stale, &list.invalidated.purged].map(NameSet::names);
                invalidated
                    .as_flattened()
                    .iter()
                    .map(|names| names.len())
                    .sum::<usize>()
            });
            assert_eq!(left, KEPT_NAMES);
            let dropped = most + 1 - i64::try_from(KEPT_NAMES).expect("fits");
            assert_eq!(all.validity_of("?", &metadata(dropped - 1, &[])), effect);
            assert_eq!(
                all.validity_of("?", &metadata(dropped, &[])),
                Validity::Valid
            );
            let last = format!("{}", most + 1);
            assert_eq!(all.validity_of(&last, &metadata(most, &[])), effect);
        }
    }

    #[test]
    fn invalidation_learned_twice_or_late_changes_nothing() {
        let list = list_of(&[(Target::Key("/a"), 9)]);
        list.add("key:/a", Epoch(4));
        assert_eq!(
            list.validity_of("/a", &metadata(8, &[])),
            Validity::Invalidated
        );
        list.apply(&[]);
        assert_eq!(list.seen(), Epoch(9));
        // The process adds its own invalidation of epoch 12 before it learns of epochs 10 and 11 from other
        // processes.
        list.add("key:/b", Epoch(12));
        assert_eq!((list.seen().0, list.latest().0), (9, 12));
        assert_eq!(
            list.validity_of("/b", &metadata(9, &[])),
            Validity::Invalidated
        );
    }
}
