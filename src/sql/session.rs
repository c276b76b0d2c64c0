//! Connections that hold a lock of the server's own.

use std::time::Duration;

use sqlx::{ColumnIndex, Decode, Encode, Executor, IntoArguments, Pool, Row, Type};

use crate::{
    error::Error,
    sql::run::{Arg, Driver, Statement, has_code, run},
    store::{BoxError, StoreFuture},
};

/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The statements of such locks, on databases that have them.
///
/// Each has the lock's number, its name and the holder's, and answers with a number.
pub(super) struct Statements {
    /// 1: taken. 0: somebody has it. 2: this connection is one of a pooler's, which somebody else is given as well.
    pub(super) acquire: &'static str,
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

/// A connection that may hold a lock. Dropped, it is closed, and the server frees the lock.
pub(crate) trait Session: Send {
    fn acquire<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool>;
    fn holds<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool>;
    fn release<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool>;
}

struct Connected<DB: Driver> {
    connection: DB::Connection,
    statements: &'static Statements,
}

/// A connection of its own, which the pool does not count any more.
pub(super) async fn open<DB>(pool: Pool<DB>) -> Result<Box<dyn Session>, Error>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let Some(statements) = &DB::DIALECT.session else {
        return Err(Error::invalid(
            "SQLite has no locks that a connection holds: use a lease, as `Locks::try_lock` gives",
        ));
    };
    let connection = match tokio::time::timeout(LIMIT, pool.acquire()).await {
        Ok(connection) => connection.map_err(|error| Error::database("connect", error))?,
        Err(_) => return Err(Error::timeout("connect", LIMIT)),
    };
    Ok(Box::new(Connected::<DB> {
        connection: connection.detach(),
        statements,
    }))
}

impl<DB> Connected<DB>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    async fn ask(&mut self, template: &str, lock: &Named) -> Result<i64, BoxError> {
        let statement = Statement::new(DB::DIALECT, "", template);
        let arguments = [
            Arg::Int(lock.number),
            Arg::Text(&lock.name),
            Arg::Text(&lock.holder),
        ];
        let done = run(&mut self.connection, &statement, &arguments);
        let done = tokio::time::timeout(LIMIT, done).await;
        let done = done.map_err(|_| format!("the database did not answer within {LIMIT:?}"))??;
        let row = done.rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get_unchecked(0)?)
    }
}

impl<DB> Session for Connected<DB>
where
    DB: Driver,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> &'q [u8]: Encode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    fn acquire<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            match self.ask(self.statements.acquire, lock).await {
                Ok(2) => Err("the connection is a pooler's, which shares it with others, so that it can hold no lock: connect \
                    to the server itself, or use a lease, as `Locks::try_lock` gives"
                    .into()),
                Ok(taken) => Ok(taken == 1),
                Err(error) => {
                    let missing = error.downcast_ref().is_some_and(|error| {
                        has_code::<DB>(error, self.statements.missing)
                    });
                    Err(match missing {
                        true => format!("{error}: this server has no locks that a connection holds (Galera has none); use a lease, as \
                            `Locks::try_lock` gives").into(),
                        false => error,
                    })
                }
            }
        })
    }

    fn holds<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.ask(self.statements.holds, lock).await? == 1) })
    }

    fn release<'a>(&'a mut self, lock: &'a Named) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.ask(self.statements.release, lock).await? == 1) })
    }
}
