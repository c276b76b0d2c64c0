//! The metadata of a key in memory, and the verdict of the invalidation list.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use http::StatusCode;

use crate::{
    extensions::Tags,
    http::terms::{self, Terms},
    key,
    policy::{self, Refresh},
    resource::{
        Invalidations, Metadata,
        state::{AsOf, Freshness, Verdicts},
    },
    timing::{PROVISIONAL, random_unit},
};

/// The metadata of a version, or of a key without one.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(super) key: Box<str>,
    pub(crate) stored: Metadata,
    /// The status of the response.
    status: StatusCode,
    /// The interval and the limits of staleness that the response's headers declare; `None`: they
    /// declare nothing.
    declared: Option<Terms>,
    /// The key's place in the spread of `Refresh::jitter`.
    unit: f64,
    /// The interval by the policy's schedule.
    scheduled: Option<Duration>,
    /// The random time by which this process regenerates earlier than `Refresh::early` says.
    lead: Duration,
    /// The verdict of the invalidation list (the lowest two bits), and the list's count of changes
    /// at the time of the verdict.
    verdict: AtomicU64,
}

impl Meta {
    pub(crate) fn new(key: &str, stored: Metadata) -> Self {
        Self {
            key: key.into(),
            stored,
            status: StatusCode::OK,
            declared: None,
            unit: key::unit(key),
            scheduled: None,
            lead: Duration::ZERO,
            // The verdict before the first change.
            verdict: AtomicU64::new(0),
        }
    }

    /// Creates the metadata of a key without a version.
    pub(crate) fn without_version(key: &str, as_of: AsOf, Tags(tags): Tags) -> Self {
        let AsOf { epoch, revision } = as_of;
        let stored = Metadata {
            epoch,
            revision,
            tags,
            ..Metadata::default()
        };
        Self::new(key, stored)
    }

    /// Adds the times that the response declares.
    pub(super) fn of_response(self, head: &http::response::Response<bytes::Bytes>) -> Self {
        Self {
            status: head.status(),
            declared: terms::declared(head.headers()),
            ..self
        }
    }

    /// Sets the times that follow from the policy of the regeneration. `[began, written]`: the
    /// begin of the generator and the publish, in microseconds since 1970 by the database's clock.
    pub(super) fn timed(&mut self, policy: &Refresh, times: [i64; 2]) {
        self.scheduled = policy.scheduled(times, self.unit);
        self.lead = policy::lead(self.stored.took, random_unit());
    }

    pub(crate) fn as_of(&self) -> AsOf {
        AsOf {
            epoch: self.stored.epoch,
            revision: self.stored.revision,
        }
    }

    #[inline(always)]
    pub(crate) fn terms(&self, policy: &Refresh) -> Terms {
        let mut terms = match self.declared.filter(|_| policy.from_headers) {
            Some(declared) => declared,
            None => {
                let interval = self.scheduled;
                let interval = interval.unwrap_or_else(|| policy.interval_at(self.unit));
                let interval = terms::interval_for(self.status, interval);
                Terms {
                    interval,
                    early: interval,
                    stale_while_revalidate: policy.stale_while_revalidate,
                    stale_if_error: policy.stale_if_error,
                }
            }
        };
        if let Some(interval) = self.stored.refresh_after {
            terms.interval = interval;
        }
        if self.stored.is_provisional {
            terms.interval = terms.interval.min(PROVISIONAL);
        }
        terms.early = policy.early_after(terms.interval, self.lead);
        terms
    }
}

impl Verdicts for Invalidations {
    fn latest(&self) -> i64 {
        self.latest()
    }

    fn revision(&self) -> i64 {
        self.revision()
    }

    /// Judges the metadata. A verdict never improves, as invalidations only grow in number.
    fn judge(&self, meta: &Meta) -> Freshness {
        let changes = self.changes();
        let cached = meta.verdict.load(Relaxed);
        let verdict = if cached >> 2 == changes {
            cached & 3
        } else {
            let verdict = match self.judge(&meta.key, &meta.stored) {
                Freshness::Purged => 2,
                Freshness::Fresh => 0,
                _ => 1,
            };
            let verdict = verdict.max(cached & 3);
            meta.verdict.store(changes << 2 | verdict, Relaxed);
            verdict
        };
        match verdict {
            0 => Freshness::Fresh,
            1 => Freshness::Stale,
            _ => Freshness::Purged,
        }
    }
}
