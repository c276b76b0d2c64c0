//! The connections of a pool, and the repetition of statements.

use std::{any::Any, fmt, time::Duration};

use futures_util::future::BoxFuture;
use sqlx::{Pool, pool::PoolConnection};
use tokio::time::timeout;

use crate::{
    error::{BoxError, Error},
    sql::{
        Connect,
        dialect::Dialect,
        run::{Arg, Cells, Done, Driver, Statement, is_broken, is_contended},
        session::{self, Session, SessionLockName},
        store::SqlStore,
    },
    store::Backend,
    timing::{Backoff, SIGN_OF_LIFE, STATEMENT_PAUSES},
};

/// The numbers of further tries. A statement that lost to another one is tried for some two
/// seconds: it wins in the end. A statement whose connection broke is tried for a fifth of a second:
/// the server may stay away.
const TRIES: [u32; 2] = [19, 8];

/// A connection of the pool that [`give_back`](Self::give_back) returns in a known state. Without
/// that call, a drop closes a socket; SQLite's connection goes back to the pool.
pub(super) struct Borrowed<DB: Driver>(pub(super) Option<PoolConnection<DB>>);

impl<DB: Driver> Borrowed<DB> {
    pub(super) fn give_back(mut self) {
        if !DB::DIALECT.socket {
            drop(self.0.take());
            return;
        }
        // The pool asks each returned connection for a sign of life, and waits for the answer
        // without a limit.
        if let Some(mut connection) = self.0.take() {
            tokio::spawn(timeout(SIGN_OF_LIFE, connection.return_to_pool()));
        }
    }
}

impl<DB: Driver> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take()
            && DB::DIALECT.socket
        {
            // The pool would first wait for the rest of the answer, which may never come.
            drop(connection.detach());
        }
    }
}

/// A pool and the use of its connections.
#[derive(Clone, Debug)]
pub(super) struct Connections<DB: Driver>(pub(super) Pool<DB>);

impl<DB: Driver> Connections<DB> {
    /// Runs a statement once.
    async fn once(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let mut borrowed = Borrowed(Some(self.0.acquire().await?));
        let connection: &mut DB::Connection = borrowed.0.as_mut().expect("has just been put there");
        let done = DB::run(connection, statement, arguments).await;
        if !matches!(&done, Err(error) if is_broken::<DB>(error)) {
            borrowed.give_back();
        }
        done
    }

    /// Runs a statement, and runs it again if its connection broke or if it lost to another
    /// statement. For statements that may run twice.
    pub(super) async fn run(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let again = |error: &_| is_broken::<DB>(error) || is_contended::<DB>(error);
        self.run_while(again, statement, arguments).await
    }

    pub(super) async fn run_while(
        &self,
        again: impl Fn(&sqlx::Error) -> bool,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let backoff = |tries| Backoff::new(STATEMENT_PAUSES).random().tries(tries);
        let [mut lost, mut broken] = TRIES.map(backoff);
        loop {
            let error = match self.once(statement, arguments).await {
                Err(error) if again(&error) => error,
                done => return done,
            };
            let backoff = if is_contended::<DB>(&error) {
                &mut lost
            } else {
                &mut broken
            };
            if !backoff.pause().await {
                return Err(error);
            }
        }
    }
}

/// A database of any kind.
pub(super) trait Sql: Any + fmt::Debug + Send + Sync {
    fn dialect(&self) -> &'static Dialect;

    /// Runs a statement. Runs it again after an error that means that nothing was done; with
    /// `twice` also after its connection broke.
    fn run<'a>(
        &'a self,
        sql: &'a str,
        arguments: &'a [Arg<'a>],
        twice: bool,
    ) -> BoxFuture<'a, Result<Answer, BoxError>>;

    /// Takes a session lock; `None`: another connection holds the lock.
    fn acquire<'a>(
        &'a self,
        limit: Duration,
        lock: &'a SessionLockName,
    ) -> BoxFuture<'a, Result<Option<Box<dyn Session>>, Error>>;

    /// Returns the store in the database. The tables are made or upgraded at once or before the
    /// first step.
    fn store<'a>(
        &'a self,
        prefix: &'a str,
        connect: Connect,
    ) -> BoxFuture<'a, Result<Box<dyn Backend>, Error>>;
}

/// The result of a statement: the number of changed rows, or the texts in the first column of the
/// returned rows.
pub(super) struct Answer {
    pub(super) changed: u64,
    pub(super) texts: Vec<String>,
}

impl<DB: Driver> Sql for Connections<DB> {
    fn dialect(&self) -> &'static Dialect {
        DB::DIALECT
    }

    fn run<'a>(
        &'a self,
        sql: &'a str,
        arguments: &'a [Arg<'a>],
        twice: bool,
    ) -> BoxFuture<'a, Result<Answer, BoxError>> {
        Box::pin(async move {
            let statement = Statement::new(DB::DIALECT, "", sql);
            let again = |error: &_| is_contended::<DB>(error) || twice && is_broken::<DB>(error);
            let done = self.run_while(again, &statement, arguments).await?;
            let texts = done.rows.iter().map(|row| row.name(0));
            Ok(Answer {
                changed: done.changed,
                texts: texts.collect::<Result<_, _>>()?,
            })
        })
    }

    fn acquire<'a>(
        &'a self,
        limit: Duration,
        lock: &'a SessionLockName,
    ) -> BoxFuture<'a, Result<Option<Box<dyn Session>>, Error>> {
        Box::pin(session::acquire(&self.0, limit, lock))
    }

    fn store<'a>(
        &'a self,
        prefix: &'a str,
        connect: Connect,
    ) -> BoxFuture<'a, Result<Box<dyn Backend>, Error>> {
        Box::pin(async move {
            let store = SqlStore::new(self.0.clone(), prefix);
            if connect == Connect::Now {
                store.dialect().await?;
            }
            Ok(Box::new(store) as _)
        })
    }
}

/// Returns the dialect of a server.
pub(super) async fn dialect_of<DB: Driver>(pool: &Pool<DB>) -> Result<&'static Dialect, Error> {
    if DB::RELATIVES.is_empty() {
        return Ok(DB::DIALECT);
    }
    let failed = |error| Error::database("cannot ask the server for its version", error);
    let kind = Statement::new(DB::DIALECT, "", DB::KIND_QUERY);
    let done = Connections(pool.clone()).run(&kind, &[]).await;
    relative(&done.map_err(failed)?).map_err(failed)
}

/// Returns the dialect of the server behind a connection.
pub(super) async fn dialect_on<DB: Driver>(
    connection: &mut DB::Connection,
) -> Result<&'static Dialect, sqlx::Error> {
    let kind = Statement::new(DB::DIALECT, "", DB::KIND_QUERY);
    relative(&DB::run(connection, &kind, &[]).await?)
}

/// Returns the dialect that belongs to a server's answer.
fn relative<DB: Driver>(done: &Done<DB>) -> Result<&'static Dialect, sqlx::Error> {
    let Some(row) = done.rows.first() else {
        return Ok(DB::DIALECT);
    };
    let kind = row.name(0)?;
    let mut relatives = DB::RELATIVES.iter();
    let relative = relatives.find(|(word, _)| kind.contains(word));
    Ok(relative.map_or(DB::DIALECT, |(_, relative)| relative))
}
