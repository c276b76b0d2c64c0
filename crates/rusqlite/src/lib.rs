//! [Perennial](https://docs.rs/perennial) on [rusqlite](https://docs.rs/rusqlite): for an application that
//! uses an SQLite file through rusqlite.
//!
//! ```no_run
//! use perennial::Perennial;
//! use perennial_rusqlite::Pool;
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let site = Perennial::with_pool(Pool::open("site.db")?).await?;
//! # Ok(()) }
//! ```
//!
//! In `Cargo.toml`, switch Perennial's default features off. The default feature `sqlite` brings sqlx with an
//! SQLite of its own, and a program can have only one SQLite:
//!
//! ```toml
//! perennial = { version = "0.1", default-features = false, features = ["axum"] }
//! perennial-rusqlite = "0.1"
//! ```
//!
//! The pool has up to four connections of its own, each with a thread. You need not change the application's
//! own connections to the same file, whatever pool they are in, because many connections and processes can
//! share an SQLite file. To invalidate in one of the application's transactions, run the statement that
//! `Perennial::invalidation_sql` returns:
//!
//! ```no_run
//! # async fn f(site: perennial::Perennial, mut connection: rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! let invalidation = site.invalidation_sql(["product-7"])?;
//! let transaction = connection.transaction()?;
//! transaction.execute("UPDATE product SET price = 12 WHERE id = 7", [])?;
//! transaction.execute(invalidation.sql(), rusqlite::params_from_iter(invalidation.values()))?;
//! transaction.commit()?;
//! invalidation.committed().await?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use perennial::{
    driver::{
        Argument, Driver, DriverConnection, DriverError, DriverFuture, Engine, ErrorCode, GiveBack,
        PooledConnection, Row, Rows, Value,
    },
    sql::Database,
};
use rusqlite::{Batch, Connection, fallible_iterator::FallibleIterator, types::ValueRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The default number of connections.
const CONNECTIONS: usize = 4;

/// The wait of a statement for another writer of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// A pool of connections to an SQLite database. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    open: Box<dyn Fn() -> rusqlite::Result<Connection> + Send + Sync>,
    /// The path of the database's file, if it is one.
    file: Option<PathBuf>,
    idle: Mutex<Vec<Worker>>,
    /// One for each connection that the pool may have.
    permits: Arc<Semaphore>,
    max_connections: usize,
}

impl Pool {
    /// Opens an SQLite file, with up to four connections: in WAL mode, with a busy timeout of two seconds and
    /// `synchronous = NORMAL`. With that setting, a power failure may lose the last commits. A missing file
    /// is created.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> rusqlite::Result<Self> {
        let path = path.as_ref().to_owned();
        let open = move || {
            let connection = Connection::open(&path)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            Ok(connection)
        };
        Self::with(CONNECTIONS, open)
    }

    /// Returns a pool of at most `max_connections` connections. Each is opened by a function of yours, which
    /// can set pragmas, add SQL functions and give the key of an encrypted file. For a database in memory,
    /// `max_connections` has to be 1.
    ///
    /// The function must leave a busy timeout in place; rusqlite's default is five seconds
    /// (`Connection::busy_timeout`). With a timeout of zero, each write fails while another connection
    /// writes. The function runs on the thread of its connection, except for the first connection, which this
    /// call opens itself.
    ///
    /// # Errors
    ///
    /// The first connection cannot be opened.
    ///
    /// # Panics
    ///
    /// Panics at zero connections.
    pub fn with(
        max_connections: usize,
        open: impl Fn() -> rusqlite::Result<Connection> + Send + Sync + 'static,
    ) -> rusqlite::Result<Self> {
        assert!(max_connections > 0, "a pool has a connection");
        let first = open()?;
        let file = first.path().filter(|path| !path.is_empty());
        let file = file.map(PathBuf::from);
        Ok(Self(Arc::new(Inner {
            open: Box::new(open),
            file,
            idle: Mutex::new(vec![Worker::start(first)]),
            permits: Arc::new(Semaphore::new(max_connections)),
            max_connections,
        })))
    }
}

impl Inner {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection that is idle, or a new one.
    async fn connect(self: &Arc<Self>) -> Result<Worker, DriverError> {
        if let Some(worker) = self.idle().pop() {
            return Ok(worker);
        }
        let inner = Arc::clone(self);
        let (opened, open) = oneshot::channel();
        std::thread::spawn(move || {
            // If nobody waits for the connection any more, it is closed here, and the error of `send` is of no
            // interest.
            let _ = opened.send((inner.open)().map(Worker::start));
        });
        let worker = open.await.map_err(|_| ended())?;
        worker.map_err(driver_error)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("file", &self.0.file)
            .field("max_connections", &self.0.max_connections)
            .finish_non_exhaustive()
    }
}

impl From<Pool> for Database {
    fn from(pool: Pool) -> Self {
        Self::with_driver(pool)
    }
}

impl Driver for Pool {
    fn engine(&self) -> Engine {
        Engine::Sqlite
    }

    fn acquire(&self) -> DriverFuture<'_, Box<dyn PooledConnection>> {
        Box::pin(async {
            let permit = Arc::clone(&self.0.permits).acquire_owned().await;
            let permit = permit.map_err(DriverError::unreachable)?;
            let worker = self.0.connect().await?;
            Ok(Box::new(Pooled {
                worker,
                home: Some((Arc::clone(&self.0), permit)),
            }) as Box<dyn PooledConnection>)
        })
    }

    fn connect(&self) -> Option<DriverFuture<'_, Box<dyn PooledConnection>>> {
        // A database in memory belongs to its connection.
        self.0.file.as_ref()?;
        Some(Box::pin(async {
            let worker = self.0.connect().await?;
            Ok(Box::new(Pooled { worker, home: None }) as Box<dyn PooledConnection>)
        }))
    }

    fn max_connections(&self) -> usize {
        self.0.max_connections
    }

    fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }
}

/// A connection of the pool or, without a home, one beside it.
struct Pooled {
    worker: Worker,
    home: Option<(Arc<Inner>, OwnedSemaphorePermit)>,
}

impl DriverConnection for Pooled {
    fn run<'a>(
        &'a mut self,
        sql: Arc<str>,
        arguments: &'a [Argument<'a>],
    ) -> DriverFuture<'a, Rows> {
        let arguments: Result<Vec<_>, _> = arguments.iter().map(owned).collect();
        Box::pin(async {
            let arguments = arguments?;
            let run = move |connection: &mut Connection| run(connection, &sql, &arguments);
            self.worker.ask(run).await?
        })
    }
}

impl PooledConnection for Pooled {
    fn give_back(self: Box<Self>) -> GiveBack {
        Box::pin(async move {
            let Self { worker, home } = *self;
            // The thread first finishes what it may still be doing for a call that was dropped.
            if let Some((inner, permit)) = home
                && worker.ask(|_| ()).await.is_ok()
            {
                inner.idle().push(worker);
                drop(permit);
            }
        })
    }

    fn detach(mut self: Box<Self>) -> Box<dyn DriverConnection> {
        self.home = None;
        self
    }
}

/// A connection and its thread, which ends with the value, after the work that it has begun.
struct Worker(mpsc::Sender<Work>);

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

impl Worker {
    fn start(mut connection: Connection) -> Self {
        let (sender, receiver) = mpsc::channel::<Work>();
        std::thread::spawn(move || {
            while let Ok(work) = receiver.recv() {
                work(&mut connection);
            }
        });
        Self(sender)
    }

    /// Does `work` on the thread of the connection, after everything that was sent to the thread before. The work is
    /// done even if nobody waits for its result any more.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let (done, answer) = oneshot::channel();
        let work = Box::new(move |connection: &mut Connection| {
            let _ = done.send(work(connection));
        });
        self.0.send(work).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())
    }
}

fn ended() -> DriverError {
    DriverError::broken("the thread of the SQLite connection has ended")
}

/// Returns a copy of an argument that can be sent to the thread of a connection.
fn owned(argument: &Argument<'_>) -> Result<rusqlite::types::Value, DriverError> {
    use rusqlite::types::Value;
    match *argument {
        Argument::Int(int) => Ok(Value::Integer(int)),
        Argument::Text(text) => Ok(Value::Text(text.to_owned())),
        Argument::Bytes(bytes) => Ok(Value::Blob(bytes.to_owned())),
        _ => Err(DriverError::other(
            "an argument of a kind that this driver does not know",
        )),
    }
}

/// Runs the statements of a text, and returns what the last one did.
fn run(
    connection: &Connection,
    sql: &str,
    arguments: &[rusqlite::types::Value],
) -> Result<Rows, DriverError> {
    let mut left = arguments.iter();
    let mut done = Rows::default();
    let mut batch = Batch::new(connection, sql);
    while let Some(mut statement) = batch.next().map_err(driver_error)? {
        for place in 1..=statement.parameter_count() {
            let argument = left.next();
            let argument = argument.ok_or_else(|| DriverError::other("an argument is missing"))?;
            let bound = statement.raw_bind_parameter(place, argument);
            bound.map_err(driver_error)?;
        }
        let (columns, changes) = (statement.column_count(), !statement.readonly());
        let mut rows = Vec::new();
        let mut found = statement.raw_query();
        while let Some(row) = found.next().map_err(driver_error)? {
            let values = (0..columns).map(|column| row.get_ref(column).map(value));
            let values = values.collect::<rusqlite::Result<_>>();
            rows.push(Row::new(values.map_err(driver_error)?));
        }
        drop(found);
        done = Rows {
            rows,
            changed: if changes { connection.changes() } else { 0 },
            insert_id: None,
        };
    }
    Ok(done)
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(int) => Value::Int(int),
        ValueRef::Real(real) => Value::Text(real.to_string()),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Bytes(text.to_owned().into()),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_owned().into()),
    }
}

/// Returns what an error of rusqlite's means.
fn driver_error(error: rusqlite::Error) -> DriverError {
    let (code, message) = match &error {
        rusqlite::Error::SqliteFailure(code, message) => {
            let message = message.clone().unwrap_or_else(|| code.to_string());
            (code.extended_code, message)
        }
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg.clone()),
        _ => return DriverError::other(error),
    };
    DriverError::refused(ErrorCode::Sqlite(code), message, error)
}
