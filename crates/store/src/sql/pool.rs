use std::convert::Infallible;

use sqlx::{Pool, pool::PoolConnection};
use tokio::time::timeout;

use crate::{
    error::Error,
    sql::{
        run::{Arg, Cells, Done, Driver, Statement, is_broken, is_contended},
        statements::Side,
    },
    timing::{Backoff, SIGN_OF_LIFE, STATEMENT_PAUSES},
};

/// The numbers of further attempts. A statement that lost to another one is tried for some two
/// seconds: it wins in the end. A statement whose connection broke is tried for a fifth of a second:
/// the server may stay away.
const TRIES: [u32; 2] = [19, 8];

/// A connection of the pool. A drop closes a socket, unless [`give_back`](Self::give_back) was called.
pub struct Borrowed<DB: Driver>(pub Option<PoolConnection<DB>>);

impl<DB: Driver> Borrowed<DB> {
    pub fn give_back(mut self) {
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

#[derive(Clone, Debug)]
pub struct Connections<DB: Driver>(pub Pool<DB>);

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

    /// Runs a statement whose repetition does no harm. Repeats it after a broken connection, and
    /// where another statement was faster.
    pub async fn run(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Done<DB>, sqlx::Error> {
        let again = |error: &_| is_broken::<DB>(error) || is_contended::<DB>(error);
        self.run_while(again, statement, arguments).await
    }

    pub async fn run_while(
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

#[derive(Clone, Debug)]
pub enum AnyPool {
    /// No pool: for a build without a database.
    #[allow(dead_code, reason = "is never made")]
    None(Infallible),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

pub trait OnPool: Send {
    type Output;

    fn run<DB: Driver>(
        self,
        connections: Connections<DB>,
    ) -> impl Future<Output = Self::Output> + Send;
}

impl AnyPool {
    pub async fn with<W: OnPool>(&self, work: W) -> W::Output {
        match self {
            Self::None(never) => match *never {},
            #[cfg(feature = "sqlite")]
            Self::Sqlite(pool) => work.run(Connections(pool.clone())).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(pool) => work.run(Connections(pool.clone())).await,
            #[cfg(feature = "mysql")]
            Self::MySql(pool) => work.run(Connections(pool.clone())).await,
        }
    }
}

/// The kind of a server, by its own answer.
pub struct Kind {
    pub side: Side,
    /// The connections read rows that are not committed.
    pub reads_uncommitted: bool,
}

impl<DB: Driver> Connections<DB> {
    pub async fn kind(&self) -> Result<Kind, Error> {
        let rows = match DB::KIND_QUERY {
            Some(query) => {
                let query = Statement::new(DB::DIALECT.side, "", query);
                self.run(&query, &[]).await.map(|done| done.rows)
            }
            None => Ok(Vec::new()),
        };
        let kind = rows.and_then(|rows| kind_in::<DB>(&rows));
        kind.map_err(|error| Error::database("cannot ask the server for its kind", error))
    }
}

/// Asks the server behind a connection for its kind.
pub async fn kind_on<DB: Driver>(connection: &mut DB::Connection) -> Result<Kind, sqlx::Error> {
    let query = DB::KIND_QUERY.expect("servers differ");
    let query = Statement::new(DB::DIALECT.side, "", query);
    kind_in::<DB>(&DB::run(connection, &query, &[]).await?.rows)
}

/// Reads the answer to [`KIND_QUERY`](crate::sql::run::Supported::KIND_QUERY).
fn kind_in<DB: Driver>(rows: &[DB::Row]) -> Result<Kind, sqlx::Error> {
    let mut kind = Kind {
        side: DB::DIALECT.side,
        reads_uncommitted: false,
    };
    for row in rows {
        let (name, value) = (row.name(0)?, row.name(1)?);
        let relative = DB::RELATIVES.iter().find(|(word, _)| name.contains(word));
        kind.side = relative.map_or(kind.side, |(_, side)| *side);
        kind.reads_uncommitted |= value == "READ-UNCOMMITTED";
    }
    Ok(kind)
}
