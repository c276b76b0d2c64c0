//! Events: what a site does, for [subscribers](crate::Perennial::subscribe), the log and metrics. A hit does
//! not emit an event; [`Perennial::stats`](crate::Perennial::stats) counts hits.
//!
//! Every event except [`Missed`](Event::Missed) is also logged through `tracing`. With the feature `metrics`,
//! most events are counted in metrics, by the recorder that the application installs before it opens the site.
//! The [guide](crate::guide::monitoring) lists both.

mod counters;
mod failures;
mod log;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
mod observer;
mod process_stats;
mod words;

use std::{sync::Arc, time::Duration};

use perennial_store::error::words::seconds;

use perennial_store::{Fence, LockKind};

pub use counters::Stats;
pub use failures::FailedRegeneration;
pub use observer::Events;
pub(crate) use observer::{Frequent, Observer};
pub use perennial_store::{Epoch, LockLoss};
pub(crate) use process_stats::{Figures, LastHour};
pub use process_stats::{MinuteStats, ProcessStats};
pub use words::{Bypass, Outcome, Reason, Served};

/// An event of a site in this process.
///
/// ```
/// # async fn f(site: perennial::Perennial) {
/// use perennial::event::Event;
///
/// let mut events = site.subscribe();
/// while let Some(event) = events.next().await {
///     if let Event::Regenerated(ended) = event {
///         println!("{}: {}", ended.key, ended.outcome);
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A generator has started.
    #[non_exhaustive]
    Regenerating {
        /// The key of the resource.
        key: Arc<str>,
        /// The [name of the layer](crate::layer::RefreshLayer::name), or `content`.
        layer: Arc<str>,
        /// The reason for the regeneration.
        reason: Reason,
        /// The fence of the lease. `None` means that the database is unavailable, and that there is no lease.
        fence: Option<Fence>,
    },
    /// A regeneration has ended.
    Regenerated(Arc<Regeneration>),
    /// A version is stale, and this process does not regenerate it now. `outcome` says why.
    #[non_exhaustive]
    NotRegenerated {
        /// The key of the resource.
        key: Arc<str>,
        /// The [name of the layer](crate::layer::RefreshLayer::name), or `content`.
        layer: Arc<str>,
        /// The reason: one of the outcomes of a regeneration that has not begun.
        outcome: Outcome,
    },
    /// The holder of a page's lease has let it expire, and this process has taken it over.
    #[non_exhaustive]
    LeaseTakenOver {
        /// The key of the resource.
        key: Arc<str>,
        /// The fence of the new lease.
        fence: Fence,
    },
    /// This process has invalidated resources. A new revision of its code counts as an invalidation of all of
    /// them.
    #[non_exhaustive]
    Invalidated {
        /// The stored name: a prefix, followed by the key, prefix, tag or revision. For an invalidation the
        /// prefix is `key:`, `prefix:`, `tag:` or `tag_prefix:`; for a purge `purged:`, `purged_prefix:`,
        /// `purged_tag:` or `purged_tag_prefix:`; for a revision `revision:`. A long name is cut, and ends with
        /// its digest.
        name: Arc<str>,
        /// The epoch of the invalidation.
        epoch: Epoch,
    },
    /// A page with tags was regenerated because of its age, and its content had changed although nobody had
    /// invalidated it. Some code, or a trigger, has forgotten a tag. The event is emitted by the first
    /// request that comes a few seconds or more after the regeneration.
    MissedInvalidation(Arc<MissedInvalidation>),
    /// This process has purged a resource.
    #[non_exhaustive]
    Purged {
        /// The key of the resource.
        key: Arc<str>,
    },
    /// [`Perennial::warm`](crate::Perennial::warm) or
    /// [`Perennial::regenerate`](crate::Perennial::regenerate) has visited a path.
    #[non_exhaustive]
    Warmed {
        /// The path.
        path: Arc<str>,
        /// The layer's answer, or `None` if no layer answered.
        served: Option<Served>,
        /// The number of paths that have been visited so far.
        done: usize,
        /// The number of all paths.
        of: usize,
    },
    /// A request has bypassed the cache.
    #[non_exhaustive]
    Bypassed {
        /// The path of the request.
        path: Arc<str>,
        /// The [name of the layer](crate::layer::RefreshLayer::name).
        layer: Arc<str>,
        /// The reason.
        reason: Bypass,
    },
    /// An operation has failed in the database. For each kind of operation, the event is emitted
    /// once, and then not again until [`DatabaseBack`](Self::DatabaseBack) for the same kind.
    #[non_exhaustive]
    DatabaseUnavailable {
        /// The operation, such as `probe`.
        operation: &'static str,
        /// The error.
        error: Arc<str>,
    },
    /// An operation on the database works again after a failure. This is also emitted if other operations have
    /// worked for a minute or more since this one last failed.
    #[non_exhaustive]
    DatabaseBack {
        /// The operation, such as `probe`.
        operation: &'static str,
    },
    /// A lock was acquired.
    #[non_exhaustive]
    LockAcquired {
        /// The lock's kind.
        kind: LockKind,
        /// The lock's name.
        name: Arc<str>,
        /// The fence of the lease.
        fence: Fence,
    },
    /// An attempt did not get the lock: another holder has it, or has had it since the caller last read the
    /// lock's fence.
    #[non_exhaustive]
    LockContended {
        /// The lock's kind.
        kind: LockKind,
        /// The lock's name.
        name: Arc<str>,
    },
    /// A lease was lost before its release.
    #[non_exhaustive]
    LockLost {
        /// The lock's kind.
        kind: LockKind,
        /// The lock's name.
        name: Arc<str>,
        /// The fence of the lost lease.
        fence: Fence,
        /// The reason for the loss.
        reason: LockLoss,
    },
    /// This process has broken a lock.
    #[non_exhaustive]
    LockBroken {
        /// The lock's kind.
        kind: LockKind,
        /// The lock's name.
        name: Arc<str>,
    },
    /// A repeated idempotent request was answered with the stored response.
    #[non_exhaustive]
    IdempotentReplay {
        /// The name of the request's row.
        name: Arc<str>,
    },
    /// A key was evicted from memory to make room for other keys. Its stored version stays.
    #[non_exhaustive]
    MemoryEvicted {
        /// The key of the resource.
        key: Arc<str>,
    },
    /// The subscriber was too slow, and has missed events.
    #[non_exhaustive]
    Missed {
        /// The number of missed events.
        events: u64,
    },
}

/// A page that has changed although nobody invalidated it; in [`Event::MissedInvalidation`].
///
/// A page whose content differs with each generation, because it shows the time or a random number, is reported
/// as well. If a page contains a part with an interval of its own, the part is watched instead of the page.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct MissedInvalidation {
    /// The key of the resource.
    pub key: Arc<str>,
    /// The [name of the layer](crate::layer::RefreshLayer::name), or `content`.
    pub layer: Arc<str>,
    /// The tags that the old version had, with those of its parts. If one of them had been invalidated, visitors
    /// would have seen the change at once.
    pub tags: Vec<String>,
    /// The size of the part of the body that differs, in bytes.
    pub bytes: usize,
    /// The age of the version before.
    #[serde(
        rename = "age_s",
        serialize_with = "seconds",
        deserialize_with = "perennial_store::error::words::read_seconds"
    )]
    pub age: Duration,
}

/// A regeneration that has ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Regeneration {
    /// The key of the resource.
    pub key: Arc<str>,
    /// The [name of the layer](crate::layer::RefreshLayer::name), or `content`.
    pub layer: Arc<str>,
    /// The reason for the regeneration.
    pub reason: Reason,
    /// The outcome.
    pub outcome: Outcome,
    /// The time of the generator.
    #[serde(rename = "took_s", serialize_with = "seconds")]
    pub took: Duration,
    /// The size of the body, in bytes; zero without content.
    pub bytes: usize,
    /// The fence of the lease. `None` means that the database was unavailable, and that there was no lease.
    pub fence: Option<Fence>,
    /// The error of the generator.
    pub error: Option<Arc<str>>,
    /// Visitors still get the old version.
    pub serves_old: bool,
    /// How long no process tries again.
    #[serde(rename = "cooldown_s", serialize_with = "seconds")]
    pub cooldown: Duration,
}
