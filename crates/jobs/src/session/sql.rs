//! Session locks of PostgreSQL and of MySQL and MariaDB, and the task that keeps the connection of a held lock
//! open.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::{sync::watch::Receiver, time::timeout};

use perennial_store::{
    Database, Error, LockName,
    driver::{DriverConnection, DriverError, ErrorCode},
    error::BoxError,
    sql::{
        run::{Arg, Statement, run},
        statements::Dialect,
    },
    timing::within,
};

use crate::timing::SESSION_CHECK;

/// The statements of session locks.
///
/// The arguments are the lock's number, the lock's name and the holder's name. All but `bound`
/// answer with a number.
struct Statements {
    /// Returns 1: taken. 0: another connection holds the lock. 2: the connection is shared by a
    /// pooler.
    acquire: &'static str,
    /// Has the server close the connection, and so free the lock, when it hears nothing for 15 s.
    bound: &'static str,
    /// Returns 1: this connection still holds the lock.
    holds: &'static str,
    /// Returns 1: this connection held the lock.
    release: &'static str,
    /// The error codes which mean that the server has no session locks.
    missing: &'static [ErrorCode],
}

/// On a connection that is not shared, `perennial.session` is empty or has this holder's value.
/// Another value shows that a pooler shares the connection.
const POSTGRES: Statements = Statements {
    acquire: "SELECT (CASE
        WHEN coalesce(current_setting('perennial.session', true), '') NOT IN ('', $3) THEN 2
        WHEN NOT pg_try_advisory_lock($1) THEN 0
        WHEN set_config('perennial.session', $3, false) = $3 THEN 1
        END)::bigint",
    // Since PostgreSQL 14.
    bound: "SELECT CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
        THEN set_config('idle_session_timeout', '15s', false) END",
    holds: "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = $1 AND objsubid = 1
        AND current_setting('perennial.session', true) = $3",
    release: "SELECT (CASE WHEN current_setting('perennial.session', true) = $3 AND pg_advisory_unlock($1)
        AND set_config('perennial.session', '', false) = '' THEN 1 ELSE 0 END)::bigint",
    missing: &[],
};

const MYSQL: Statements = Statements {
    acquire: "SELECT IF(IS_USED_LOCK($2) = CONNECTION_ID(), 2, GET_LOCK($2, 0))",
    bound: "SET SESSION wait_timeout = 15",
    holds: "SELECT coalesce(IS_USED_LOCK($2) = CONNECTION_ID(), 0)",
    release: "SELECT coalesce(RELEASE_LOCK($2), 0)",
    // ER_NOT_SUPPORTED_YET
    missing: &[ErrorCode::MySql(1235)],
};

fn statements(dialect: Dialect) -> Option<&'static Statements> {
    match dialect {
        Dialect::Sqlite => None,
        Dialect::Postgres => Some(&POSTGRES),
        Dialect::MySql | Dialect::MariaDb | Dialect::Galera => Some(&MYSQL),
    }
}

/// The name of a session lock.
#[derive(Clone)]
pub(crate) struct SessionLockName {
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) holder: String,
    /// The name that the application gave.
    pub(crate) lock_name: LockName,
}

/// A future that holds a lock until it is released. The result is true if the connection has held the lock all
/// the time. Dropping the future closes the connection, and the server frees the lock.
pub(crate) type Holding = BoxFuture<'static, bool>;

struct HeldSession {
    connection: Box<dyn DriverConnection>,
    dialect: Dialect,
    statements: &'static Statements,
    lock: SessionLockName,
    limit: Duration,
}

/// Takes a session lock on a connection that is taken out of the pool. `None` means that another connection
/// holds the lock.
pub(super) async fn acquire(
    database: &Database,
    lock: &SessionLockName,
    release: &Receiver<bool>,
) -> Result<Option<Holding>, Error> {
    let limit = database.limit();
    let acquiring = async {
        let connections = database.connections();
        let dialect = connections.dialect().await?;
        let Some(statements) = statements(dialect) else {
            return Err(Error::invalid(
                "this database has no session locks: use a lease, by `Locks::try_lock`",
            ));
        };
        let failed = |error| Error::operation("lock", error);
        let mut borrowed = connections.acquire().await.map_err(failed)?;
        let connection = borrowed.connection();
        match ask(connection, dialect, statements.acquire, lock).await {
            Ok(0) => {
                borrowed.give_back();
                Ok(None)
            }
            Ok(2) => Err(Error::invalid(
                "a pooler shares the connection with other clients, so the connection can hold no lock: connect to the server itself, or \
                 use a lease, by `Locks::try_lock`",
            )),
            Ok(_) => {
                let bound = ask(connection, dialect, statements.bound, lock).await;
                bound.map_err(failed)?;
                let session = HeldSession {
                    connection: borrowed.detach(),
                    dialect,
                    statements,
                    lock: lock.clone(),
                    limit,
                };
                let holding: Holding = Box::pin(session.hold(release.clone()));
                Ok(Some(holding))
            }
            Err(error)
                if error
                    .code()
                    .is_some_and(|code| statements.missing.contains(&code)) =>
            {
                Err(Error::invalid(format!(
                    "this server has no session locks (Galera has none): use a lease, by `Locks::try_lock`: {error}"
                )))
            }
            Err(error) => Err(failed(error)),
        }
    };
    within(limit, "lock", Box::pin(acquiring)).await?
}

/// Returns the number in a statement's answer.
async fn ask(
    connection: &mut dyn DriverConnection,
    dialect: Dialect,
    template: &str,
    lock: &SessionLockName,
) -> Result<i64, DriverError> {
    let statement = Statement::new(dialect, "", template);
    let arguments = [
        Arg::Int(lock.number),
        Arg::Text(&lock.name),
        Arg::Text(&lock.holder),
    ];
    let done = run(connection, &statement, &arguments).await?;
    let answer = done.rows.first().and_then(|row| row.int(0).ok()).flatten();
    Ok(answer.unwrap_or(0))
}

impl HeldSession {
    async fn hold(mut self, mut release: Receiver<bool>) -> bool {
        while timeout(SESSION_CHECK, release.wait_for(|released| *released))
            .await
            .is_err()
        {
            let held = self.says_yes(self.statements.holds).await;
            if !matches!(held, Ok(true)) {
                tracing::warn!(
                    name = self.lock.lock_name.as_str(),
                    error = ?held.err(),
                    "a session lock is lost: its connection no longer holds the lock"
                );
                return false;
            }
        }
        let released = self.says_yes(self.statements.release).await;
        released.unwrap_or(false)
    }

    async fn says_yes(&mut self, template: &str) -> Result<bool, BoxError> {
        let answer = ask(&mut *self.connection, self.dialect, template, &self.lock);
        Ok(within(self.limit, "lock", answer).await?? == 1)
    }
}
