//! Runs statements on the connections of a pool: borrows one, runs the statement behind its guard, gives the
//! connection back or closes it, and tries again where that does no harm.
//!
//! Invariant: a connection that may be in a transaction, hold a lock, or be broken does not go back to the
//! pool.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use crate::{
    clock::FOREVER,
    driver::{Driver, DriverConnection, DriverError, Engine, PooledConnection, Rows},
    error::Error,
    sql::{
        file::DatabaseFile,
        guard::{self, Guard, Settings, setting},
        run::{Arg, Cells, Statement, is_broken, is_contended, run},
        statements::Dialect,
    },
    timing::{Backoff, RETURN_LIMIT, STATEMENT_PAUSES, URGENT_WAIT},
};

/// The number of further attempts of a statement that has lost to another one, over some two seconds: it wins
/// in the end.
const CONTENDED_TRIES: u32 = 19;

/// How often a statement is tried again after its connection broke, within a fifth of a second. There is a
/// limit because the server may be down for longer.
const BROKEN_TRIES: u32 = 8;

/// How often a statement is tried again that was not executed because its connection was in a wrong state. If
/// an application leaves every connection in such a state, a caller may be given many of these in a row. The
/// call's time limit ends the attempts earlier.
const SESSION_TRIES: u32 = 1000;

/// A connection that was taken from a pool, or opened outside of it.
///
/// If it is dropped, nobody waits for the answer any more. The server may still be working on the statement,
/// so the connection counts as used until the server has answered or the time limit of the statement is over.
/// That way a caller who gives up early and tries again does not make the pool open one connection after
/// another. A connection from [`Connections::acquire`] is closed instead, because it may be in a transaction
/// or hold a lock. A connection to SQLite is rolled back and given back, because a database in memory may end
/// with its connection.
pub struct Borrowed {
    connection: Option<Box<dyn PooledConnection>>,
    /// For a connection beside the pool: its permit, which limits the number of such connections.
    _beside: Option<OwnedSemaphorePermit>,
    is_networked: bool,
    /// When the time limit of the call ends.
    until: Instant,
    /// True if every statement on the connection is a transaction of its own, so that a dropped call leaves
    /// nothing open.
    leaves_nothing: bool,
}

impl Borrowed {
    pub fn connection(&mut self) -> &mut dyn DriverConnection {
        &mut **self.connection.as_mut().expect("is borrowed")
    }

    pub fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            give_back(connection, RETURN_LIMIT);
        }
    }

    /// Closes the connection of a server.
    pub fn close(mut self) {
        if !self.is_networked {
            return self.give_back();
        }
        drop(self.connection.take());
    }

    /// Takes the connection out of the pool.
    pub fn detach(mut self) -> Box<dyn DriverConnection> {
        self.connection.take().expect("is borrowed").detach()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let left = self.until.saturating_duration_since(Instant::now());
        if !self.is_networked {
            roll_back(connection);
        } else if left.is_zero() || !self.leaves_nothing {
            // The pool would wait for the rest of the answer, which may never come.
            drop(connection);
        } else {
            give_back(connection, left);
        }
    }
}

/// Gives a connection to SQLite back to its pool. If a call with several statements is dropped, SQLite does
/// not execute them to the end. A transaction that they began may then still be open, so it is rolled back.
fn roll_back(mut connection: Box<dyn PooledConnection>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            let rollback = Statement::new(Dialect::Sqlite, "", "ROLLBACK");
            // It fails if there is no transaction.
            let _ = run(&mut *connection, &rollback, &[]).await;
            connection.give_back().await;
        });
    }
}

/// Gives a connection back to its pool, which first checks that it is alive, and has no time limit for that.
/// Closes the connection if the check takes longer than `limit`.
fn give_back(connection: Box<dyn PooledConnection>, limit: Duration) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { timeout(limit, connection.give_back()).await });
    }
}

/// What is known about the server behind a pool. All users of the pool share it.
#[derive(Debug)]
pub struct Server {
    /// Others use the pool's connections, too, and leave them in any state.
    is_shared: bool,
    /// The dialect to use whatever the server says it is. Tests set it.
    assumed: Option<Dialect>,
    /// The settings of the first connection that answered.
    settings: OnceCell<Settings>,
    /// Limits the connections beside the pool: there may be as many of them as in the pool.
    beside: OnceLock<Arc<Semaphore>>,
}

impl Server {
    pub fn new(is_shared: bool, assumed: Option<Dialect>) -> Self {
        Self {
            is_shared,
            assumed,
            settings: OnceCell::new(),
            beside: OnceLock::new(),
        }
    }
}

/// The connections of a pool. Each statement on them has a guard (see `guard.rs`).
#[derive(Debug)]
pub struct Connections {
    pool: Arc<dyn Driver>,
    server: Arc<Server>,
    /// The time limit of a call.
    limit: Duration,
    /// A statement that finds no free connection soon gets one beside the pool.
    is_urgent: bool,
    /// Known once the server has answered.
    guard: Arc<OnceLock<Guard>>,
}

/// A statement whose SQL also contains the guard: the part that checks and corrects the state of the
/// connection.
#[derive(Clone, Debug)]
pub struct Guarded(Statement);

impl Connections {
    /// Returns the connections of a pool. `limit` is the time limit of a call.
    pub(super) fn new(pool: Arc<dyn Driver>, server: Arc<Server>, limit: Duration) -> Self {
        Self {
            pool,
            server,
            limit,
            is_urgent: false,
            guard: Arc::default(),
        }
    }

    /// Returns these connections for urgent statements, which do not queue behind the application for a
    /// connection. Without this, the extension of a lease would have to wait, because the work under the lease
    /// may use all connections.
    pub fn urgent(&self) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            server: Arc::clone(&self.server),
            limit: self.limit,
            is_urgent: true,
            guard: Arc::clone(&self.guard),
        }
    }

    /// Returns the dialect of the server.
    ///
    /// # Errors
    ///
    /// The server does not answer, or its sessions cannot be used.
    pub async fn dialect(&self) -> Result<Dialect, Error> {
        let settings = self.settings().await;
        let settings = settings
            .map_err(|error| Error::database("cannot ask the server for its kind", error))?;
        check(settings)?;
        Ok(self.dialect_of(settings))
    }

    fn dialect_of(&self, settings: &Settings) -> Dialect {
        let engine = self.pool.engine();
        self.server
            .assumed
            .unwrap_or_else(|| engine.dialect_of(settings))
    }

    fn is_networked(&self) -> bool {
        self.pool.engine().rules().is_networked
    }

    /// Returns the file of the database, if the database is a file.
    pub(super) fn file(&self) -> Option<DatabaseFile> {
        self.pool.file().map(DatabaseFile::new)
    }

    /// Others use the pool's connections, too.
    pub(super) fn is_shared(&self) -> bool {
        self.server.is_shared
    }

    async fn settings(&self) -> Result<&Settings, DriverError> {
        let read = || self.read_settings();
        self.server.settings.get_or_try_init(read).await
    }

    /// Asks one connection for its settings. The statement has no guard, because the guard is made from
    /// these settings.
    fn read_settings(&self) -> BoxFuture<'_, Result<Settings, DriverError>> {
        Box::pin(async {
            let mut broken = Backoff::new(STATEMENT_PAUSES).random().tries(BROKEN_TRIES);
            loop {
                let mut borrowed = self.borrow().await?;
                let read = settings_on(self.pool.engine(), borrowed.connection()).await;
                let again = match &read {
                    // Perhaps the bad state is that of this one connection only.
                    Ok(settings) => self.server.is_shared && check(settings).is_err(),
                    Err(error) => is_broken(error) || Guard::None.has_failed(error),
                };
                if read.is_ok() && !again {
                    borrowed.give_back();
                    return read;
                }
                borrowed.close();
                if !again || !broken.pause().await {
                    return read;
                }
            }
        })
    }

    async fn guard(&self) -> Result<&Guard, DriverError> {
        let settings = self.settings().await?;
        Ok(self.guard.get_or_init(|| {
            let dialect = self.dialect_of(settings);
            Guard::new(dialect, self.server.is_shared, settings, self.limit)
        }))
    }

    /// Returns a statement as it is sent over these connections.
    pub async fn guarded(&self, statement: &Statement) -> Result<Guarded, DriverError> {
        Ok(Guarded(self.guard().await?.guarded(statement)))
    }

    async fn borrow(&self) -> Result<Borrowed, DriverError> {
        let (connection, beside) = match self.is_urgent {
            true => match timeout(URGENT_WAIT, self.pool.acquire()).await {
                Ok(connection) => (connection?, None),
                Err(_) => self.connect_beside().await?,
            },
            false => (self.pool.acquire().await?, None),
        };
        Ok(Borrowed {
            connection: Some(connection),
            _beside: beside,
            is_networked: self.is_networked(),
            until: Instant::now() + self.limit.min(FOREVER),
            leaves_nothing: true,
        })
    }

    /// Opens a connection beside the pool. If the driver cannot do that, waits for a connection from the pool.
    /// An application may prepare the connections of its pool, for instance select a database or switch on
    /// autocommit. A connection beside the pool lacks these preparations.
    async fn connect_beside(
        &self,
    ) -> Result<(Box<dyn PooledConnection>, Option<OwnedSemaphorePermit>), DriverError> {
        let permits = self.server.beside.get_or_init(|| {
            let most = self.pool.max_connections().min(Semaphore::MAX_PERMITS);
            Arc::new(Semaphore::new(most))
        });
        let Some(connect) = self.pool.connect() else {
            return Ok((self.pool.acquire().await?, None));
        };
        let permit = Arc::clone(permits).acquire_owned().await;
        let permit = permit.map_err(DriverError::unreachable)?;
        let mut connection = connect.await?;
        if let Some(settings) = self.server.settings.get()
            && let Some(first) = guard::beside(self.dialect_of(settings), settings)
        {
            run(&mut *connection, &first, &[]).await?;
        }
        Ok((connection, Some(permit)))
    }

    /// Takes a connection that is in no transaction and is set up for the site's tables. It is closed when it
    /// is dropped; see [`Borrowed`].
    pub async fn acquire(&self) -> Result<Borrowed, DriverError> {
        let guard = self.guard().await?;
        let alone = guard.alone(self.pool.engine().dialect());
        let mut tries = Backoff::new(STATEMENT_PAUSES).random().tries(SESSION_TRIES);
        loop {
            let mut borrowed = self.borrow().await?;
            borrowed.leaves_nothing = false;
            let Some(alone) = &alone else {
                return Ok(borrowed);
            };
            let engine = self.pool.engine();
            let done = run_on(engine, borrowed.connection(), guard, alone, &[]).await;
            let Err(error) = done else {
                return Ok(borrowed);
            };
            borrowed.close();
            let again = guard.has_failed(&error) || is_broken(&error);
            if !again || !tries.pause().await {
                return Err(error);
            }
        }
    }

    /// Runs this statement to begin a transaction on the site's tables. The statement runs on a connection from
    /// [`acquire`](Self::acquire). Dropping the connection ends the transaction.
    pub async fn begin(
        &self,
        connection: &mut dyn DriverConnection,
        begin: &'static str,
    ) -> Result<(), DriverError> {
        let settings = self.settings().await?;
        let dialect = self.dialect_of(settings);
        run(connection, &Statement::new(dialect, "", begin), &[]).await?;
        if let Some(first) = guard::in_transaction(dialect, settings) {
            run(connection, &first, &[]).await?;
        }
        Ok(())
    }

    /// Runs a statement once.
    async fn once(
        &self,
        guard: &Guard,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Rows, DriverError> {
        let engine = self.pool.engine();
        let mut borrowed = self.borrow().await?;
        let done = async {
            if let Guard::Apart(_) = guard
                && let Some(apart) = guard.alone(engine.dialect())
            {
                run(borrowed.connection(), &apart, &[]).await?;
            }
            run_on(engine, borrowed.connection(), guard, statement, arguments).await
        };
        let done = done.await;
        match &done {
            Err(error) if is_broken(error) || guard.has_failed(error) => {
                borrowed.close();
            }
            _ => borrowed.give_back(),
        }
        done
    }

    /// Runs a statement as [`run`](Self::run) does. The SQL is unique to this call, so it is not worth
    /// preparing.
    pub async fn run_new(
        &self,
        statement: &Statement,
        arguments: &[Arg<'_>],
    ) -> Result<Rows, DriverError> {
        let statement = self.guarded(statement).await?;
        self.run(&statement, arguments).await
    }

    /// Runs a statement that may be executed twice without harm. It is run again if the connection breaks, and
    /// if it fails because a concurrent statement came first.
    pub async fn run(
        &self,
        statement: &Guarded,
        arguments: &[Arg<'_>],
    ) -> Result<Rows, DriverError> {
        let again = |error: &_| is_broken(error) || is_contended(error);
        self.run_while(again, statement, arguments).await
    }

    /// Runs a statement, and repeats it as long as it fails with an error for which `again` returns true.
    pub async fn run_while(
        &self,
        again: impl Fn(&DriverError) -> bool,
        Guarded(statement): &Guarded,
        arguments: &[Arg<'_>],
    ) -> Result<Rows, DriverError> {
        let guard = self.guard().await?;
        let backoff = |tries| Backoff::new(STATEMENT_PAUSES).random().tries(tries);
        let mut contended = backoff(CONTENDED_TRIES);
        let mut broken = backoff(BROKEN_TRIES);
        let mut unsuitable = backoff(SESSION_TRIES);
        loop {
            let error = match self.once(guard, statement, arguments).await {
                Err(error) => error,
                done => return done,
            };
            let backoff = if guard.has_failed(&error) {
                // Nothing was done.
                &mut unsuitable
            } else if !again(&error) {
                return Err(error);
            } else if is_contended(&error) {
                &mut contended
            } else {
                &mut broken
            };
            if !backoff.pause().await {
                return Err(error);
            }
        }
    }
}

/// Runs a statement on a connection. If somebody has left a transaction open on a connection to SQLite, it is
/// ended here. The connection is not closed, because a database in memory ends with its only connection.
async fn run_on(
    engine: Engine,
    connection: &mut dyn DriverConnection,
    guard: &Guard,
    statement: &Statement,
    arguments: &[Arg<'_>],
) -> Result<Rows, DriverError> {
    match run(connection, statement, arguments).await {
        Err(error) if engine == Engine::Sqlite && guard.has_failed(&error) => {
            let rollback = Statement::new(engine.dialect(), "", "ROLLBACK");
            run(connection, &rollback, &[]).await?;
            run(connection, statement, arguments).await
        }
        Err(error) if guard.may_be_elsewhere(&error) => {
            // If the guard succeeds when it is run alone, then the tables or the rights are indeed missing.
            if let Some(alone) = guard.alone(engine.dialect()) {
                run(connection, &alone, &[]).await?;
            }
            Err(error)
        }
        done => done,
    }
}

/// Database servers that speak the protocol of PostgreSQL or MySQL, and for which Perennial's statements were
/// not written. Each has a word from its version string.
const REFUSED: [(&str, &str); 3] = [
    ("CockroachDB", "CockroachDB"),
    ("-YB-", "YugabyteDB"),
    ("TiDB", "TiDB"),
];

/// Refuses servers that only resemble PostgreSQL or MySQL, and sessions in which a statement would succeed and
/// be rolled back later.
fn check(settings: &Settings) -> Result<(), Error> {
    let version = setting(settings, "version").unwrap_or_default();
    if let Some((_, engine)) = REFUSED.iter().find(|(word, _)| version.contains(word)) {
        return Err(Error::invalid(format!(
            "{engine} is not supported: use PostgreSQL, MySQL, MariaDB or SQLite for the site"
        )));
    }
    let isolation = ["transaction_isolation", "tx_isolation"];
    if isolation
        .iter()
        .any(|name| setting(settings, name) == Some("READ-UNCOMMITTED"))
    {
        return Err(Error::invalid(
            "the pool's connections are at READ UNCOMMITTED: they would act on rows that are rolled back later. \
             Set `transaction_isolation` of the server, or of the pool's connections, to READ COMMITTED or a stricter level",
        ));
    }
    if setting(settings, "autocommit") == Some("OFF") {
        return Err(Error::invalid(
            "the pool's connections have `autocommit = 0`: nothing that Perennial stores would be committed. \
             Set `autocommit = 1` for the server, or for the pool's connections by `PoolOptions::after_connect`",
        ));
    }
    Ok(())
}

/// Asks the server behind a connection for its dialect.
pub(super) async fn dialect_on(
    engine: Engine,
    connection: &mut (dyn DriverConnection + '_),
) -> Result<Dialect, DriverError> {
    Ok(engine.dialect_of(&settings_on(engine, connection).await?))
}

/// Asks a connection for its settings. A setting that is NULL is left out.
async fn settings_on(
    engine: Engine,
    connection: &mut (dyn DriverConnection + '_),
) -> Result<Settings, DriverError> {
    let mut settings = Vec::new();
    for query in engine.rules().settings {
        let query = Statement::new(engine.dialect(), "", query);
        for row in run(connection, &query, &[]).await?.rows {
            if let Some(value) = row.text(1)? {
                settings.push((row.name(0)?, value));
            }
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_were_never_tried_are_refused_by_their_names() {
        for (version, engine) in [
            ("8.0.11-TiDB-v8.5.0", "TiDB"),
            ("PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64", "YugabyteDB"),
            ("CockroachDB CCL v25.1.0", "CockroachDB"),
        ] {
            let settings = vec![("version".to_owned(), version.to_owned())];
            let error = check(&settings).expect_err(version).to_string();
            assert!(error.starts_with(engine), "{error}");
        }
        let settings = vec![("version".to_owned(), "11.4.2-MariaDB".to_owned())];
        check(&settings).expect("is supported");
    }
}
