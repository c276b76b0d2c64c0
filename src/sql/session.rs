//! Connections that hold a lock of the server's own.

use std::time::Duration;

use sqlx::Pool;

use crate::{
    error::{BoxError, Error},
    sql::{
        pool::{Borrowed, dialect_of},
        run::{Arg, Cells, Driver, Statement, has_code},
    },
    store::StoreFuture,
    timing::within,
};

/// The statements of such locks, on databases that have them.
///
/// Each has the lock's number, its name and the holder's, and answers with a number.
pub(super) struct Statements {
    /// 1: taken. 0: somebody has it. 2: this connection is one of a pooler's, which somebody else is given as well.
    pub(super) acquire: &'static str,
    /// Has the server close the connection, and so free the lock, when it hears nothing for 15 s.
    pub(super) bound: &'static str,
    /// 1: it is still held by this connection.
    pub(super) holds: &'static str,
    /// 1: it was.
    pub(super) release: &'static str,
    /// The code of the error by which a server says that it has none.
    pub(super) missing: &'static [&'static str],
}

/// What such a lock is called.
pub(crate) struct Named {
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) holder: String,
}

/// A connection that holds a lock. Dropped, it is closed, and the server frees the lock.
pub(crate) trait Session: Send {
    fn holds<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool>;
    fn release<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool>;
}

struct Holder<DB: Driver> {
    connection: DB::Connection,
    statements: &'static Statements,
    limit: Duration,
}

/// Takes a lock by a connection of the pool, which it does not count any more from then on. `None`: somebody has it.
pub(super) async fn acquire<DB: Driver>(
    pool: &Pool<DB>,
    limit: Duration,
    lock: &Named,
) -> Result<Option<Box<dyn Session>>, Error> {
    let acquire = async {
        let Some(statements) = &dialect_of(pool).await?.session else {
            return Err(Error::invalid(
                "this database has no locks that a connection holds: use a lease, as `Locks::try_lock` gives",
            ));
        };
        let failed = |error| Error::database("lock", error);
        let mut borrowed = Borrowed(Some(pool.acquire().await.map_err(failed)?));
        let connection = borrowed.0.as_mut().expect("has just been put there");
        match ask::<DB>(connection, statements.acquire, lock).await {
            Ok(0) => {
                borrowed.give_back();
                Ok(None)
            }
            Ok(2) => Err(Error::invalid(
                "the connection is a pooler's, which shares it with others, so that it can hold no lock: connect to the server itself, or \
                 use a lease, as `Locks::try_lock` gives",
            )),
            Ok(_) => {
                let bound = ask::<DB>(connection, statements.bound, lock).await;
                bound.map_err(failed)?;
                let connection = borrowed.0.take().expect("is still there").detach();
                let holder: Box<dyn Session> = Box::new(Holder::<DB> {
                    connection,
                    statements,
                    limit,
                });
                Ok(Some(holder))
            }
            Err(error) if has_code::<DB>(&error, statements.missing) => {
                Err(Error::invalid(format!(
                    "this server has no locks that a connection holds (Galera has none): use a lease, as `Locks::try_lock` gives: {error}"
                )))
            }
            Err(error) => Err(failed(error)),
        }
    };
    within(limit, "lock", acquire).await?
}

/// The number with which a statement answers, if it does.
async fn ask<DB: Driver>(
    connection: &mut DB::Connection,
    template: &str,
    lock: &Named,
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

impl<DB: Driver> Holder<DB> {
    async fn says_yes(&mut self, template: &str, lock: &Named) -> Result<bool, BoxError> {
        let answer = ask::<DB>(&mut self.connection, template, lock);
        Ok(within(self.limit, "lock", answer).await?? == 1)
    }
}

impl<DB: Driver> Session for Holder<DB> {
    fn holds<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool> {
        Box::pin(self.says_yes(self.statements.holds, lock))
    }

    fn release<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool> {
        Box::pin(self.says_yes(self.statements.release, lock))
    }
}
