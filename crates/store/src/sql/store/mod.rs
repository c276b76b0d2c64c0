//! The store over SQL, written once for every database: the operations of `calls.rs`, as statements.
//!
//! It makes the tables before the first operation, keeps the text of each statement that has run, and checks
//! before each operation whether an SQLite file has been deleted or replaced.

mod entries;
mod invalidations;
pub mod locks;
mod processes;
mod requests;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use futures_util::future::BoxFuture;

use crate::{
    calls::{Backend, Call, CallFuture, MAX_NAMES, Reply},
    driver::{DriverError, ErrorCode, Row, Rows},
    error::{BoxError, Error, RejectedValue},
    locked,
    name::{LockName, bounded},
    rows::LeaseRow,
    sql::{
        file::DatabaseFile,
        pool::{Connections, Guarded},
        run::{Arg, Cells, Statement, has_code},
        schema,
        statements::{Dialect, PerDialect, expand_lists, tables},
        tables::{Found, Tables},
    },
};
pub use locks::lock_row;

pub type SqlResult<T> = Result<T, BoxError>;

/// A string that sorts before all names, from which pruning starts. It is not the empty string, which some
/// modes of MariaDB read as NULL.
const BEFORE_ALL_NAMES: &str = "\u{1}";

/// Statements with lists are prepared for these lengths, and for the greatest length that is allowed.
const LIST_LENGTHS: [usize; 3] = [1, 8, 64];

pub struct SqlStore {
    connections: Connections,
    tables: Tables,
    /// The statements that have run before.
    texts: Mutex<HashMap<Template, Arc<Guarded>>>,
    /// The database's file, once the tables are there.
    file: OnceLock<Option<DatabaseFile>>,
    /// The error of the last failed attempt to prepare the tables, for the operations that waited for
    /// this attempt.
    failed: tokio::sync::Mutex<Option<Error>>,
    /// The number of failed attempts.
    failures: AtomicU64,
}

/// What the text of a statement is written from.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Template {
    /// The parts of the template, one after the other.
    parts: [&'static str; 3],
    /// The first and the last argument in the place of `{names}`.
    names: Option<[usize; 2]>,
}

impl Template {
    fn new<const N: usize>(parts: [&'static str; N]) -> Self {
        let mut all = [""; 3];
        all[..N].copy_from_slice(&parts);
        Self {
            parts: all,
            names: None,
        }
    }

    fn render(&self) -> String {
        let template = self.parts.concat();
        match self.names {
            Some([first, last]) => expand_lists(&template, first..=last),
            None => template,
        }
    }
}

impl SqlStore {
    /// Returns a store whose tables are made or upgraded before its first operation.
    pub fn new(connections: Connections, tables: Tables) -> Self {
        Self {
            connections,
            tables,
            texts: Mutex::default(),
            file: OnceLock::new(),
            failed: tokio::sync::Mutex::new(None),
            failures: AtomicU64::new(0),
        }
    }

    /// Returns the server's dialect, after the tables are made. If making them fails, all operations that
    /// have waited for it fail, and the next one tries again.
    pub async fn dialect(&self) -> Result<Dialect, Error> {
        if let Some(dialect) = self.tables.found_dialect() {
            return Ok(dialect);
        }
        let failures = self.failures.load(Relaxed);
        let mut failed = self.failed.lock().await;
        if let Some(dialect) = self.tables.found_dialect() {
            return Ok(dialect);
        }
        if let Some(error) = &*failed
            && self.failures.load(Relaxed) != failures
        {
            return Err(error.clone());
        }
        let prepared: BoxFuture<'_, _> = Box::pin(self.prepare());
        match prepared.await {
            Ok(found) => {
                let dialect = found.dialect;
                self.tables.set(found);
                Ok(dialect)
            }
            Err(error) => {
                *failed = Some(error.clone());
                self.failures.fetch_add(1, Relaxed);
                Err(error)
            }
        }
    }

    /// Makes or upgrades the tables.
    async fn prepare(&self) -> Result<Found, Error> {
        let (connections, prefix) = (&self.connections, self.tables.prefix());
        let dialect = connections.dialect().await?;
        if dialect == Dialect::Sqlite {
            self.check_encoding().await?;
        }
        if self.tables.are_expected() {
            schema::check(connections, dialect, prefix, tables::STEPS).await?;
        } else {
            schema::prepare(connections, dialect, prefix, tables::STEPS).await?;
        }
        self.file.get_or_init(|| connections.file());
        if dialect == Dialect::Sqlite && connections.is_shared() {
            self.advise().await;
        }
        let schema = match tables::PLACE.of(dialect) {
            "" => None,
            place => {
                let place = Statement::new(dialect, prefix, place);
                let place = connections.run_new(&place, &[]).await;
                let place =
                    place.and_then(|done| done.rows.first().map_or(Ok(None), |row| row.text(0)));
                place.map_err(|error| Error::database("cannot find the tables' schema", error))?
            }
        };
        let id = Statement::new(dialect, prefix, tables::ID);
        let id = connections.run_new(&id, &[]).await;
        let id = id.and_then(|done| done.rows.first().map_or(Ok(None), |row| row.int(0)));
        let id =
            id.map_err(|error| Error::database("cannot read the number of the site", error))?;
        Ok(Found {
            dialect,
            schema,
            id: id.map(i64::unsigned_abs),
        })
    }

    /// Refuses an SQLite database whose encoding does not sort texts by their bytes, because the variants of a
    /// key are found by that order.
    async fn check_encoding(&self) -> Result<(), Error> {
        let pragma = Statement::new(Dialect::Sqlite, "", "PRAGMA encoding");
        let done = self.connections.run_new(&pragma, &[]).await;
        let encoding = done.and_then(|done| done.rows.first().map_or(Ok(None), |row| row.text(0)));
        let encoding = encoding
            .map_err(|error| Error::database("cannot ask the database for its encoding", error))?;
        match encoding {
            Some(encoding) if encoding != "UTF-8" => Err(Error::invalid(format!(
                "the SQLite database stores texts as {encoding}: use another file for the site, made with `PRAGMA encoding = 'UTF-8'` \
                 (the default)"
            ))),
            _ => Ok(()),
        }
    }

    /// Logs a recommendation if the application's own pool for SQLite lacks a setting, such as WAL mode or a
    /// busy timeout.
    async fn advise(&self) {
        let ask = async |pragma: &str| {
            let pragma = Statement::new(Dialect::Sqlite, "", pragma);
            let done = self.connections.run_new(&pragma, &[]).await.ok()?;
            let row = done.rows.into_iter().next()?;
            row.text(0).ok().flatten().or(row
                .int(0)
                .ok()
                .flatten()
                .map(|number| number.to_string()))
        };
        let is_file = self.file.get().is_some_and(Option::is_some);
        let journal = ask("PRAGMA journal_mode").await;
        if is_file && journal.is_some_and(|mode| mode != "wal") {
            tracing::warn!(
                target: "perennial::database",
                "the pool's SQLite file has no write-ahead log, so readers and writers wait for each other: add \
                 `.journal_mode(SqliteJournalMode::Wal)` to its `SqliteConnectOptions`"
            );
        }
        if ask("PRAGMA busy_timeout").await.as_deref() == Some("0") {
            tracing::warn!(
                target: "perennial::database",
                "the pool's SQLite connections have no busy timeout, so that each statement fails while another one writes: \
                 add `.busy_timeout(Duration::from_secs(2))` to their `SqliteConnectOptions`"
            );
        }
    }

    /// Makes the tables once more. This is needed if the database was reset while the site was running.
    async fn remake(&self) -> Result<(), Error> {
        let _one = self.failed.lock().await;
        let dialect = self.connections.dialect().await?;
        let prefix = self.tables.prefix();
        if self.tables.are_expected() {
            return schema::check(&self.connections, dialect, prefix, tables::STEPS).await;
        }
        schema::remake(&self.connections, dialect, prefix, tables::STEPS).await
    }

    async fn statement(&self, sql: &PerDialect) -> SqlResult<Arc<Guarded>> {
        let dialect = self.dialect().await?;
        self.text(Template::new([sql.of(dialect)])).await
    }

    /// Returns a statement as it is sent. Its text is made when the statement first runs, and kept.
    async fn text(&self, template: Template) -> SqlResult<Arc<Guarded>> {
        if let Some(text) = locked(&self.texts).get(&template) {
            return Ok(Arc::clone(text));
        }
        let dialect = self.dialect().await?;
        let text = Statement::new(dialect, self.tables.prefix(), &template.render());
        let text = Arc::new(self.connections.guarded(&text).await?);
        locked(&self.texts).insert(template, Arc::clone(&text));
        Ok(text)
    }

    async fn run(&self, sql: &PerDialect, arguments: &[Arg<'_>]) -> SqlResult<Rows> {
        let statement = self.statement(sql).await?;
        self.run_statement(&statement, arguments).await
    }

    async fn run_statement(&self, statement: &Guarded, arguments: &[Arg<'_>]) -> SqlResult<Rows> {
        let done = self.connections.run(statement, arguments).await;
        done.map_err(|error| {
            if has_code(&error, |rules| rules.rejected_value) {
                BoxError::from(RejectedValue(error.into()))
            } else {
                error.into()
            }
        })
    }

    /// Runs a statement with a list of at most [`MAX_NAMES`] names in the place of its `{names}`,
    /// after its other arguments. A connection keeps a prepared statement for each text. To keep
    /// the number of texts small, lists have only a few different lengths; a shorter list is filled
    /// up by repeating its last name.
    async fn run_with_list<'a>(
        &self,
        mut template: Template,
        mut arguments: Vec<Arg<'a>>,
        names: &'a [impl AsRef<str>],
    ) -> SqlResult<Rows> {
        if let Some(last) = names.last() {
            let room = LIST_LENGTHS.into_iter().find(|room| *room >= names.len());
            let (room, before) = (room.unwrap_or(MAX_NAMES), arguments.len());
            let padded = names.iter().chain(std::iter::repeat(last)).take(room);
            arguments.extend(padded.map(|name| Arg::Text(name.as_ref())));
            template.names = Some([before + 1, before + room]);
        }
        let statement = self.text(template).await?;
        self.run_statement(&statement, &arguments).await
    }

    /// Runs a statement whose first arguments are a kind and a name.
    async fn run_on(&self, sql: &PerDialect, name: &LockName, rest: &[Arg<'_>]) -> SqlResult<Rows> {
        let column = bounded(name.as_str());
        let arguments = [&[Arg::Text(name.kind().as_str()), Arg::Text(&column)], rest].concat();
        self.run(sql, &arguments).await
    }

    /// Runs a statement that itself checks a lease: its first arguments are the lease's kind, name,
    /// owner and fence.
    async fn run_under(
        &self,
        sql: &PerDialect,
        lease: &LeaseRow,
        rest: &[Arg<'_>],
    ) -> SqlResult<Rows> {
        let arguments = [&[Arg::Text(&lease.owner), Arg::Int(lease.fence.0)], rest].concat();
        self.run_on(sql, &lease.name, &arguments).await
    }

    /// Examines the rows that `next` selects, which are the next ones after `from`, and removes those that can
    /// be pruned. Returns the examined rows, and the name after which the next call begins. That is the last
    /// name which is valid, because other programs may have written names that are not.
    async fn prune(
        &self,
        [next, remove]: [&PerDialect; 2],
        from: &[Arg<'_>],
        rest: &[Arg<'_>],
    ) -> SqlResult<Option<(String, Vec<Row>)>> {
        let rows = self.run(next, from).await?.rows;
        let Some(last) = rows.iter().rev().find_map(|row| row.name(0).ok()) else {
            return Ok(None);
        };
        let arguments = [from, &[Arg::Text(&last)], rest].concat();
        self.run(remove, &arguments).await?;
        Ok(Some((last, rows)))
    }
}

impl Backend for SqlStore {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(async move {
            let file = self.file.get().and_then(Option::as_ref);
            if let Some(lost) = file.and_then(DatabaseFile::lost) {
                return match call {
                    // The file was replaced, and other processes may see the new one. There, one of them may
                    // take the lock.
                    Call::Extend(_) => Ok(Reply::Extend(false)),
                    _ => Err(lost.into()),
                };
            }
            match self.carry_out(&call).await {
                Err(error) if is_missing(&error) => {
                    self.remake().await?;
                    self.carry_out(&call).await
                }
                reply => reply,
            }
        })
    }
}

impl SqlStore {
    fn carry_out<'a>(&'a self, call: &'a Call) -> CallFuture<'a> {
        Box::pin(async move {
            Ok(match call {
                Call::Probe(it) => Reply::Probe(self.probe(it).await?),
                Call::TryLock(it) => Reply::TryLock(self.try_lock(it).await?),
                Call::Extend(it) => Reply::Extend(self.extend(it).await?),
                Call::Release(it) => Reply::Release(self.release(it).await?),
                Call::Publish(it) => Reply::Publish(self.publish(it).await?),
                Call::Remove(it) => Reply::Remove(self.remove(it).await?),
                Call::Invalidate(it) => Reply::Invalidate(self.invalidate(it).await?),
                Call::Invalidated(it) => Reply::Invalidated(self.invalidated(it).await?),
                Call::Number(it) => Reply::Number(self.number(it).await?),
                Call::Discard(it) => Reply::Discard(self.discard(it).await?),
                Call::LatestEpoch(_) => Reply::LatestEpoch(self.latest_epoch().await?),
                Call::PurgedUntil(_) => Reply::PurgedUntil(self.purged_until().await?),
                Call::LatestNames(it) => Reply::LatestNames(self.latest_names(it).await?),
                Call::Purge(it) => Reply::Purge(self.purge(it).await?),
                Call::List(it) => Reply::List(self.list(it).await?),
                Call::Latest(it) => Reply::Latest(self.latest(it).await?),
                Call::Count(_) => Reply::Count(self.count().await?),
                Call::Sizes(_) => Reply::Sizes(self.sizes().await?),
                Call::Evict(it) => Reply::Evict(self.evict(it).await?),
                Call::PruneEntries(it) => Reply::PruneEntries(self.prune_entries(it).await?),
                Call::Inspect(it) => Reply::Inspect(self.inspect(&it.name).await?),
                Call::Held(_) => Reply::Held(self.held().await?),
                Call::BreakLock(it) => Reply::BreakLock(self.break_lock(&it.name, it.seen).await?),
                Call::Revoke(it) => Reply::Revoke(self.revoke(it).await?),
                Call::PruneLocks(it) => Reply::PruneLocks(self.prune_locks(it).await?),
                Call::PruneInvalidations(it) => {
                    Reply::PruneInvalidations(self.prune_invalidations(it).await?)
                }
                Call::Begin(it) => Reply::Begin(self.begin(it).await?),
                Call::Finish(it) => Reply::Finish(self.finish(it).await?),
                Call::Forget(it) => Reply::Forget(self.forget(it).await?),
                Call::PruneRequests(it) => Reply::PruneRequests(self.prune_requests(it).await?),
                Call::NoteProcess(it) => Reply::NoteProcess(self.note_process(it).await?),
                Call::Processes(it) => Reply::Processes(self.processes(it).await?),
                Call::PruneProcesses(it) => Reply::PruneProcesses(self.prune_processes(it).await?),
            })
        })
    }
}

/// Returns true if a table is missing.
fn is_missing(error: &BoxError) -> bool {
    error.downcast_ref::<DriverError>().is_some_and(|error| {
        // SQLite's code says as little as "error".
        let is_another = matches!(error.code(), Some(ErrorCode::Sqlite(_)))
            && !error.message().contains("no such table");
        has_code(error, |rules| rules.no_such_table) && !is_another
    })
}
