use std::{sync::Arc, time::Duration};

use perennial_store::{Error, LockKind, LockName, Probe, error::words::seconds, name::visible};
use serde::{Serialize, Serializer};

use super::{Freshness, Known, Pages, Version, flight::Facts};
use crate::{
    event::{Bypass, Served},
    policy::Refresh,
};

/// The answer that a request would get now; from [`Perennial::explain`](crate::Perennial::explain).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The answer. A request whose response is not known yet counts as [`Served::Generated`].
    pub served: Served,
    /// The reason, in a sentence. After a failed generation of this process a second one has the error
    /// with its causes, at most 1,000 bytes of them.
    pub why: String,
    /// What to change if another answer was expected.
    pub remedy: &'static str,
    /// The [name of the layer](crate::layer::RefreshLayer::name).
    pub layer: String,
    /// The key; `None`: the request bypasses the cache before it has one.
    pub key: Option<String>,
    /// The age of the version; `None`: there is none.
    #[serde(rename = "age_s", serialize_with = "optional")]
    pub age: Option<Duration>,
    /// The age at which the version is stale.
    #[serde(rename = "interval_s", serialize_with = "optional")]
    pub interval: Option<Duration>,
    /// The tags, with those of the parts.
    pub tags: Vec<String>,
    /// The keys of the parts.
    pub parts: Vec<String>,
}

fn optional<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}

impl Explanation {
    /// Explains a request that bypasses the cache.
    pub(crate) fn bypass(why: Bypass) -> Self {
        Self::new(Served::Bypass(why), why.text().to_owned())
    }

    fn new(served: Served, why: String) -> Self {
        Self {
            served,
            why,
            remedy: served.remedy(),
            layer: String::new(),
            key: None,
            age: None,
            interval: None,
            tags: Vec::new(),
            parts: Vec::new(),
        }
    }
}

impl Pages {
    pub(crate) fn has_in_memory(&self, key: &str) -> bool {
        self.memory.get(key).is_some()
    }

    /// Explains the answer to a request with this key, from memory or else from the database. Generates
    /// and stores nothing.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        key: &str,
        policy: &Refresh,
    ) -> Result<Explanation, Error> {
        self.synced().await;
        let facts = self.facts(key, policy);
        let known = self.memory.get(key).filter(|known| {
            matches!(known, Known::Version(_)) || known.clone().look(&facts, || false).is_ok()
        });
        let (version, place) = match known {
            Some(Known::Version(version)) => (version, "memory"),
            Some(Known::HitForPass { until, why, .. }) => {
                let explanation = Explanation::bypass(why);
                let left = (until - facts.now).as_secs();
                let why = format!(
                    "{} The last generation has shown this, and it holds for {left} s.",
                    explanation.why
                );
                return Ok(Explanation { why, ..explanation });
            }
            Some(Known::Cooldown { until, failure, .. }) => {
                let mut explanation = in_cooldown((until - facts.now).as_secs());
                explanation.why += &error_of(failure.as_deref());
                return Ok(explanation);
            }
            None => {
                let (name, asked) = (LockName::of(LockKind::Page, key), self.now());
                let probed = self.store.call(Probe { name, known: 0 }).await?;
                let lock = probed.lock;
                let Some(entry) = probed.entry else {
                    return Ok(match (lock.owned, lock.remaining.as_secs()) {
                        _ if self.is_closing() => Explanation::bypass(Bypass::ShuttingDown),
                        (true, 1..) => Explanation::new(
                            Served::Collapsed,
                            "No version is stored yet, and a process generates the first one."
                                .to_owned(),
                        ),
                        (false, left @ 1..) => in_cooldown(left),
                        _ => Explanation::new(
                            Served::Generated,
                            "No version is stored: the request generates the first one.".to_owned(),
                        ),
                    });
                };
                let version = Version::stored(key, entry, asked, policy, None);
                (Arc::new(version), "the database")
            }
        };
        let explanation = explain_version(&version, &self.facts(key, policy), place);
        Ok(match explanation.served {
            Served::Stale => self.explain_stale(explanation, key, &version).await,
            _ => explanation,
        })
    }

    /// Adds the state of the regeneration, if the database has it.
    async fn explain_stale(
        &self,
        mut explanation: Explanation,
        key: &str,
        version: &Version,
    ) -> Explanation {
        let probe = Probe {
            name: LockName::of(LockKind::Page, key),
            known: i64::MAX,
        };
        if let Ok(probed) = self.store.call(probe).await {
            let lock = probed.lock;
            match (lock.owned, lock.remaining.as_secs()) {
                (true, 1..) => explanation.why += " A process regenerates it.",
                (false, left @ 1..) => {
                    let failed = format!(
                        " The last regeneration has failed ({} in a row). The next attempt is in {left} s.",
                        lock.failures
                    );
                    explanation.why += &failed;
                    explanation.why += &error_of(version.failure.as_deref());
                    explanation.remedy = Served::Failed.remedy();
                }
                _ => {}
            }
        }
        explanation
    }
}

fn explain_version(version: &Version, facts: &Facts<'_>, place: &str) -> Explanation {
    let (age, meta) = (version.age(facts.now), &version.page.meta);
    let interval = meta.terms(facts.policy).interval;
    let invalidated = version.invalidated(facts.list) != Freshness::Fresh;
    let (served, state) = match version.freshness(facts) {
        Freshness::Fresh => (Served::Hit, "is fresh"),
        Freshness::Stale if invalidated => (Served::Stale, "was invalidated"),
        Freshness::Stale => (Served::Stale, "is older than its interval"),
        Freshness::Expired => (Served::Generated, "is too old to be served"),
        Freshness::Purged => (Served::Generated, "was purged"),
    };
    let seconds = [age, interval].map(|time| time.as_secs());
    let why = format!(
        "The version in {place} {state}: {} s old, of an interval of {} s.",
        seconds[0], seconds[1]
    );
    Explanation {
        age: Some(age),
        interval: Some(interval),
        tags: meta.stored.tags.to_vec(),
        parts: meta.stored.parts.to_vec(),
        ..Explanation::new(served, why)
    }
}

/// Returns a sentence with the error of a failure. Without a failure that this process knows, the log
/// of another one has the error.
fn error_of(failure: Option<&str>) -> String {
    failure.map_or_else(String::new, |error| {
        format!(" Its error: {}", visible(error))
    })
}

fn in_cooldown(left: u64) -> Explanation {
    let why = format!(
        "There is no version, and the last generation has failed. The next attempt is in {left} s."
    );
    Explanation::new(Served::Unavailable, why)
}
