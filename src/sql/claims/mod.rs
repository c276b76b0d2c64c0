//! Batches: rows of the application's own table, claimed under a lock id.

mod claim;
mod statement;
mod value;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clock::FOREVER,
    error::{BoxError, Error},
    sql::{
        IntoDatabase,
        pool::{Answer, Sql},
        run::Arg,
    },
    store::{Reclaim, Sending, Strays},
    timing::{SHORTEST_CLAIM, within},
};

use value::Kind;

pub use claim::Claim;
pub use value::Value;

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
    sql: Arc<dyn Sql>,
    limit: Duration,
    table: String,
    id: String,
    lock: String,
    expiry: Option<(String, Duration)>,
    filters: Vec<Filter>,
    order: Vec<(String, &'static str)>,
    /// The lock ids of the claims whose answers were lost, or that were cancelled.
    strays: Arc<Strays<String>>,
}

#[derive(Clone)]
enum Filter {
    Is(String, Value),
    Null(String),
    Sql(&'static str),
}

impl Claims {
    /// The rows of a table, whose key is `id`, and whose lock `lock_id` unless it is said otherwise.
    pub fn on(pool: impl IntoDatabase, table: &str) -> Self {
        let database = pool.into_database();
        Self {
            limit: database.limit(),
            sql: database.sql(),
            table: table.to_owned(),
            id: "id".to_owned(),
            lock: "lock_id".to_owned(),
            expiry: None,
            filters: Vec::new(),
            order: Vec::new(),
            strays: Arc::default(),
        }
    }

    /// The column of the key, which tells one row from all others. Default: `id`.
    pub fn id(mut self, column: &str) -> Self {
        self.id = column.to_owned();
        self
    }

    /// The column that says who has claimed a row. Default: `lock_id`.
    pub fn lock(mut self, column: &str) -> Self {
        self.lock = column.to_owned();
        self
    }

    /// The column that says until when a row is claimed, and for how long (100 ms at least) a claim holds unless it is [extended](Claim::extend). Default: there is none; what a crashed worker
    /// has claimed then stays claimed.
    pub fn expires(mut self, column: &str, after: Duration) -> Self {
        self.expiry = Some((column.to_owned(), after.clamp(SHORTEST_CLAIM, FOREVER)));
        self
    }

    /// Claims only rows in which a column has this value; may be called several times.
    ///
    /// The database compares texts by the column's collation: on MySQL and MariaDB, unless the collation is a binary one, `'NEW'` is `'new'`, and with
    /// many collations `'new '` is, too.
    pub fn filter(mut self, column: &str, value: impl Into<Value>) -> Self {
        let filter = Filter::Is(column.to_owned(), value.into());
        self.filters.push(filter);
        self
    }

    /// Claims only rows in which a column is NULL; may be called several times.
    pub fn filter_null(mut self, column: &str) -> Self {
        self.filters.push(Filter::Null(column.to_owned()));
        self
    }

    /// Claims only rows for which a condition of the program's own holds, as it stands in SQL, without placeholders: `due <= now()`.
    pub fn filter_sql(mut self, condition: &'static str) -> Self {
        self.filters.push(Filter::Sql(condition));
        self
    }

    /// Claims those first in which a column is least; called several times, the first one counts most. Default: any.
    pub fn order(mut self, column: &str) -> Self {
        self.order.push((column.to_owned(), ""));
        self
    }

    /// As [`order`](Self::order), the greatest first.
    pub fn order_descending(mut self, column: &str) -> Self {
        self.order.push((column.to_owned(), " DESC"));
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
            claims: self.clone(),
            lock_id: uuid::Uuid::new_v4().simple().to_string(),
            ids: Vec::new(),
            begun: Instant::now(),
        };
        let (statement, arguments) = self.to_claim(&claim.lock_id, most)?;
        let read_back = self.to_read_back()?;
        let mut unknown = Unknown {
            claims: self,
            lock_id: &claim.lock_id,
            sending: Sending::default(),
            nothing: false,
        };
        let claimed = self.sql.run_once(&statement, &arguments);
        let claimed = unknown.sending.watch(self.limited("claim", claimed)).await;
        match &claimed {
            Ok(Answer { changed: 0, .. }) => {}
            // There are rows to release from here on.
            Ok(_) => unknown.sending = Sending::default(),
            Err(error) if unknown.sending.is_settled() => return Err(error.clone()),
            Err(_) => {}
        }
        // By its lock id it is known what has been claimed, also when the answer was lost.
        let by_id = [Arg::Text(&claim.lock_id)];
        let ids = self.sql.run(&read_back, &by_id);
        let ids = match (claimed, self.limited("claim", ids).await) {
            (_, Ok(ids)) if !ids.texts.is_empty() => ids.texts,
            (Ok(claimed), Ok(_)) if claimed.changed == 0 => Vec::new(),
            // It has expired before it was read back.
            (Ok(_), Ok(_)) if claim.remaining().is_some_and(|left| left.is_zero()) => {
                return Err(Error::timeout("claim", claim.begun.elapsed()));
            }
            (Ok(_), Ok(_)) => {
                return Err(Error::invalid(format!(
                    "rows of {:?} were claimed, and are not found by what was written to them: write the name of a column of at least 33 \
                     characters, as VARCHAR(36), where {:?} stands, and of a BIGINT for the expiry",
                    self.table, self.lock
                )));
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        unknown.nothing = true;
        drop(unknown);
        claim.ids = ids;
        Ok(claim)
    }

    /// Gives back those rows, or that one, that were claimed under these lock ids.
    async fn release(&self, lock_ids: &[&str], id: Option<&str>) -> Result<(), Error> {
        let set = self.set("NULL")?;
        self.update("release", &set, lock_ids, id).await.map(drop)
    }

    fn set(&self, lock: &str) -> Result<String, Error> {
        let mut set = format!("{} = {lock}", self.name(&self.lock)?);
        if let Some((column, _)) = &self.expiry {
            set.push_str(&format!(", {} = NULL", self.name(column)?));
        }
        Ok(set)
    }

    /// Changes those rows, or that one, whose lock's column is one of these.
    async fn update(
        &self,
        step: &'static str,
        set: &str,
        locks: &[&str],
        id: Option<&str>,
    ) -> Result<u64, Error> {
        let (table, lock) = (self.table()?, self.name(&self.lock)?);
        let arguments: Vec<_> = locks.iter().copied().chain(id).map(Arg::Text).collect();
        let numbers: Vec<_> = (1..=locks.len()).map(|n| format!("${n}")).collect();
        let numbers = numbers.join(", ");
        let mut statement = format!("UPDATE {table} SET {set} WHERE {lock} IN ({numbers})");
        if id.is_some() {
            let key = self.text(&self.name(&self.id)?);
            let row = format!(" AND {key} = ${}", arguments.len());
            statement.push_str(&row);
        }
        let done = self.sql.run(&statement, &arguments);
        Ok(self.limited(step, done).await?.changed)
    }

    async fn limited<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, Error> {
        let answer = within(self.limit, step, work).await?;
        answer.map_err(|source| {
            Error::database(format!("{step}, in the table {:?}", self.table), source)
        })
    }
}

/// A claim whose outcome is not known. Dropped, its rows are released, several times, as the database may come to its statement later.
struct Unknown<'a> {
    claims: &'a Claims,
    lock_id: &'a str,
    sending: Sending,
    /// There are no rows, or the caller has them.
    nothing: bool,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        if !self.nothing && !self.sending.is_settled() {
            let Self {
                claims, lock_id, ..
            } = self;
            let lock_id = (*lock_id).to_owned();
            let reclaim = Claims::clone(claims);
            claims.strays.add(lock_id, Duration::ZERO, reclaim);
        }
    }
}

impl Reclaim for Claims {
    type Lost = String;

    async fn reclaim(&self, lost: &[&String]) -> bool {
        let lock_ids: Vec<_> = lost.iter().map(|lock_id| lock_id.as_str()).collect();
        self.release(&lock_ids, None).await.is_ok()
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
