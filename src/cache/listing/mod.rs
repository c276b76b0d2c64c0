//! What operators can see of a site's pages: the list of entries, and explanations of answers. This module only
//! reads.

pub(crate) mod entries;
pub(crate) mod explain;
mod list;

use std::sync::Arc;

use perennial_store::Error;

use crate::cache::{
    environment::Environment, invalidation::InvalidationSync, memory::Memory,
    missed::MissedInvalidations,
};

/// The listing of a site. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Listing {
    environment: Environment,
    memory: Arc<Memory>,
    sync: Arc<InvalidationSync>,
    missed: Arc<MissedInvalidations>,
}

impl Listing {
    pub(crate) fn new(
        environment: Environment,
        memory: Arc<Memory>,
        sync: Arc<InvalidationSync>,
        missed: Arc<MissedInvalidations>,
    ) -> Self {
        Self {
            environment,
            memory,
            sync,
            missed,
        }
    }

    /// Waits until this process knows all invalidations that were made before this call, but no longer than a
    /// request would wait.
    async fn wait_until_known(&self) -> Result<(), Error> {
        self.sync.wait_if_overdue().await;
        self.sync.wait_for_all_before_start().await
    }
}
