//! [Perennial](https://docs.rs/perennial) on [tokio-postgres](https://docs.rs/tokio-postgres) with
//! [deadpool](https://docs.rs/deadpool-postgres): for an application that has such a pool.
//!
//! ```no_run
//! use perennial::Perennial;
//! use perennial_tokio_postgres::Deadpool;
//!
//! # async fn f(pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
//! let site = Perennial::with_pool(Deadpool::new(pool)).await?;
//! # Ok(()) }
//! ```
//!
//! In `Cargo.toml`, switch Perennial's default features off, because this crate needs no sqlx:
//!
//! ```toml
//! perennial = { version = "0.1", default-features = false, features = ["axum"] }
//! perennial-tokio-postgres = "0.1"
//! ```
//!
//! To invalidate, or to mark a job as done, in one of the application's transactions, pass the
//! transaction through [`in_transaction`]:
//!
//! ```no_run
//! use perennial_tokio_postgres::in_transaction;
//!
//! # async fn f(site: perennial::Perennial, mut client: deadpool_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! transaction.execute("UPDATE product SET price = 12 WHERE id = 7", &[]).await?;
//! let invalidation = site.invalidate_in(in_transaction(&transaction), ["product-7"]).await?;
//! transaction.commit().await?;
//! invalidation.committed().await?;
//! # Ok(()) }
//! ```
//!
//! `Builder::listen` needs an sqlx pool, because deadpool's connections do not hand notifications on.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]

use std::{fmt, io, sync::Arc};

use deadpool::managed::Manager as _;
use deadpool_postgres::{ClientWrapper, Object, Pool, PoolError};
use perennial::{
    driver::{
        Argument, Driver, DriverConnection, DriverError, DriverFuture, Engine, ErrorCode, GiveBack,
        PooledConnection, Row, Rows, Value,
    },
    sql::{Connection, Database},
};
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

/// A deadpool pool, for `Perennial::with_pool`. Cheap to clone.
#[derive(Clone)]
pub struct Deadpool(Pool);

impl Deadpool {
    /// Returns the driver for a pool. The application can continue to use the pool itself.
    ///
    /// The pool's own limits hold: a statement waits for a connection for `timeouts.wait`, but no longer
    /// than Perennial's statement timeout.
    pub fn new(pool: Pool) -> Self {
        Self(pool)
    }
}

impl fmt::Debug for Deadpool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deadpool").field(&self.0.status()).finish()
    }
}

impl From<Deadpool> for Database {
    fn from(pool: Deadpool) -> Self {
        Self::with_driver(pool)
    }
}

/// Returns the connection of one of the application's transactions, for `Perennial::invalidate_in` and
/// similar methods.
pub fn in_transaction<'c>(transaction: &'c tokio_postgres::Transaction<'_>) -> Connection<'c> {
    Connection::new(Engine::Postgres, InTransaction(transaction))
}

impl Driver for Deadpool {
    fn engine(&self) -> Engine {
        Engine::Postgres
    }

    fn acquire(&self) -> DriverFuture<'_, Box<dyn PooledConnection>> {
        Box::pin(async {
            let client = self.0.get().await.map_err(pool_error)?;
            Ok(Box::new(Pooled(Some(client))) as Box<dyn PooledConnection>)
        })
    }

    fn connect(&self) -> Option<DriverFuture<'_, Box<dyn PooledConnection>>> {
        Some(Box::pin(async {
            let manager = self.0.manager();
            let client = manager.create().await;
            let client = client.map_err(driver_error)?;
            Ok(Box::new(Single(client)) as Box<dyn PooledConnection>)
        }))
    }

    fn max_connections(&self) -> usize {
        self.0.status().max_size
    }
}

/// A connection of the pool; there until it is given back.
struct Pooled(Option<Object>);

impl Pooled {
    fn client(&self) -> &ClientWrapper {
        self.0.as_ref().expect("is not given back")
    }

    /// Takes the connection out of the pool.
    fn take(&mut self) -> Option<ClientWrapper> {
        self.0.take().map(Object::take)
    }
}

impl DriverConnection for Pooled {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        _arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        Box::pin(async move { rows(self.client().simple_query(&sql).await) })
    }
}

impl PooledConnection for Pooled {
    fn give_back(mut self: Box<Self>) -> GiveBack {
        Box::pin(async move {
            // PostgreSQL answers in order. When this empty query is answered, the call that was dropped has ended, and
            // the connection can be used again.
            if self.client().simple_query("").await.is_ok() {
                drop(self.0.take());
            }
        })
    }

    fn detach(mut self: Box<Self>) -> Box<dyn DriverConnection> {
        Box::new(Single(self.take().expect("is not given back")))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // Taking the connection out of the pool and dropping it closes it.
        drop(self.take());
    }
}

/// A connection that belongs to no pool.
struct Single(ClientWrapper);

impl DriverConnection for Single {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        _arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        Box::pin(async move { rows(self.0.simple_query(&sql).await) })
    }
}

impl PooledConnection for Single {
    fn give_back(self: Box<Self>) -> GiveBack {
        drop(self);
        Box::pin(std::future::ready(()))
    }

    fn detach(self: Box<Self>) -> Box<dyn DriverConnection> {
        self
    }
}

struct InTransaction<'c>(&'c tokio_postgres::Transaction<'c>);

impl DriverConnection for InTransaction<'_> {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        _arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        Box::pin(async move { rows(self.0.simple_query(&sql).await) })
    }
}

/// Returns what the last statement of a text did.
fn rows(
    messages: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
) -> Result<Rows, DriverError> {
    let mut done = Rows::default();
    let mut rows = Vec::new();
    for message in messages.map_err(driver_error)? {
        match message {
            SimpleQueryMessage::Row(row) => rows.push(values(&row)),
            SimpleQueryMessage::CommandComplete(changed) => {
                done = Rows {
                    rows: std::mem::take(&mut rows),
                    changed,
                    insert_id: None,
                };
            }
            _ => {}
        }
    }
    Ok(done)
}

fn values(row: &SimpleQueryRow) -> Row {
    let values = (0..row.len()).map(|column| match row.try_get(column) {
        Ok(Some(text)) => Value::PostgresText(text.to_owned()),
        Ok(None) => Value::Null,
        // In a database with the encoding SQL_ASCII, a text may be invalid UTF-8. The text is read here
        // as a `&str`, which fails then, so another invalid text stands in for it.
        Err(_) => Value::Bytes(vec![0xff].into()),
    });
    Row::new(values.collect())
}

fn pool_error(error: PoolError) -> DriverError {
    match error {
        PoolError::Backend(error) => driver_error(error),
        PoolError::Timeout(_) => DriverError::late(error),
        PoolError::Closed => DriverError::unreachable(error),
        _ => DriverError::other(error),
    }
}

/// Converts an error of tokio-postgres into an error of a driver, whose kind tells Perennial what to do.
fn driver_error(error: tokio_postgres::Error) -> DriverError {
    use std::error::Error as _;

    if let Some(refusal) = error.as_db_error() {
        let message = refusal.message().to_owned();
        return match refusal.code().code().as_bytes().try_into() {
            Ok(code) => DriverError::refused(ErrorCode::SqlState(code), message, error),
            Err(_) => DriverError::other(error),
        };
    }
    let source = error.source();
    if error.is_closed() || source.is_some_and(|source| source.is::<io::Error>()) {
        DriverError::broken(error)
    } else {
        DriverError::other(error)
    }
}
