//! The statements on an application's table. They are built from the names of the table and of its columns,
//! which are checked before they become SQL.

use std::time::Duration;

use perennial_store::{
    Database, Error,
    clock::micros,
    error::BoxError,
    sql::{
        Connection,
        connection::{self, run_inside},
        run::{Arg, Cells, Statement, is_broken, is_contended},
        statements::{Dialect, PerDialect},
    },
    timing::within,
};

/// Claims rows: sets the columns `{claimed}` in the first rows of `{table}` for which `{free}` holds. `{free}`
/// consists of conditions and an ORDER BY. `{id}` is the key.
///
/// lock id, number of rows, values of filters, length of the claim if it expires -> nothing
pub(crate) const CLAIM: PerDialect = PerDialect {
    sqlite: "UPDATE {table} SET {claimed} WHERE {id} IN (SELECT {id} FROM {table} WHERE {free} LIMIT $2)",
    // MATERIALIZED makes PostgreSQL choose the free rows once, and not again for each row that it updates.
    postgres: "WITH perennial_free AS MATERIALIZED (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        UPDATE {table} t SET {claimed} FROM perennial_free f WHERE t.{id} = f.{id}",
    mysql: "UPDATE {table} t JOIN (
            SELECT {id} FROM {table} WHERE {free} LIMIT $2 FOR UPDATE SKIP LOCKED
        ) c ON t.{id} = c.{id} SET {claimed}",
};

/// The expression that reads and compares a key `{key}` as text.
const TEXT: PerDialect = PerDialect {
    // The result is bytes: a string would be compared by a collation.
    mysql: "IF(CHARSET({key}) = 'binary', CAST({key} AS BINARY), CAST(CAST({key} AS CHAR CHARACTER SET utf8mb4) AS BINARY))",
    ..PerDialect::same("CAST({key} AS TEXT)")
};

/// The value with which a column is compared. It is made [from](From) an integer, a string or a boolean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(ValueKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValueKind {
    Int(i64),
    Text(String),
    Bool(bool),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self(ValueKind::Int(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self(ValueKind::Text(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self(ValueKind::Text(value))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self(ValueKind::Bool(value))
    }
}

/// A condition for the rows to claim.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    Is(String, Value),
    Null(String),
    Sql(&'static str),
}

/// A table, and the filters of the rows to claim.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) database: Database,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) lock: String,
    pub(crate) expiry: Option<(String, Duration)>,
    pub(crate) filters: Vec<Filter>,
    /// Columns, each with the SQL that follows its name in `ORDER BY`.
    pub(crate) order: Vec<(String, &'static str)>,
}

/// The statements of a claim.
pub(crate) struct Claiming<'a> {
    table: &'a Table,
    lock_id: &'a str,
    claim: Update<'a>,
    read: String,
}

impl Claiming<'_> {
    /// Claims, and returns the number of rows.
    pub(crate) async fn claim(&self) -> Result<u64, Error> {
        let claimed = self.table.run(&self.claim, false);
        self.table.limited("claim", claimed).await
    }

    /// Returns the keys of the rows that carry the claim's lock id, even if the answer to the claim was lost.
    pub(crate) async fn read(&self) -> Result<Vec<String>, Error> {
        let lock_id = [Arg::Text(self.lock_id)];
        let read = self.table.ask(&self.read, &lock_id, true);
        Ok(self.table.limited("claim", read).await?.texts)
    }
}

/// The result of a statement: the number of changed rows, or the strings in the first column of the returned
/// rows.
struct ClaimAnswer {
    changed: u64,
    texts: Vec<String>,
}

/// Returns the mark for rows of a claim that are completed: its lock id with `-` instead of the first digit.
/// The mark is as long as the lock id. So if a column is too short, the claim itself fails, and not the
/// completion after the work has been done.
fn done(lock_id: &str) -> String {
    format!("-{}", &lock_id[1..])
}

/// Returns the statement in a form that runs in any session of MySQL or MariaDB, even in one with
/// `sql_safe_updates`, which refuses updates that use no index or have a join.
fn in_any_session(dialect: Dialect, sql: &str) -> Statement {
    let sql = match dialect {
        Dialect::MariaDb | Dialect::Galera if sql.starts_with("UPDATE ") => {
            format!("SET STATEMENT sql_safe_updates = 0 FOR {sql}")
        }
        Dialect::MySql => {
            let hint = "UPDATE /*+ SET_VAR(sql_safe_updates = 0) */ ";
            sql.replacen("UPDATE ", hint, 1)
        }
        _ => sql.to_owned(),
    };
    Statement::new(dialect, "", &sql)
}

/// A statement and its arguments.
type Update<'a> = (String, Vec<Arg<'a>>);

impl Table {
    pub(crate) fn claiming<'a>(
        &'a self,
        lock_id: &'a str,
        limit: u32,
    ) -> Result<Claiming<'a>, Error> {
        let (table, id, lock) = (
            self.table()?,
            self.column(&self.id)?,
            self.column(&self.lock)?,
        );
        let mut arguments = vec![Arg::Text(lock_id), Arg::Int(limit.into())];
        let mut conditions = vec![format!("{lock} IS NULL")];
        let mut claimed = format!("{lock} = $1");
        for filter in &self.filters {
            conditions.push(self.condition(filter, &mut arguments)?);
        }
        // The key's text gets an alias of its own, as `ORDER BY` may name the column of the key.
        let text = self.text(&id);
        let mut read = format!("SELECT {text} AS claimed_id FROM {table} WHERE {lock} = $1");
        if let Some((column, after)) = &self.expiry {
            let column = self.column(column)?;
            arguments.push(Arg::Int(micros(*after)));
            // The clock is read once: an index cannot look up an expression that may differ in each
            // row.
            conditions[0] = format!("({lock} IS NULL OR {column} <= (SELECT {{now}}))");
            claimed.push_str(&format!(", {column} = {{now}} + ${}", arguments.len()));
            read.push_str(&format!(" AND {column} > (SELECT {{now}})"));
        }
        let order = self.order_by()?;
        let free = format!("{} {order}", conditions.join(" AND "));
        let claim = CLAIM.of(self.database.dialect());
        let claim = claim
            .replace("{table}", &table)
            .replace("{id}", &id)
            .replace("{free}", &free)
            .replace("{claimed}", &claimed);
        Ok(Claiming {
            table: self,
            lock_id,
            claim: (claim, arguments),
            read: format!("{read} {order}"),
        })
    }

    /// Marks the rows of a claim, or one row, as completed. Returns the number of rows that are completed
    /// now. `expected` is the number of rows of the claim, or one.
    pub(crate) async fn complete(
        &self,
        lock_id: &str,
        id: Option<&str>,
        expected: usize,
    ) -> Result<u64, Error> {
        let done = done(lock_id);
        let set = self.set(&format!("'{done}'"))?;
        let first = self.update(&set, &[lock_id], id)?;
        // Rows that are completed already, by an earlier call or by a statement whose answer was lost, count as
        // completed by this call, too. Only if the first statement has changed too few rows does the second one
        // search for them. On MySQL and MariaDB the search locks the gaps beside these rows, into which other
        // claims write their own rows. With many workers, that would lead to deadlocks.
        let again = self.update(&set, &[lock_id, &done], id)?;
        let completed = async {
            match self.run(&first, false).await {
                Ok(changed) if changed == expected as u64 => Ok(changed),
                _ => self.run(&again, true).await,
            }
        };
        self.limited("complete", completed).await
    }

    /// Marks the rows of a claim, or one row, as completed in a transaction of the application's own. Rows that
    /// are completed already do not count, as their effect has been committed.
    pub(crate) async fn complete_in(
        &self,
        transaction: &mut Connection<'_>,
        lock_id: &str,
        id: Option<&str>,
    ) -> Result<u64, Error> {
        const OPERATION: &str = "complete_in";
        let set = self.set(&format!("'{}'", done(lock_id)))?;
        let (sql, arguments) = self.update(&set, &[lock_id], id)?;
        // The dialect has been known since the claim, so this needs no other connection.
        let dialect = self.database.connections().dialect().await?;
        let statement = in_any_session(dialect, &sql);
        let completed = run_inside(transaction.get(), dialect, &statement, &arguments);
        let completed = within(self.database.limit(), OPERATION, completed).await?;
        let completed = completed.map_err(|error| connection::operation(OPERATION, error))?;
        Ok(completed.changed)
    }

    /// Releases the rows of a claim, or one row. Returns the number of rows.
    pub(crate) async fn release(&self, lock_id: &str, id: Option<&str>) -> Result<u64, Error> {
        let update = self.update(&self.set("NULL")?, &[lock_id], id)?;
        self.limited("release", self.run(&update, true)).await
    }

    /// Lets a claim hold for its whole length from now. Returns the number of rows.
    pub(crate) async fn extend(&self, lock_id: &str) -> Result<u64, Error> {
        let set = match &self.expiry {
            Some((column, after)) => {
                format!("{} = {{now}} + {}", self.column(column)?, micros(*after))
            }
            // Without an expiry a claim holds forever.
            None => format!("{0} = {0}", self.column(&self.lock)?),
        };
        let update = self.update(&set, &[lock_id], None)?;
        self.limited("extend", self.run(&update, true)).await
    }

    fn set(&self, lock: &str) -> Result<String, Error> {
        let mut set = format!("{} = {lock}", self.column(&self.lock)?);
        if let Some((column, _)) = &self.expiry {
            set.push_str(&format!(", {} = NULL", self.column(column)?));
        }
        Ok(set)
    }

    /// Returns the statement that updates the rows, or one row, with one of these lock ids.
    fn update<'a>(
        &self,
        set: &str,
        lock_ids: &[&'a str],
        id: Option<&'a str>,
    ) -> Result<Update<'a>, Error> {
        let (table, lock) = (self.table()?, self.column(&self.lock)?);
        let arguments: Vec<_> = lock_ids.iter().copied().chain(id).map(Arg::Text).collect();
        let numbers: Vec<_> = (1..=lock_ids.len()).map(|n| format!("${n}")).collect();
        let numbers = numbers.join(", ");
        let mut statement = format!("UPDATE {table} SET {set} WHERE {lock} IN ({numbers})");
        if id.is_some() {
            let key = self.text(&self.column(&self.id)?);
            statement.push_str(&format!(" AND {key} = ${}", arguments.len()));
        }
        Ok((statement, arguments))
    }

    /// Runs an update, and returns the number of rows. `twice`: runs it again after a lost reply.
    async fn run(&self, update: &Update<'_>, twice: bool) -> Result<u64, BoxError> {
        let (statement, arguments) = update;
        Ok(self.ask(statement, arguments, twice).await?.changed)
    }

    /// Runs a statement. Repeats it after an error which means that nothing was done. With `twice`, also
    /// repeats it after its connection broke.
    async fn ask(
        &self,
        sql: &str,
        arguments: &[Arg<'_>],
        twice: bool,
    ) -> Result<ClaimAnswer, BoxError> {
        let connections = self.database.connections();
        let dialect = connections.dialect().await?;
        let statement = in_any_session(dialect, sql);
        let statement = connections.guarded(&statement).await?;
        let again = |error: &_| is_contended(error) || twice && is_broken(error);
        let done = connections.run_while(again, &statement, arguments);
        let done = done.await?;
        let texts = done.rows.iter().map(|row| row.name(0));
        Ok(ClaimAnswer {
            changed: done.changed,
            texts: texts.collect::<Result<_, _>>()?,
        })
    }

    async fn limited<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, Error> {
        let answer = within(self.database.limit(), operation, work).await?;
        answer.map_err(|source| {
            Error::database(
                format!(
                    "the database failed during the operation `{operation}`, in the table {:?}",
                    self.name
                ),
                source,
            )
        })
    }

    fn condition<'a>(
        &self,
        filter: &'a Filter,
        arguments: &mut Vec<Arg<'a>>,
    ) -> Result<String, Error> {
        let (column, argument) = match filter {
            Filter::Null(column) => return Ok(format!("{} IS NULL", self.column(column)?)),
            Filter::Sql(condition) if condition.contains(['$', '?', '{']) => {
                return Err(Error::invalid(format!(
                    "the condition {condition:?} cannot be used: write it without `$`, `?` and `{{`"
                )));
            }
            Filter::Sql(condition) => return Ok(format!("({condition})")),
            Filter::Is(column, Value(ValueKind::Bool(value))) => {
                return Ok(format!("{} = {value}", self.column(column)?));
            }
            Filter::Is(column, Value(ValueKind::Int(value))) => (column, Arg::Int(*value)),
            // The column may have a type of its own, such as an enumeration or a UUID.
            Filter::Is(column, Value(ValueKind::Text(value))) => (column, Arg::Untyped(value)),
        };
        arguments.push(argument);
        Ok(format!("{} = ${}", self.column(column)?, arguments.len()))
    }

    fn order_by(&self) -> Result<String, Error> {
        let columns = self.order.iter();
        let columns = columns.map(|(column, way)| Ok(format!("{}{way}", self.column(column)?)));
        let columns = columns.collect::<Result<Vec<_>, Error>>()?;
        Ok(match &*columns {
            [] => String::new(),
            columns => format!("ORDER BY {}", columns.join(", ")),
        })
    }

    /// Returns the table's name, quoted, with its schema.
    fn table(&self) -> Result<String, Error> {
        let parts = self.name.splitn(2, '.').map(|part| self.column(part));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.join("."))
    }

    /// Returns a column's name, quoted.
    fn column(&self, name: &str) -> Result<String, Error> {
        let is_name = (1..=63).contains(&name.len())
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(Error::invalid(format!(
                "{name:?} cannot be used as the name of a table or a column: write a letter or `_`, then up to 62 letters, digits and `_`"
            )));
        }
        let quote = match self.database.dialect() {
            Dialect::Postgres => '"',
            // Not in double quotes: SQLite reads an unknown column in double quotes as a string.
            _ => '`',
        };
        Ok(format!("{quote}{name}{quote}"))
    }

    /// A key as text.
    fn text(&self, key: &str) -> String {
        TEXT.of(self.database.dialect()).replace("{key}", key)
    }
}
