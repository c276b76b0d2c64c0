//! The log lines of a regeneration.

use std::sync::Arc;

use super::Driver;
use crate::resource::{Page, state::Report};

impl Driver {
    pub(super) fn log(&self, report: Report<Arc<Page>>) {
        let key = &*self.key;
        match report {
            Report::Waits(time) => tracing::info!(
                key,
                "no version can be served; another process holds the lock, or has crashed: its lease ends in {time:.1?}"
            ),
            Report::WithoutLease => tracing::debug!(key, "generating without a lease"),
            Report::Unshareable(why) => tracing::info!(
                key,
                "the response is not stored, as {}: each request goes to the service",
                why.reason()
            ),
            Report::TooLarge { is_servable: false } => tracing::info!(
                key,
                "the response is too large to be stored: each request goes to the service"
            ),
            Report::TooLarge { is_servable: true } => tracing::warn!(
                key,
                "the response is too large to be stored; the old version is still served"
            ),
            Report::Failed {
                failure,
                is_servable,
            } => tracing::warn!(
                key,
                error = %failure.error,
                again_in = ?self.policy.cooldown_time(),
                "the generator failed{}",
                if is_servable { "; the old version is still served" } else { "" }
            ),
            Report::Refused => tracing::warn!(
                key,
                "the publish was refused: another process has taken the lock over"
            ),
        }
    }
}
