//! The mark of once-only work, written in a transaction of the application's own, so that the work and its
//! mark are committed together.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Error, LockRow,
    clock::micros,
    driver::Engine,
    name::{LockKind, bounded},
    sql::{
        Connection, Tables,
        connection::{self, run_inside},
        run::{Arg, number, run},
        statements::{Dialect, PerDialect, locks},
        store::lock_row,
    },
};

pub(crate) const OPERATION: &str = "mark_in";

/// Two statements around the mark. The first limits the wait for other transactions (milliseconds -> nothing),
/// and the second restores the previous limit (nothing -> nothing). On SQLite the wait is limited by the pool's
/// busy timeout.
const BOUNDS: [PerDialect; 2] = [
    PerDialect {
        sqlite: "",
        postgres: "SELECT set_config('perennial.lock_timeout', current_setting('lock_timeout'), true), set_config('lock_timeout', $1 || 'ms', true)",
        // The insert id is the application's, too.
        mysql: "SET @perennial_id = LAST_INSERT_ID(), @perennial_wait = @@innodb_lock_wait_timeout,
            innodb_lock_wait_timeout = GREATEST(1, $1 DIV 1000)",
    },
    PerDialect {
        sqlite: "",
        // Outside a transaction the first statement's settings have ended with that statement.
        postgres: "SELECT set_config('lock_timeout', coalesce(nullif(current_setting('perennial.lock_timeout', true), ''), current_setting('lock_timeout')), true)",
        mysql: "SET innodb_lock_wait_timeout = @perennial_wait, @perennial_id = LAST_INSERT_ID(@perennial_id)",
    },
];

/// Marks work as done in the application's transaction. The statement writes immediately: a transaction
/// that reads first may be refused (SQLite), or see old rows (MySQL). `{condition}` is [`AFTER`]
/// where there is preceding work.
///
/// name, retention, the name of the preceding work -> fence, if the work was marked
const MARK: PerDialect = PerDialect {
    // A mark has no owner.
    mysql: "{waits}INSERT INTO {p}lock (kind, name, owner, fence, acquired_at, expires_at)
        SELECT 'once', $1, NULL, LAST_INSERT_ID(n.at), n.at, n.at + $2 FROM (SELECT {now} AS at) n{condition}
        ON DUPLICATE KEY UPDATE
            owner = IF(expires_at <= VALUES(acquired_at), NULL, owner),
            fence = IF(expires_at <= VALUES(acquired_at), LAST_INSERT_ID(GREATEST(fence + 1, VALUES(fence))), fence + LAST_INSERT_ID(0)),
            acquired_at = IF(expires_at <= VALUES(acquired_at), VALUES(acquired_at), acquired_at),
            expires_at = IF(expires_at <= VALUES(acquired_at), VALUES(expires_at), expires_at)",
    ..PerDialect::same(
        "INSERT INTO {p}lock AS l (kind, name, owner, fence, acquired_at, expires_at)
    SELECT 'once', $1, NULL, n.at, n.at, n.at + $2 FROM (SELECT {now} AS at) n{condition}
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = NULL,
        fence = CASE WHEN l.fence < excluded.fence THEN excluded.fence ELSE l.fence + 1 END,
        acquired_at = excluded.acquired_at,
        expires_at = excluded.expires_at
    WHERE l.expires_at <= excluded.acquired_at
    RETURNING fence",
    )
};

/// The condition that the preceding work is done. On MySQL and MariaDB at REPEATABLE READ, looking for
/// a row that is missing locks the gap where it would be, until the application's transaction ends;
/// so the condition is left out where there is no preceding work.
const AFTER: PerDialect = PerDialect {
    mysql: "
        WHERE EXISTS (SELECT 1 FROM {p}lock a WHERE a.kind = 'once' AND a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at LOCK IN SHARE MODE)",
    ..PerDialect::same(
        "
    WHERE EXISTS (SELECT 1 FROM {p}lock a WHERE a.kind = 'once' AND a.name = $3 AND a.owner IS NULL AND a.expires_at > n.at)",
    )
};

/// No condition. Without a WHERE, SQLite would read the `ON` of `ON CONFLICT` as a join's.
const ALWAYS: PerDialect = PerDialect {
    mysql: "",
    ..PerDialect::same("\n    WHERE true")
};

/// Returns the statement that marks work. `is_after`: there is preceding work.
pub(crate) fn mark(dialect: Dialect, is_after: bool) -> String {
    let condition = if is_after { AFTER } else { ALWAYS };
    MARK.of(dialect)
        .replace("{condition}", condition.of(dialect))
}

/// Returns the SQL of a mark as one statement, and the values of its placeholders.
///
/// # Errors
///
/// The database is not known yet, or it is one on which a mark takes more than one statement.
pub(crate) fn text(
    tables: &Tables,
    name: &str,
    retention: Duration,
    after: Option<&str>,
) -> Result<(Arc<str>, Vec<String>), Error> {
    let dialect = tables.found_dialect().ok_or_else(|| {
        Error::invalid("the site has not reached its database yet: ask again after the first operation that succeeds")
    })?;
    if dialect.engine() == Engine::MySql {
        return Err(Error::invalid(
            "on MySQL and MariaDB a mark is more than one statement: use `Once::mark_in`, with a connection of sqlx's",
        ));
    }
    let template = mark(dialect, after.is_some());
    let template = template.replace("$2", &micros(retention).to_string());
    let template = template.replace("$3", "$2");
    let values = [Some(name), after].into_iter().flatten().map(bounded);
    let values = values.map(|value| value.into_owned()).collect();
    Ok((
        Arc::clone(tables.statement(dialect, &template).sql()),
        values,
    ))
}

/// Returns [`locks::INSPECT`]. On MySQL and MariaDB, with `at_present`, it reads the current state of the lock,
/// whatever the transaction has read before. But if the lock has no row, such a read locks the gap in the index
/// where the row would be.
fn inspect(dialect: Dialect, at_present: bool) -> String {
    let inspect = locks::INSPECT.of(dialect);
    match dialect {
        Dialect::MySql | Dialect::MariaDb | Dialect::Galera if at_present => {
            format!(
                "{} LOCK IN SHARE MODE",
                inspect.trim_start_matches("{waits}")
            )
        }
        _ => inspect.to_owned(),
    }
}

/// The mark of completed work.
pub(crate) struct Mark<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) name: &'a str,
    pub(crate) retention: Duration,
    /// The preceding work.
    pub(crate) after: Option<&'a str>,
    /// The longest wait for another transaction that marks the same work.
    pub(crate) wait: Duration,
}

/// The result of a mark.
pub(crate) enum Marked {
    Now,
    /// This call has not marked the work. The states are those of the work's own lock, and of the
    /// lock of the work that has to be done before.
    Refused([Option<LockRow>; 2]),
}

impl Mark<'_> {
    /// Marks the work as done, in the connection's transaction.
    pub(crate) async fn write(&self, connection: &mut Connection<'_>) -> Result<Marked, Error> {
        let failed = |error| connection::operation(OPERATION, error);
        let dialect = self.tables.dialect_on(connection).await.map_err(failed)?;
        let connection = connection.get();
        let statement = |text: &str| self.tables.statement(dialect, text);
        let (name, after) = (bounded(self.name), self.after.map(bounded));
        let mut arguments = vec![Arg::Text(&name), Arg::Int(micros(self.retention))];
        arguments.extend(after.as_deref().map(Arg::Text));
        let mark = mark(dialect, after.is_some());

        let [before, after_mark] = BOUNDS.map(|sql| sql.of(dialect));
        let wait = i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX);
        if !before.is_empty() {
            let done = run(connection, &statement(before), &[Arg::Int(wait)]).await;
            done.map_err(failed)?;
        }
        let done = run_inside(connection, dialect, &statement(&mark), &arguments).await;
        if !after_mark.is_empty() {
            let restored = run(connection, &statement(after_mark), &[]).await;
            // A transaction that has failed accepts no further statement, and its rollback restores
            // the setting.
            if done.is_ok() {
                restored.map_err(failed)?;
            }
        }
        let done = done.map_err(failed)?;
        if number(&done).map_err(failed)?.is_some() {
            return Ok(Marked::Now);
        }

        let once = Arg::Text(LockKind::Once.as_str());
        let mut read = async |name: &str, at_present| -> Result<_, Error> {
            let inspect = statement(&inspect(dialect, at_present));
            let done = run(connection, &inspect, &[once, Arg::Text(name)]).await;
            let row = done.map_err(failed)?.rows.first().map(lock_row);
            let row = row
                .transpose()
                .map_err(|error| Error::operation(OPERATION, error))?;
            Ok(row.flatten())
        };
        let preceding = match &after {
            Some(after) => read(after, true).await?,
            None => None,
        };
        let may_be = after.is_none()
            || preceding
                .as_ref()
                .is_some_and(|row: &LockRow| row.owner.is_none() && !row.remaining.is_zero());
        // If the preceding work is done, only one reason remains for the refusal: the lock of this work
        // already has a row.
        let own = read(&name, may_be).await?;
        Ok(Marked::Refused([own, preceding]))
    }
}
