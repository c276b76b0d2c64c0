//! Batches: rows of the application's own table, claimed under a lock id.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clock::FOREVER,
    error::Error,
    sql::{
        IntoDatabase,
        claims::{Filter, Table, Value},
    },
    store::{Reclaim, Sending, Strays},
    timing::SHORTEST_CLAIM,
};

/// Rows of a table that many workers share out among themselves: each claims up to so many, which nobody else gets.
///
/// The table is the application's own. It has a column for the key, one for the lock (a text of at least 33 characters that can be NULL: who has claimed the row), and better one for
/// the expiry (a BIGINT that can be NULL: until when, in microseconds since 1970 by the database's clock): then what a crashed worker has claimed comes back. No
/// two workers get a row while claims are honoured; one that is paused for longer than its claim may overlap with the next one, and finds
/// out when it [completes](Claim::complete_by_row) the row.
///
/// ```sql
/// CREATE TABLE mail (id BIGINT PRIMARY KEY, text TEXT NOT NULL, lock_id VARCHAR(36), locked_until BIGINT);
/// CREATE INDEX mail_lock_id ON mail (lock_id);
/// CREATE INDEX mail_locked_until ON mail (locked_until);
/// ```
///
/// ```
/// # async fn send(mail: &str) {}
/// # async fn f(pool: perennial::sql::Database) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use perennial::Claims;
///
/// let mails = Claims::on(pool, "mail")
///     .expires("locked_until", Duration::from_secs(60))
///     .order("id");
/// let claim = mails.claim(25).await?;
/// for id in claim.ids() {
///     // As long as it is known to be ours.
///     if claim.remaining().is_some_and(|left| left.is_zero()) {
///         break;
///     }
///     send(id).await;
///     claim.complete_by_row(id).await?;
/// }
/// claim.release().await?;
/// # Ok(()) }
/// ```
///
/// The names of the table and its columns are letters, digits and `_`, and are used just so, upper and lower case as it is; the table's may have that of
/// its schema and a dot in front. What a value is compared with is bound, never part of the statement.
///
/// Keys are integers or texts (or what else can be read as UTF-8 text: a UUID on PostgreSQL, but not a `BINARY(16)`). Claims are quick with an index on the lock's column and one on the expiry's; on
/// MySQL and MariaDB workers that come at the same time find fewer rows than there are where no index serves. They take rows by `SKIP LOCKED`, which MySQL has since 8.0, MariaDB since 10.6.
#[derive(Clone)]
#[must_use = "nothing is claimed until `claim` is called"]
pub struct Claims {
    table: Table,
    /// The lock ids of the claims whose answers were lost, or that were cancelled.
    strays: Arc<Strays<String>>,
}

impl Claims {
    /// The rows of a table, whose key is `id`, and whose lock `lock_id` unless it is said otherwise.
    ///
    /// `pool` is the application's own pool or a site's [database](crate::Perennial::database). Each statement has the
    /// [limit](crate::sql::Database::statement_limit) of that database: 5 s for a pool.
    pub fn on(pool: impl IntoDatabase, table: &str) -> Self {
        Self {
            table: Table {
                database: pool.into_database(),
                name: table.to_owned(),
                id: "id".to_owned(),
                lock: "lock_id".to_owned(),
                expiry: None,
                filters: Vec::new(),
                order: Vec::new(),
            },
            strays: Arc::default(),
        }
    }

    /// The column of the key, which tells one row from all others. Default: `id`.
    pub fn id(mut self, column: &str) -> Self {
        self.table.id = column.to_owned();
        self
    }

    /// The column that says who has claimed a row. Default: `lock_id`.
    pub fn lock(mut self, column: &str) -> Self {
        self.table.lock = column.to_owned();
        self
    }

    /// The column that says until when a row is claimed, and for how long (100 ms at least) a claim holds unless it is [extended](Claim::extend). Default: there is none; what a crashed worker
    /// has claimed then stays claimed.
    pub fn expires(mut self, column: &str, after: Duration) -> Self {
        self.table.expiry = Some((column.to_owned(), after.clamp(SHORTEST_CLAIM, FOREVER)));
        self
    }

    /// Claims only rows in which a column has this value; may be called several times.
    ///
    /// The database compares texts by the column's collation: on MySQL and MariaDB, unless the collation is a binary one, `'NEW'` is `'new'`, and with
    /// many collations `'new '` is, too.
    pub fn filter(mut self, column: &str, value: impl Into<Value>) -> Self {
        let filter = Filter::Is(column.to_owned(), value.into());
        self.table.filters.push(filter);
        self
    }

    /// Claims only rows in which a column is NULL; may be called several times.
    pub fn filter_null(mut self, column: &str) -> Self {
        self.table.filters.push(Filter::Null(column.to_owned()));
        self
    }

    /// Claims only rows for which a condition of the program's own holds, as it stands in SQL, without placeholders: `due <= now()`.
    pub fn filter_sql(mut self, condition: &'static str) -> Self {
        self.table.filters.push(Filter::Sql(condition));
        self
    }

    /// Claims those first in which a column is least; called several times, the first one counts most. Default: any.
    pub fn order(mut self, column: &str) -> Self {
        self.table.order.push((column.to_owned(), ""));
        self
    }

    /// As [`order`](Self::order), the greatest first.
    pub fn order_descending(mut self, column: &str) -> Self {
        self.table.order.push((column.to_owned(), " DESC"));
        self
    }

    /// Claims up to so many rows that nobody has claimed, or whose claims have expired. A claim without rows: there are none at the moment.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): a name of a table or column cannot be used, or a column doesn't hold what is written to it. Or the database fails, or doesn't answer within its [limit](crate::sql::Database::statement_limit), or a key can't be
    /// read as text. What may have been claimed is released soon after: at once, and five times more in the next 21 minutes, as the database may run the statement later. Rows
    /// that are claimed even later than that stay claimed until the claim [expires](Self::expires).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, it may have claimed rows, which are released soon after.
    pub async fn claim(&self, most: u32) -> Result<Claim, Error> {
        let mut claim = Claim {
            table: self.table.clone(),
            lock_id: uuid::Uuid::new_v4().simple().to_string(),
            ids: Vec::new(),
            begun: Instant::now(),
        };
        let claiming = self.table.claiming(&claim.lock_id, most)?;
        let sending = Sending::default();
        let mut unknown = Unknown {
            claims: self,
            lock_id: &claim.lock_id,
            sending: Some(sending.clone()),
        };
        let claimed = sending.watch(claiming.claim()).await;
        match &claimed {
            Ok(0) => {}
            // There are rows to release from here on.
            Ok(_) => unknown.sending = Some(Sending::default()),
            Err(error) if sending.is_settled() => return Err(error.clone()),
            Err(_) => {}
        }
        let ids = match (claimed, claiming.read().await) {
            (_, Ok(ids)) if !ids.is_empty() => ids,
            (Ok(0), Ok(_)) => Vec::new(),
            // It has expired before it was read back.
            (Ok(_), Ok(_)) if claim.remaining().is_some_and(|left| left.is_zero()) => {
                return Err(Error::timeout("claim", claim.begun.elapsed()));
            }
            (Ok(_), Ok(_)) => {
                return Err(Error::invalid(format!(
                    "rows of {:?} were claimed, and are not found by what was written to them: write the name of a column of at least 33 \
                     characters, as VARCHAR(36), where {:?} stands, and of a BIGINT for the expiry",
                    self.table.name, self.table.lock
                )));
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        unknown.sending = None;
        drop(unknown);
        drop(claiming);
        claim.ids = ids;
        Ok(claim)
    }
}

/// A claim whose outcome is not known. Dropped, its rows are released, several times, as the database may come to its statement later.
struct Unknown<'a> {
    claims: &'a Claims,
    lock_id: &'a str,
    /// `None`: there are no rows, or the caller has them.
    sending: Option<Sending>,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        if self
            .sending
            .as_ref()
            .is_some_and(|sending| !sending.is_settled())
        {
            let Claims { table, strays } = self.claims;
            strays.add(self.lock_id.to_owned(), Duration::ZERO, table.clone());
        }
    }
}

impl Reclaim for Table {
    type Lost = String;

    async fn reclaim(&self, lost: &[&String]) -> bool {
        let lock_ids: Vec<_> = lost.iter().map(|lock_id| lock_id.as_str()).collect();
        self.release(&lock_ids, None).await.is_ok()
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims")
            .field("table", &self.table.name)
            .finish_non_exhaustive()
    }
}

/// Rows that have been claimed; from [`Claims::claim`].
///
/// The application reads them by the lock id: `SELECT … WHERE lock_id = …`. Dropping it does nothing: what is neither completed nor released comes
/// back when the claim expires, if the table has a column for that.
///
/// What a worker does to its rows is safe against one that was overtaken when it says `AND lock_id = …` too.
#[derive(Clone, Debug)]
#[must_use = "the rows stay claimed until they are completed or released"]
pub struct Claim {
    table: Table,
    lock_id: String,
    ids: Vec<String>,
    begun: Instant,
}

impl Claim {
    /// What stands in the lock's column of its rows: 32 characters.
    pub fn lock_id(&self) -> &str {
        &self.lock_id
    }

    /// The keys of the rows that were claimed, as text, in the order of [`Claims::order`].
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// How long it holds at least, unless it is extended: counted from before the claim, by this process's monotonic clock. `None`: for good.
    pub fn remaining(&self) -> Option<Duration> {
        let (_, after) = self.table.expiry.as_ref()?;
        Some(after.saturating_sub(self.begun.elapsed()))
    }

    /// Notes that all its rows are done: nobody claims them again. Returns how many are; those that are missing somebody else has claimed.
    ///
    /// Their lock's column then has the lock id with a `-` in front, and the expiry's NULL.
    ///
    /// # Errors
    ///
    /// The database fails, or doesn't answer within its [limit](crate::sql::Database::statement_limit): they come back when the claim expires. It may be called again, also when they were completed.
    pub async fn complete(&self) -> Result<u64, Error> {
        self.table.complete(&self.lock_id, None).await
    }

    /// The same of one row; `false`: somebody else has claimed it, or it was released.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn complete_by_row(&self, id: &str) -> Result<bool, Error> {
        Ok(self.table.complete(&self.lock_id, Some(id)).await? > 0)
    }

    /// Gives all rows back that are not completed, for the next one to claim.
    ///
    /// # Errors
    ///
    /// The database fails: they come back when the claim expires.
    pub async fn release(&self) -> Result<(), Error> {
        self.table.release(&[&self.lock_id], None).await.map(drop)
    }

    /// The same of one row.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn release_by_row(&self, id: &str) -> Result<(), Error> {
        let lock_id = [&*self.lock_id];
        self.table.release(&lock_id, Some(id)).await.map(drop)
    }

    /// Lets the claim hold for its whole length again from now. Returns how many rows are still ours and not completed.
    ///
    /// # Errors
    ///
    /// The database fails: it stands as it was.
    pub async fn extend(&mut self) -> Result<u64, Error> {
        let begun = Instant::now();
        let extended = self.table.extend(&self.lock_id).await?;
        self.begun = begun;
        Ok(extended)
    }
}
