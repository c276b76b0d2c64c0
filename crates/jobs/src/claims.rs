//! Claiming rows of one of the application's tables, so that several workers process each row once. [`Claims`]
//! describes the table and makes claims; a [`Claim`] is the batch of one worker. The statements are in
//! `claims/sql.rs`.
//!
//! Invariant: a worker completes, releases and extends only rows that still carry its lock id.

mod sql;

use std::{
    fmt,
    time::{Duration, Instant},
};

use perennial_store::{Connection, Error, IntoDatabase, LostReplies, clock::FOREVER};

use crate::timing::SHORTEST_CLAIM;
use sql::{Filter, Table};

#[cfg(test)]
pub(crate) use sql::CLAIM;
pub use sql::Value;

/// Rows of one of the application's tables, from which each worker claims a batch that no other worker gets.
///
/// ```sql
/// CREATE TABLE mail (id BIGINT PRIMARY KEY, text TEXT NOT NULL, lock_id VARCHAR(36), locked_until BIGINT);
/// CREATE INDEX mail_lock_id ON mail (lock_id);
/// CREATE INDEX mail_locked_until ON mail (locked_until);
/// ```
///
/// ```
/// # async fn send(mail: &str) {}
/// # async fn f(pool: perennial_jobs::Database) -> Result<(), Box<dyn std::error::Error>> {
/// # use perennial_jobs::Claims;
/// # use std::time::Duration;
/// let mails = Claims::with_pool(pool, "mail").expires("locked_until", Duration::from_secs(60));
/// let claim = mails.claim(25).await?;
/// for id in claim.ids() {
///     send(id).await;
///     claim.complete_by_row(id).await?;
/// }
/// # Ok(()) }
/// ```
///
/// - `lock_id` needs 32 characters. With 36, there is also room for the UUIDs that programs in other languages
///   write.
/// - `id` is an integer, a string, or a value whose type is returned as UTF-8 text, such as PostgreSQL's UUID.
/// - `locked_until` is the end of the claim, in microseconds since 1970 by the database's clock.
///   Without the column, the rows of a crashed worker stay claimed.
/// - The names of tables and columns consist of letters, digits and `_`. The name of a table may begin with a
///   schema and a dot.
/// - MySQL has to be 8.0 or later, and MariaDB 10.6 (`SKIP LOCKED`).
#[derive(Clone)]
#[must_use = "nothing is claimed until `claim` is called"]
pub struct Claims {
    table: Table,
    /// The claims whose replies were lost, or that were cancelled.
    lost: LostReplies,
}

impl Claims {
    /// Creates claims on a table whose key is the column `id`, and which stores the claims in the column
    /// `lock_id`. `pool` is the application's own pool, or the one from `Perennial::database`.
    pub fn with_pool(pool: impl IntoDatabase, table: impl Into<String>) -> Self {
        Self {
            table: Table {
                database: pool.into(),
                name: table.into(),
                id: "id".to_owned(),
                lock: "lock_id".to_owned(),
                expiry: None,
                filters: Vec::new(),
                order: Vec::new(),
            },
            lost: LostReplies::default(),
        }
    }

    /// Names the column of the table's unique key. Default: `id`.
    pub fn id(mut self, column: impl Into<String>) -> Self {
        self.table.id = column.into();
        self
    }

    /// Names the column that says which claim a row belongs to. Default: `lock_id`.
    pub fn lock(mut self, column: impl Into<String>) -> Self {
        self.table.lock = column.into();
        self
    }

    /// Lets claims end after this time, so that another worker gets the rows of a worker that has crashed.
    /// `column` is the column in which the end is stored. Default: claims do not end.
    ///
    /// # Panics
    ///
    /// Panics below 100 ms.
    pub fn expires(mut self, column: impl Into<String>, after: Duration) -> Self {
        assert!(
            after >= SHORTEST_CLAIM,
            "a claim holds for at least {SHORTEST_CLAIM:?}"
        );
        self.table.expiry = Some((column.into(), after.min(FOREVER)));
        self
    }

    /// Claims only rows in which this column has this value. The comparison follows the column's collation.
    pub fn filter(mut self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        let filter = Filter::Is(column.into(), value.into());
        self.table.filters.push(filter);
        self
    }

    /// Claims only rows in which a column is NULL.
    pub fn filter_null(mut self, column: impl Into<String>) -> Self {
        self.table.filters.push(Filter::Null(column.into()));
        self
    }

    /// Claims only rows that satisfy a condition in SQL, such as `due <= now()`. The condition must not contain `$`,
    /// `?`, `{` or `}`.
    pub fn filter_sql(mut self, condition: &'static str) -> Self {
        self.table.filters.push(Filter::Sql(condition));
        self
    }

    /// Claims the rows with the smallest value of this column first. A second call orders rows whose values are the
    /// same. Default: any order.
    pub fn order(mut self, column: impl Into<String>) -> Self {
        self.table.order.push((column.into(), ""));
        self
    }

    /// Claims the rows with the greatest value of a column first.
    pub fn order_descending(mut self, column: impl Into<String>) -> Self {
        self.table.order.push((column.into(), " DESC"));
        self
    }

    /// Claims up to `limit` rows that have no claim, or one that has ended. If there are none, the claim is empty.
    ///
    /// If the database does not answer, this process asks which rows it has claimed. If it has claimed none, it
    /// tries again. It gives up after four times the statement timeout.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): a name, a condition or a column's type cannot be used. Or the database
    /// fails. If it turns out later that rows were claimed all the same, or if the future is dropped, this process
    /// releases them within a quarter of an hour.
    pub async fn claim(&self, limit: u32) -> Result<Claim, Error> {
        match self.try_claim(limit).await? {
            Ok(claim) => Ok(claim),
            // The statement failed, for example because the connection had been closed while it was idle, so
            // it is tried once more. If the lost statement claims rows after all, they are released.
            Err(_) => self.try_claim(limit).await?,
        }
    }

    /// Claims once. The inner error means that the statement has failed, and that no row had been claimed
    /// by it when the database was asked afterwards.
    async fn try_claim(&self, limit: u32) -> Result<Result<Claim, Error>, Error> {
        let mut claim = Claim {
            table: self.table.clone(),
            lock_id: uuid::Uuid::new_v4().simple().to_string(),
            ids: Vec::new(),
            begun: Instant::now(),
        };
        let claiming = self.table.claiming(&claim.lock_id, limit)?;
        let mut unconfirmed = UnconfirmedClaim {
            claims: self,
            lock_id: &claim.lock_id,
            confirmed: false,
        };
        let claimed = claiming.claim().await;
        let read = match claimed {
            Ok(0) => Ok(Vec::new()),
            _ => claiming.read().await,
        };
        let ids = match (claimed, read) {
            (Ok(0), Ok(ids)) => ids,
            (_, Ok(ids)) if !ids.is_empty() => ids,
            // The claim expired before the rows were read back.
            (Ok(_), Ok(_)) if claim.remaining().is_some_and(|left| left.is_zero()) => {
                return Err(Error::timeout("claim", claim.begun.elapsed()));
            }
            (Ok(_), Ok(_)) => {
                return Err(Error::invalid(format!(
                    "rows of {:?} were claimed, and cannot be found by the lock id: name a column of at least 32 \
                     characters, as VARCHAR(36), in place of {:?}, and a BIGINT for the expiry",
                    self.table.name, self.table.lock
                )));
            }
            (Err(error), Ok(_)) => return Ok(Err(error)),
            (_, Err(error)) => return Err(error),
        };
        unconfirmed.confirmed = true;
        drop(unconfirmed);
        drop(claiming);
        claim.ids = ids;
        Ok(Ok(claim))
    }
}

/// A claim whose outcome is not known. When it is dropped, its rows are released several times, because the
/// database may execute the claim later.
struct UnconfirmedClaim<'a> {
    claims: &'a Claims,
    lock_id: &'a str,
    /// There are no rows, or the caller has them.
    confirmed: bool,
}

impl Drop for UnconfirmedClaim<'_> {
    fn drop(&mut self) {
        if self.confirmed {
            return;
        }
        let (table, lock_id) = (self.claims.table.clone(), self.lock_id.to_owned());
        self.claims.lost.repeat(move || {
            let (table, lock_id) = (table.clone(), lock_id.clone());
            Some(async move { table.release(&lock_id, None).await.is_ok() })
        });
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims")
            .field("table", &self.table.name)
            .finish_non_exhaustive()
    }
}

/// Claimed rows; from [`Claims::claim`].
///
/// Work whose result is in the same database takes effect exactly once with
/// [`complete_by_row_in`](Self::complete_by_row_in), in the transaction that writes the result. Work that ends
/// elsewhere, such as an email, is done again by the next worker if this one crashes before
/// [`complete_by_row`](Self::complete_by_row): it is done at least once.
///
/// Dropping the claim does nothing: the rows can be claimed again when it expires; without
/// [`expires`](Claims::expires), never.
#[derive(Clone, Debug)]
#[must_use = "the rows stay claimed until they are completed or released"]
pub struct Claim {
    table: Table,
    lock_id: String,
    ids: Vec<String>,
    begun: Instant,
}

impl Claim {
    /// Returns the lock id of the claimed rows: 32 characters.
    pub fn lock_id(&self) -> &str {
        &self.lock_id
    }

    /// Returns the keys of the claimed rows, in the order of [`Claims::order`].
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// Returns how long the claim still lasts, by this process's monotonic clock. `None` means that it does not end.
    pub fn remaining(&self) -> Option<Duration> {
        let (_, after) = self.table.expiry.as_ref()?;
        Some(after.saturating_sub(self.begun.elapsed()))
    }

    /// Marks all rows that the claim still holds as completed, and returns their number.
    ///
    /// The first character of the lock id in a completed row is replaced by `-`, so that `lock_id LIKE '-%'`
    /// finds what is completed.
    ///
    /// # Errors
    ///
    /// The database fails. The call may have taken effect, and can be repeated.
    pub async fn complete(&self) -> Result<u64, Error> {
        let completed = self.table.complete(&self.lock_id, None, self.ids.len());
        completed.await
    }

    /// Marks a row as completed. Returns false if the claim does not have the row.
    ///
    /// # Errors
    ///
    /// The errors of [`complete`](Self::complete).
    pub async fn complete_by_row(&self, id: &str) -> Result<bool, Error> {
        let completed = self.table.complete(&self.lock_id, Some(id), 1);
        Ok(completed.await? > 0)
    }

    /// Marks all rows as completed in the caller's transaction, together with what the work has written: if the
    /// transaction is committed, both are there, and if not, neither is. Returns the number of rows, not
    /// counting those that this claim has lost or completed before. If some are missing, roll back.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn f(claims: perennial_jobs::Claims, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let claim = claims.claim(25).await?;
    /// let mut transaction = pool.begin().await?;
    /// for id in claim.ids() {
    ///     let update = sqlx::query("UPDATE parcel SET label = 'printed' WHERE id = $1::bigint");
    ///     update.bind(id).execute(&mut *transaction).await?;
    /// }
    /// // If this worker was too slow, another one has some of the rows, and the transaction is dropped.
    /// if claim.complete_in(&mut transaction).await? == claim.ids().len() as u64 {
    ///     transaction.commit().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// From the call to the end of the transaction, nobody else can claim the rows, even after the claim has
    /// ended.
    ///
    /// # Errors
    ///
    /// The database fails: roll back. [`Invalid`](crate::ErrorKind::Invalid): the connection is in no
    /// transaction. On MySQL, the driver has to know of the transaction. sqlx knows of those that were begun
    /// by `begin`.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, or if it ends with a [timeout](crate::ErrorKind::Timeout), roll the transaction back. On
    /// MySQL and MariaDB, close the connection as well.
    pub async fn complete_in(&self, transaction: impl Into<Connection<'_>>) -> Result<u64, Error> {
        let mut transaction = transaction.into();
        let completed = self
            .table
            .complete_in(&mut transaction, &self.lock_id, None);
        completed.await
    }

    /// Marks a row as completed in the caller's transaction, as [`complete_in`](Self::complete_in) does with all rows.
    /// Returns false if the claim does not have the row, or has completed it before: then roll back.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn f(claims: perennial_jobs::Claims, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let claim = claims.claim(25).await?;
    /// for id in claim.ids() {
    ///     let mut transaction = pool.begin().await?;
    ///     sqlx::query("UPDATE stock SET left_over = left_over - 1").execute(&mut *transaction).await?;
    ///     // If this worker was too slow, another one has the row, and the transaction is dropped.
    ///     if claim.complete_by_row_in(id, &mut transaction).await? {
    ///         transaction.commit().await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`complete_in`](Self::complete_in).
    pub async fn complete_by_row_in(
        &self,
        id: &str,
        transaction: impl Into<Connection<'_>>,
    ) -> Result<bool, Error> {
        let mut transaction = transaction.into();
        let completed = self
            .table
            .complete_in(&mut transaction, &self.lock_id, Some(id));
        Ok(completed.await? > 0)
    }

    /// Releases all rows that are not completed. Returns their number.
    ///
    /// # Errors
    ///
    /// The database fails: the call may have taken effect, and may be repeated.
    pub async fn release(&self) -> Result<u64, Error> {
        self.table.release(&self.lock_id, None).await
    }

    /// Releases a row. Returns false if the claim does not have the row.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Self::release).
    pub async fn release_by_row(&self, id: &str) -> Result<bool, Error> {
        Ok(self.table.release(&self.lock_id, Some(id)).await? > 0)
    }

    /// Extends the claim to its full length, counted from now. Returns the number of rows that it still has.
    ///
    /// # Errors
    ///
    /// The database fails. The claim may or may not have been extended; this process assumes that it was not.
    pub async fn extend(&mut self) -> Result<u64, Error> {
        let begun = Instant::now();
        let extended = self.table.extend(&self.lock_id).await?;
        self.begun = begun;
        Ok(extended)
    }
}
