//! Connections that hold a session lock.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Pool;

use crate::{
    error::{BoxError, Error},
    sql::{
        pool::{Borrowed, dialect_of},
        run::{Arg, Cells, Driver, Statement, has_code},
    },
    timing::within,
};

/// The statements of session locks.
///
/// The arguments are the lock's number, the lock's name and the holder's name. All but `bound`
/// answer with a number.
pub(super) struct Statements {
    /// Returns 1: taken. 0: another connection holds the lock. 2: the connection is shared by a
    /// pooler.
    pub(super) acquire: &'static str,
    /// Has the server close the connection, and so free the lock, when it hears nothing for 15 s.
    pub(super) bound: &'static str,
    /// Returns 1: this connection still holds the lock.
    pub(super) holds: &'static str,
    /// Returns 1: this connection held the lock.
    pub(super) release: &'static str,
    /// The codes of errors of a server without session locks.
    pub(super) missing: &'static [&'static str],
}

/// The name of a session lock.
pub(crate) struct SessionLockName {
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) holder: String,
}

/// A connection that holds a lock. Dropping it closes the connection, and the server frees the
/// lock.
pub(crate) trait Session: Send {
    fn holds<'a>(&'a mut self, lock: &'a SessionLockName) -> BoxFuture<'a, Result<bool, BoxError>>;
    fn release<'a>(
        &'a mut self,
        lock: &'a SessionLockName,
    ) -> BoxFuture<'a, Result<bool, BoxError>>;
}

struct HeldSession<DB: Driver> {
    connection: DB::Connection,
    statements: &'static Statements,
    limit: Duration,
}

/// Takes a session lock by a connection that leaves the pool. `None`: another connection holds the
/// lock.
pub(super) async fn acquire<DB: Driver>(
    pool: &Pool<DB>,
    limit: Duration,
    lock: &SessionLockName,
) -> Result<Option<Box<dyn Session>>, Error> {
    let acquire = async {
        let Some(statements) = &dialect_of(pool).await?.session else {
            return Err(Error::invalid(
                "this database has no session locks: use a lease, by `Locks::try_lock`",
            ));
        };
        let failed = |error| Error::step("lock", error);
        let mut borrowed = Borrowed(Some(pool.acquire().await.map_err(failed)?));
        let connection = borrowed.0.as_mut().expect("has just been put there");
        match ask::<DB>(connection, statements.acquire, lock).await {
            Ok(0) => {
                borrowed.give_back();
                Ok(None)
            }
            Ok(2) => Err(Error::invalid(
                "a pooler shares the connection with other clients, so the connection can hold no lock: connect to the server itself, or \
                 use a lease, by `Locks::try_lock`",
            )),
            Ok(_) => {
                let bound = ask::<DB>(connection, statements.bound, lock).await;
                bound.map_err(failed)?;
                let connection = borrowed.0.take().expect("is still there").detach();
                let holder: Box<dyn Session> = Box::new(HeldSession::<DB> {
                    connection,
                    statements,
                    limit,
                });
                Ok(Some(holder))
            }
            Err(error) if has_code::<DB>(&error, statements.missing) => {
                Err(Error::invalid(format!(
                    "this server has no session locks (Galera has none): use a lease, by `Locks::try_lock`: {error}"
                )))
            }
            Err(error) => Err(failed(error)),
        }
    };
    within(limit, "lock", acquire).await?
}

/// Returns the number in a statement's answer.
async fn ask<DB: Driver>(
    connection: &mut DB::Connection,
    template: &str,
    lock: &SessionLockName,
) -> Result<i64, sqlx::Error> {
    let statement = Statement::new(DB::DIALECT, "", template);
    let arguments = [
        Arg::Int(lock.number),
        Arg::Text(&lock.name),
        Arg::Text(&lock.holder),
    ];
    let done = DB::run(connection, &statement, &arguments).await?;
    let answer = done.rows.first().and_then(|row| row.int(0).ok()).flatten();
    Ok(answer.unwrap_or(0))
}

impl<DB: Driver> HeldSession<DB> {
    async fn says_yes(&mut self, template: &str, lock: &SessionLockName) -> Result<bool, BoxError> {
        let answer = ask::<DB>(&mut self.connection, template, lock);
        Ok(within(self.limit, "lock", answer).await?? == 1)
    }
}

impl<DB: Driver> Session for HeldSession<DB> {
    fn holds<'a>(&'a mut self, lock: &'a SessionLockName) -> BoxFuture<'a, Result<bool, BoxError>> {
        Box::pin(self.says_yes(self.statements.holds, lock))
    }

    fn release<'a>(
        &'a mut self,
        lock: &'a SessionLockName,
    ) -> BoxFuture<'a, Result<bool, BoxError>> {
        Box::pin(self.says_yes(self.statements.release, lock))
    }
}
