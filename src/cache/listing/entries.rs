//! The list of entries as its users see it: the filter that says what to list, and what an entry says of
//! itself.

use std::time::Duration;

use http::StatusCode;
use perennial_store::error::words::seconds;

use crate::cache::history::PastVersion;
use perennial_store::{Fence, Holder, words};

fn number<S: serde::Serializer>(
    status: &Option<StatusCode>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&status.map(|status| status.as_u16()), serializer)
}

/// Selects entries, for [`Perennial::entries`](crate::Perennial::entries).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a filter does nothing until it is passed to `Perennial::entries`"]
pub struct EntryFilter {
    prefix: String,
    tag: Option<String>,
    tag_prefix: Option<String>,
    state: Option<EntryState>,
    from: Option<String>,
    pub(crate) limit: usize,
}

impl Default for EntryFilter {
    fn default() -> Self {
        Self::new()
    }
}

impl EntryFilter {
    /// Returns a filter that every entry passes.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new();
    /// ```
    pub fn new() -> Self {
        Self {
            prefix: String::new(),
            tag: None,
            tag_prefix: None,
            state: None,
            from: None,
            limit: 100,
        }
    }

    /// Lists only entries whose keys begin with this text. Default: all keys.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().prefix("/books/");
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Lists only entries that have this tag. Default: with any tags, or none.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().tag("books");
    /// ```
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Lists only entries that have a tag which begins with this text. Default: with any tags, or none.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().tag_prefix("book-");
    /// ```
    pub fn tag_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.tag_prefix = Some(prefix.into());
        self
    }

    /// Lists only entries in this state. Default: in any state.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().state(EntryState::Stale);
    /// ```
    pub fn state(mut self, state: EntryState) -> Self {
        self.state = Some(state);
        self
    }

    /// Continues the list where the previous page ended, at its [`EntryPage::next`]. Default: at the first key.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().start_at("/books/7");
    /// ```
    pub fn start_at(mut self, next: impl Into<String>) -> Self {
        self.from = Some(next.into());
        self
    }

    /// Sets the maximum number of entries on a page. Default: 100.
    ///
    /// ```
    /// # use perennial::entries::{EntryFilter, EntryState};
    /// let filter = EntryFilter::new().limit(20);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the number is not between 1 and 1000.
    pub fn limit(mut self, limit: usize) -> Self {
        assert!((1..=1000).contains(&limit), "a page has 1 to 1000 entries");
        self.limit = limit;
        self
    }

    pub(crate) fn passes(&self, entry: &Entry) -> bool {
        entry.key.starts_with(&self.prefix)
            && self.state.is_none_or(|state| entry.state == state)
            && self.tag.as_ref().is_none_or(|tag| entry.tags.contains(tag))
            && self
                .tag_prefix
                .as_ref()
                .is_none_or(|prefix| entry.tags.iter().any(|tag| tag.starts_with(prefix)))
    }

    /// Returns the common beginning of the stored names that may match the filter. A key with a NUL is stored
    /// differently, and a long name is stored as its first 128 bytes and a digest.
    fn beginning(&self) -> &str {
        let plain = self.prefix.split('\0').next().unwrap_or_default();
        &plain[..plain.floor_char_boundary(128)]
    }

    /// Returns the first name in the store that may match the filter. Names are never empty.
    pub(crate) fn first_name(&self) -> String {
        let from = self
            .from
            .as_deref()
            .unwrap_or_default()
            .max(self.beginning());
        if from.is_empty() { "\u{1}" } else { from }.to_owned()
    }

    /// Returns true if neither this name nor any later one matches the filter.
    pub(crate) fn is_behind(&self, name: &str) -> bool {
        let beginning = self.beginning();
        !name.starts_with(beginning) && name > beginning
    }
}

/// A page of the list of entries.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct EntryPage {
    /// The entries, in the order of their stored names.
    pub entries: Vec<Entry>,
    /// Where the next page of the list begins, for [`EntryFilter::start_at`], or `None` if this page is the last one.
    /// A page may have fewer entries than its limit, and there may be a next one all the same.
    pub next: Option<String>,
}

words! {
    /// The state of an entry, as this process knows it.
    pub enum EntryState("state of an entry") {
        /// The version is younger than its interval.
        Fresh => "fresh",
        /// The version is older than its interval, or invalidated: the next request regenerates it.
        Stale => "stale",
        /// The version is too old to be served, or purged.
        Expired => "expired",
        /// The last regeneration has failed or its response was too large, and no process tries
        /// again before the cooldown ends. A stored version that is not expired is served
        /// meanwhile.
        Cooldown => "cooldown",
        /// The responses are not stored: the service answers each request. Only this process knows
        /// that.
        HitForPass => "hit-for-pass",
    }
}

/// A stored resource, or a key in cooldown or hit-for-pass, without its content.
///
/// In JSON, the fields have the same names, except for times, which are in seconds and have names that end with
/// `_s`: `age_s`, `interval_s`, `next_regeneration_s`, `remaining_s`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The [name of the layer](crate::layer::RefreshLayer::name), or `content`.
    pub layer: String,
    /// The state.
    pub state: EntryState,
    /// The status of the response, or `None` if nothing is stored.
    #[serde(serialize_with = "number")]
    pub status: Option<StatusCode>,
    /// The age of the version; zero if nothing is stored.
    #[serde(rename = "age_s", serialize_with = "seconds")]
    pub age: Duration,
    /// The interval that the version was stored with; zero if nothing is stored.
    #[serde(rename = "interval_s", serialize_with = "seconds")]
    pub interval: Duration,
    /// How long it is until a request would regenerate the page. Zero means that the next request does.
    #[serde(rename = "next_regeneration_s", serialize_with = "seconds")]
    pub next_regeneration: Duration,
    /// How many bytes are stored: the body, the headers, and the metadata, which include the tags.
    pub bytes: u64,
    /// The approximate size in memory, in bytes, or `None` if the version is not in memory.
    pub memory_bytes: Option<u64>,
    /// The tags.
    pub tags: Vec<String>,
    /// The [revision](crate::Builder::revision) of the process that stored the version.
    pub revision: Option<String>,
    /// The fence of the version; zero if nothing is stored.
    pub fence: Fence,
    /// The holder of the lease, while a process regenerates the resource.
    pub holder: Option<Holder>,
    /// The time until the holder's lease, or the cooldown, ends.
    #[serde(rename = "remaining_s", serialize_with = "seconds")]
    pub remaining: Duration,
    /// The latest 20 generations, newest first.
    pub history: Vec<PastVersion>,
}
