//! The answer that a request would get now, with the facts that lead to it. The decisions are those of
//! [`entry`](crate::cache::entry); nothing is generated or stored.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Error, Fence, LockKind, LockName, LockState, Probe,
    error::words::{of_seconds, read_seconds, seconds},
    words,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Listing;
use crate::{
    cache::{
        CacheEntry, Lookup, Version, Visitor,
        entry::{DecisionContext, Freshness},
        epochs::Validity,
    },
    event::{Bypass, MissedInvalidation, Served},
    policy::Refresh,
};

/// What a request would be answered with now, and the facts that lead to this answer; from
/// [`Perennial::explain`](crate::Perennial::explain). The crate `perennial-admin` puts it into words for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The answer. If the page would have to be generated first, this is [`Served::Generated`].
    pub served: Served,
    /// The [name of the layer](crate::layer::RefreshLayer::name).
    pub layer: String,
    /// The key, or `None` if the request bypasses the cache before it has one.
    pub key: Option<String>,
    /// The stored version. `None` means that there is none, or that it was not looked up because the request bypasses
    /// the cache.
    pub version: Option<ExplainedVersion>,
    /// Whether a process is generating the page, as far as this process knows. Always false if the answer is a fresh
    /// version, because it is not looked up then.
    pub is_running: bool,
    /// The cooldown after a failed generation, or `None` if none is known.
    pub cooldown: Option<ExplainedCooldown>,
    /// For how long the service itself goes on answering requests, because the last generation was not stored.
    /// `None` means that the reason for the bypass is in the request, or in the layer.
    #[serde(
        rename = "holds_for_s",
        serialize_with = "optional",
        deserialize_with = "read_optional"
    )]
    pub holds_for: Option<Duration>,
    /// The last time that this process noticed that the page [had changed although nobody had invalidated
    /// it](crate::event::Event::MissedInvalidation), if it ever did.
    #[serde(default)]
    pub missed_invalidation: Option<MissedInvalidation>,
    /// How the page would differ for this visitor. It is there only if the operator has asked for the
    /// comparison (`perennial explain --compare`), which runs the handler.
    #[serde(default)]
    pub comparison: Option<Comparison>,
    /// The names of the request's credentials (`cookie`, `authorization`) that the handler does not see.
    pub hidden_headers: Vec<String>,
}

/// A version in an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedVersion {
    /// Whether the version is in the memory of this process. Otherwise it is in the database alone.
    pub in_memory: bool,
    /// The state of the version.
    pub state: VersionState,
    /// The age.
    #[serde(
        rename = "age_s",
        serialize_with = "seconds",
        deserialize_with = "read_seconds"
    )]
    pub age: Duration,
    /// The age at which the version is stale.
    #[serde(
        rename = "interval_s",
        serialize_with = "seconds",
        deserialize_with = "read_seconds"
    )]
    pub interval: Duration,
    /// The tags, with those of the parts.
    pub tags: Vec<String>,
    /// The keys of the parts.
    pub parts: Vec<String>,
    /// The names of the [holes](crate::layer::RefreshLayer::hole).
    #[serde(default)]
    pub holes: Vec<String>,
}

/// The result of comparing the shared page with the page that the handler would make for a visitor's own request; in
/// an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Comparison {
    /// The page is the same for this request as for everybody.
    Same,
    /// Two generations without any header of a visitor already differ, for example because the page shows the
    /// time of day. So nothing can be said about the visitor's headers.
    DiffersEachTime,
    /// The page differs between requests. Without this header, it would be the same for all of them.
    DiffersByHeader(String),
    /// The page differs between requests, and no single header is the reason.
    DiffersByRequest,
    /// The page could not be compared: its generator fails, its response is not stored, or the comparison took longer
    /// than the policy's [`generator_timeout`](crate::Refresh::generator_timeout).
    NotCompared,
}

/// The pause after a failed generation, in an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainedCooldown {
    /// The time until the next attempt.
    #[serde(
        rename = "left_s",
        serialize_with = "seconds",
        deserialize_with = "read_seconds"
    )]
    pub left: Duration,
    /// The number of failed generations in a row, as far as is known.
    pub failures: u32,
    /// The error of the last failure with its causes, cut to 1,000 bytes. `None` means that the failure
    /// happened in another process, which has the error in its log.
    pub error: Option<String>,
}

words! {
    /// The state of a version in an [`Explanation`].
    pub enum VersionState("state of a version") {
        /// Younger than its interval.
        Fresh => "fresh",
        /// Older than its interval.
        Old => "old",
        /// Invalidated, and still served.
        Invalidated => "invalidated",
        /// Too old to be served.
        Expired => "expired",
        /// Purged, and not served any more.
        Purged => "purged",
    }
}

fn optional<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}

fn read_optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    Ok(seconds.map(of_seconds))
}

impl Explanation {
    /// Explains a request that bypasses the cache.
    pub(crate) fn bypass(why: Bypass) -> Self {
        Self::new(Served::Bypass(why))
    }

    fn new(served: Served) -> Self {
        Self {
            served,
            layer: String::new(),
            key: None,
            version: None,
            is_running: false,
            cooldown: None,
            holds_for: None,
            missed_invalidation: None,
            comparison: None,
            hidden_headers: Vec::new(),
        }
    }

    /// Adds what the page's lock tells about its regeneration: whether one is running, or has failed.
    /// `failure` is the error of the last regeneration, if this process knows it.
    fn with_lock(self, lock: &LockState, failure: Option<&str>) -> Self {
        let is_over = lock.remaining.is_zero();
        let cooldown = ExplainedCooldown {
            left: lock.remaining,
            failures: lock.failures,
            error: failure.map(str::to_owned),
        };
        Self {
            is_running: lock.owned && !is_over,
            cooldown: Some(cooldown).filter(|_| !lock.owned && !is_over),
            ..self
        }
    }
}

impl ExplainedVersion {
    fn new(version: &Version, context: &DecisionContext<'_>, in_memory: bool) -> Self {
        let meta = &version.page.meta;
        let is_invalidated = version.validity(context.list) != Validity::Valid;
        Self {
            in_memory,
            state: match version.freshness(context) {
                Freshness::Fresh => VersionState::Fresh,
                Freshness::Stale if is_invalidated => VersionState::Invalidated,
                Freshness::Stale => VersionState::Old,
                Freshness::Expired => VersionState::Expired,
                Freshness::Purged => VersionState::Purged,
            },
            age: version.age(context.now),
            interval: meta.terms(context.policy).interval,
            tags: meta.stored.tags.to_vec(),
            parts: meta.stored.parts.to_vec(),
            holes: version.page.holes().map_or_else(Vec::new, |holes| {
                holes.names.iter().map(ToString::to_string).collect()
            }),
        }
    }

    /// The answer to a request that finds this version.
    fn served(&self) -> Served {
        match self.state {
            VersionState::Fresh => Served::Hit,
            VersionState::Old | VersionState::Invalidated => Served::Stale,
            VersionState::Expired | VersionState::Purged => Served::Generated,
        }
    }
}

impl Listing {
    /// Explains the answer to a request with this key, from memory or else from the database. Generates
    /// and stores nothing.
    pub(crate) async fn explain(&self, key: &str, policy: &Refresh) -> Result<Explanation, Error> {
        self.sync.wait_if_overdue().await;
        let context = self.environment.context(key, policy);
        let visitor = Visitor::arriving_at(context.now);
        let known = self.memory.get(key).filter(|known| {
            matches!(known, CacheEntry::Version(_))
                || matches!(
                    known.clone().lookup(&visitor, &context, || false),
                    Lookup::Hit(_)
                )
        });
        let probe = async |known| {
            let name = LockName::of(LockKind::Page, key);
            self.environment.store.call(Probe { name, known }).await
        };
        let (version, in_memory, lock) = match known {
            Some(CacheEntry::Version(version)) => (version, true, None),
            Some(CacheEntry::HitForPass { until, why, .. }) => {
                return Ok(Explanation {
                    holds_for: Some(until - context.now),
                    ..Explanation::bypass(why)
                });
            }
            Some(CacheEntry::Cooldown {
                until,
                failures,
                failure,
                ..
            }) => {
                let cooldown = ExplainedCooldown {
                    left: until - context.now,
                    failures,
                    error: failure.as_deref().map(str::to_owned),
                };
                return Ok(Explanation {
                    cooldown: Some(cooldown),
                    ..Explanation::new(Served::Unavailable)
                });
            }
            None => {
                let asked = self.environment.now();
                let probed = probe(Fence::NONE).await?;
                let Some(entry) = probed.entry else {
                    return Ok(self.explain_missing(&probed.lock));
                };
                let version = Version::stored(key, entry, asked, policy, None);
                if version.page.meta.stored.is_damaged {
                    return Ok(self.explain_missing(&probed.lock));
                }
                (Arc::new(version), false, Some(probed.lock))
            }
        };
        let found =
            ExplainedVersion::new(&version, &self.environment.context(key, policy), in_memory);
        let lock = match (found.served(), lock) {
            (Served::Hit, _) => None,
            (_, Some(lock)) => Some(lock),
            (_, None) => probe(Fence::MAX).await.ok().map(|probed| probed.lock),
        };
        let explanation = match (found.served(), lock) {
            (Served::Generated, Some(lock)) => self.explain_missing(&lock),
            (served, Some(lock)) => {
                Explanation::new(served).with_lock(&lock, version.failure.as_deref())
            }
            (served, None) => Explanation::new(served),
        };
        let missed = self.missed.of(key);
        Ok(Explanation {
            version: Some(found),
            missed_invalidation: missed.map(Arc::unwrap_or_clone),
            comparison: None,
            ..explanation
        })
    }

    /// Explains the answer to a request for a page that has no version which may be served. `lock` is the state
    /// of the page's lock.
    fn explain_missing(&self, lock: &LockState) -> Explanation {
        if self.environment.is_shutting_down() {
            return Explanation::bypass(Bypass::ShuttingDown);
        }
        let served = match (lock.owned, lock.remaining.is_zero()) {
            (true, false) => Served::Collapsed,
            (false, false) => Served::Unavailable,
            (_, true) => Served::Generated,
        };
        Explanation::new(served).with_lock(lock, None)
    }
}
