//! Invalidations in the application's own transaction (the outbox pattern): they count if the transaction
//! commits, and never otherwise.

use std::{fmt, sync::Arc};

use perennial_store::{Connection, Error, name::IntoNames, sql::outbox};

use super::Perennial;
use crate::cache::{Cache, Target};

impl Perennial {
    /// Makes all resources with these tags stale if the caller's transaction commits, and changes nothing if it rolls
    /// back (the outbox pattern). Nothing is lost when the process crashes between the change and its invalidation.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(site: perennial::Perennial, pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// let invalidation = site.invalidate_in(&mut transaction, ["product-7"]).await?;
    /// transaction.commit().await?;
    /// invalidation.committed().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Call [`committed`](PendingInvalidation::committed) after the commit: then this process knows of the
    /// invalidation at once. Without that call, this process learns of it as the others do, within about a
    /// second.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails. Then, and if the future is dropped, roll the transaction back.
    /// The error is [`Invalid`](crate::ErrorKind::Invalid) if the connection is in no transaction, if its
    /// database does not have the site's tables, or if the site has no SQL database. On MySQL, the driver has
    /// to know of the transaction. sqlx knows of those that were begun by `begin`.
    pub async fn invalidate_in(
        &self,
        transaction: impl Into<Connection<'_>>,
        tags: impl IntoNames,
    ) -> Result<PendingInvalidation, Error> {
        let tags = tags.into_names();
        let names = tags.iter().map(|tag| Target::Tag(tag).name());
        self.write_in(transaction.into(), names).await
    }

    /// Purges all resources with these tags if the caller's transaction commits. It works like
    /// [`invalidate_in`](Self::invalidate_in), but the old versions are no longer served afterwards.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # async fn f(site: perennial::Perennial, pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// let purge = site.purge_in(&mut transaction, "user-7").await?;
    /// transaction.commit().await?;
    /// purge.committed().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`invalidate_in`](Self::invalidate_in).
    pub async fn purge_in(
        &self,
        transaction: impl Into<Connection<'_>>,
        tags: impl IntoNames,
    ) -> Result<PendingInvalidation, Error> {
        let tags = tags.into_names();
        let names = tags.iter().map(|tag| Target::PurgedTag(tag).name());
        self.write_in(transaction.into(), names).await
    }

    /// Returns the SQL with which a program invalidates all resources with these tags in its own transaction,
    /// through any driver. If your driver is one that [`invalidate_in`](Self::invalidate_in) accepts, call that
    /// instead.
    ///
    /// ```
    /// # struct Transaction;
    /// # impl Transaction { fn execute(&self, sql: &str, values: &[String]) {} fn commit(self) {} }
    /// # async fn f(site: perennial::Perennial, transaction: Transaction) -> Result<(), Box<dyn std::error::Error>> {
    /// let invalidation = site.invalidation_sql(["product-7"])?;
    /// transaction.execute(invalidation.sql(), invalidation.values());
    /// transaction.commit();
    /// invalidation.committed().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Use each statement in one transaction only. Each call returns different values.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): a tag cannot be used, there are more than 10,000, or the site
    /// was opened in memory, without a database.
    pub fn invalidation_sql(&self, tags: impl IntoNames) -> Result<InvalidationSql, Error> {
        let tags = tags.into_names();
        self.sql_of(tags.iter().map(|tag| Target::Tag(tag).name()))
    }

    /// Returns the statement that purges all resources with these tags. It works like
    /// [`invalidation_sql`](Self::invalidation_sql), but their stored versions are not served any more,
    /// not even while new ones are generated.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// let purge = site.purge_sql("user-7")?;
    /// println!("{} with {:?}", purge.sql(), purge.values());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`invalidation_sql`](Self::invalidation_sql).
    pub fn purge_sql(&self, tags: impl IntoNames) -> Result<InvalidationSql, Error> {
        let tags = tags.into_names();
        self.sql_of(tags.iter().map(|tag| Target::PurgedTag(tag).name()))
    }

    fn sql_of(
        &self,
        names: impl Iterator<Item = Result<String, Error>>,
    ) -> Result<InvalidationSql, Error> {
        let rows = rows(names)?;
        let (tables, dialect) = (self.cache.store().tables()?, self.database()?.dialect());
        let sql = outbox::text(tables, dialect, rows.len())?;
        Ok(InvalidationSql {
            sql,
            values: rows
                .iter()
                .flat_map(|(id, name)| [id.clone(), name.clone()])
                .collect(),
            pending: self.pending(rows),
        })
    }

    fn pending(&self, rows: Vec<(String, String)>) -> PendingInvalidation {
        PendingInvalidation {
            cache: Arc::clone(&self.cache),
            ids: rows.into_iter().map(|(id, _)| id).collect(),
        }
    }

    async fn write_in(
        &self,
        connection: Connection<'_>,
        names: impl Iterator<Item = Result<String, Error>>,
    ) -> Result<PendingInvalidation, Error> {
        let rows = rows(names)?;
        let store = self.cache.store();
        outbox::write(connection, store.tables()?, &rows, store.limit()).await?;
        Ok(self.pending(rows))
    }
}

/// Returns rows for the outbox: new ids, and the names.
fn rows(
    names: impl Iterator<Item = Result<String, Error>>,
) -> Result<Vec<(String, String)>, Error> {
    let id = || uuid::Uuid::new_v4().simple().to_string();
    names.map(|name| Ok((id(), name?))).collect()
}

/// A statement that writes an invalidation in one of the application's transactions. It is created by
/// [`Perennial::invalidation_sql`]. Dropping it changes nothing.
#[must_use = "its statement is to be run in a transaction"]
pub struct InvalidationSql {
    sql: Arc<str>,
    values: Vec<String>,
    pending: PendingInvalidation,
}

impl InvalidationSql {
    /// The statement, with the database's own placeholders: `?` on SQLite, MySQL and MariaDB, and `$1`, `$2`,
    /// … on PostgreSQL.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The strings for the placeholders, in their order.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Does the same as [`PendingInvalidation::committed`]. Call it after the commit.
    ///
    /// # Errors
    ///
    /// Those of [`PendingInvalidation::committed`].
    pub async fn committed(self) -> Result<(), Error> {
        self.pending.committed().await
    }
}

impl fmt::Debug for InvalidationSql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut invalidation = f.debug_struct("InvalidationSql");
        invalidation.field("sql", &self.sql).finish_non_exhaustive()
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
    /// Applies the invalidation after the commit: this process knows of it when the call returns.
    ///
    /// # Errors
    ///
    /// The database fails. The invalidation is not lost: it was committed with the transaction, and the next sync
    /// of any process applies it. So a caller may log the error and go on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the next sync.
    pub async fn committed(self) -> Result<(), Error> {
        self.cache.sync().on_commit(&self.ids).await.map(drop)
    }
}

impl fmt::Debug for PendingInvalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingInvalidation")
            .finish_non_exhaustive()
    }
}
