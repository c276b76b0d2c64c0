//! Invalidations in the application's own transaction (the outbox pattern): they count if the transaction
//! commits, and never otherwise.

use std::{fmt, sync::Arc};

use perennial_store::{Connection, Error, sql::outbox};

use super::Perennial;
use crate::cache::{Cache, Target};

impl Perennial {
    /// Makes all resources with these tags stale when the caller's transaction commits, and not if it
    /// rolls back (the outbox pattern).
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(site: perennial::Perennial, pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// let invalidation = site.invalidate_in(&mut transaction, ["product-7"]).await?;
    /// transaction.commit().await?;
    /// invalidation.committed().await;
    /// # Ok(()) }
    /// ```
    ///
    /// [`committed`](PendingInvalidation::committed) applies the invalidation; without that call,
    /// the next sync of any process does, within a second.
    ///
    /// # Errors
    ///
    /// The database fails, or the future is dropped: roll back.
    /// [`Invalid`](perennial_store::ErrorKind::Invalid): the connection is in no transaction (on MySQL: in
    /// none that sqlx has begun), its database has not the site's tables, or the site is open in memory.
    pub async fn invalidate_in(
        &self,
        transaction: impl Into<Connection<'_>>,
        tags: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<PendingInvalidation, Error> {
        let tags = tags.into_iter();
        let names = tags.map(|tag| Target::Tag(tag.as_ref()).name());
        self.write_in(transaction.into(), names).await
    }

    /// Ends the serving of all resources with these tags when the caller's transaction commits, as
    /// [`invalidate_in`](Self::invalidate_in) makes them stale.
    pub async fn purge_in(
        &self,
        transaction: impl Into<Connection<'_>>,
        tags: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<PendingInvalidation, Error> {
        let tags = tags.into_iter();
        let names = tags.map(|tag| Target::PurgedTag(tag.as_ref()).name());
        self.write_in(transaction.into(), names).await
    }

    async fn write_in(
        &self,
        connection: Connection<'_>,
        names: impl Iterator<Item = Result<String, Error>>,
    ) -> Result<PendingInvalidation, Error> {
        let id = || uuid::Uuid::new_v4().simple().to_string();
        let rows = names.map(|name| Ok((id(), name?)));
        let rows: Vec<_> = rows.collect::<Result<_, Error>>()?;
        let store = self.cache.store();
        outbox::write(connection, store.tables()?, &rows, store.limit()).await?;
        Ok(PendingInvalidation {
            cache: Arc::clone(&self.cache),
            ids: rows.into_iter().map(|(id, _)| id).collect(),
        })
    }
}

/// An invalidation in the application's transaction; from [`Perennial::invalidate_in`]. Dropping it
/// changes nothing.
#[must_use = "`committed` applies the invalidation after the commit; without it, the next sync does"]
pub struct PendingInvalidation {
    cache: Arc<Cache>,
    ids: Vec<String>,
}

impl PendingInvalidation {
    /// Applies the invalidation after the commit: this process knows it when the call returns. If
    /// the database fails, the next sync applies it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the next sync.
    pub async fn committed(self) {
        // The store logs a failure.
        let _ = self.cache.sync().on_commit(&self.ids).await;
    }
}

impl fmt::Debug for PendingInvalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingInvalidation")
            .finish_non_exhaustive()
    }
}
