//! Makes the tables, and upgrades in place those of an older release.

use crate::{
    driver::{DriverConnection, DriverError},
    error::{Error, ErrorKind},
    sql::{
        pool::Connections,
        run::{Arg, Cells, Statement, has_code, is_contended, run},
        statements::{Dialect, PerDialect, tables},
    },
    timing::{Backoff, TABLES_PAUSES},
};

/// Refuses a prefix unless every database accepts it: up to 40 lowercase letters, digits and `_`,
/// and no digit first.
pub(super) fn check_prefix(prefix: &str) -> Result<(), Error> {
    let fits = prefix.len() <= 40
        && prefix.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && prefix
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if fits {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "the table prefix {prefix:?} cannot be used: write a lowercase letter or `_`, then up to 39 lowercase letters, digits and `_`"
        )))
    }
}

/// Makes or upgrades the tables. Several processes may do so concurrently.
pub(super) async fn prepare(
    connections: &Connections,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
) -> Result<(), Error> {
    let version = Statement::new(dialect, prefix, tables::VERSION);
    // The usual case changes nothing: it needs no write permission and waits for no other writer. An error
    // here, such as a missing table, occurs again below if it matters.
    if let Ok(done) = connections.run_new(&version, &[]).await
        && let Some(row) = done.rows.first()
        && pending(steps, row.number(0).map_err(failed)?)?.is_empty()
    {
        return Ok(());
    }

    make(connections, dialect, prefix, steps, Apply::Pending).await
}

/// Checks that the tables are there, and of this release. Changes nothing.
pub(super) async fn check(
    connections: &Connections,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
) -> Result<(), Error> {
    let remedy = "make them by `Builder::create_tables`, by the statements of `Builder::ddl`, or by `perennial ddl`";
    let version = Statement::new(dialect, prefix, tables::VERSION);
    let done = connections.run_new(&version, &[]).await;
    let done = done.map_err(|error| {
        let message = format!(
            "Perennial's tables cannot be read, and `Builder::expect_tables` makes none: {remedy}"
        );
        if has_code(&error, |rules| rules.no_such_table) {
            Error::caused(ErrorKind::Schema, message, error)
        } else {
            Error::database(message, error)
        }
    })?;
    let found = done.rows.first().map_or(Ok(0), |row| row.number(0));
    if pending(steps, found.map_err(failed)?)?.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Perennial's tables are of an older release, and `Builder::expect_tables` does not upgrade them: {remedy}"
    );
    Err(Error::with_message(ErrorKind::Schema, message))
}

/// Makes the tables that are missing, whatever the stored schema version says.
pub(super) async fn remake(
    connections: &Connections,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
) -> Result<(), Error> {
    make(connections, dialect, prefix, steps, Apply::All).await
}

/// The steps to apply.
#[derive(Clone, Copy, PartialEq)]
enum Apply {
    /// The steps after the version that the tables have.
    Pending,
    /// All steps run, because some tables are missing although the schema version is stored. Each step makes
    /// only what is missing.
    All,
}

async fn make(
    connections: &Connections,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
    apply: Apply,
) -> Result<(), Error> {
    // Another process may be making the tables.
    let is_raced = |error: &_| is_contended(error) || has_code(error, |rules| rules.ddl_race);
    let mut backoff = Backoff::new(TABLES_PAUSES).tries(40);
    loop {
        match upgrade(connections, dialect, prefix, steps, apply).await {
            Ok(done) => return done,
            Err(error) if is_raced(&error) && backoff.pause().await => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Applies the missing migration steps. The inner error means that a newer release has made the tables.
async fn upgrade(
    connections: &Connections,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
    apply: Apply,
) -> Result<Result<(), Error>, DriverError> {
    // If this future is dropped before the end, the connection is closed, which ends the transaction.
    let mut borrowed = connections.acquire().await?;
    let connection = borrowed.connection();
    connections
        .begin(connection, tables::BEGIN.of(dialect))
        .await?;
    let made = make_in(connection, dialect, prefix, steps, apply).await;
    let end = match made {
        Ok(Ok(())) => "COMMIT",
        _ => "ROLLBACK",
    };
    let ended = run(connection, &Statement::new(dialect, "", end), &[]).await;
    match dialect {
        // The session now has other limits for waiting, so the connection must not go back to the pool.
        Dialect::MySql | Dialect::MariaDb | Dialect::Galera => borrowed.close(),
        _ if ended.is_err() => borrowed.close(),
        _ => borrowed.give_back(),
    }
    let made = made?;
    ended?;
    Ok(made)
}

/// Applies the missing steps in a transaction.
async fn make_in(
    connection: &mut dyn DriverConnection,
    dialect: Dialect,
    prefix: &str,
    steps: &'static [&'static [PerDialect]],
    apply: Apply,
) -> Result<Result<(), Error>, DriverError> {
    let statement = |template| Statement::new(dialect, prefix, template);
    for wait in texts(dialect, &[tables::WAIT]) {
        run(connection, &statement(wait), &[]).await?;
    }
    for first in texts(dialect, &tables::SCHEMA) {
        run(connection, &statement(first), &[]).await?;
    }
    let done = run(connection, &statement(tables::VERSION), &[]).await?;
    let found = done.rows.first().map_or(Ok(0), |row| row.number(0))?;
    let steps_left = match pending(steps, found) {
        Ok(_) if apply == Apply::All => steps,
        Ok(steps) => steps,
        Err(error) => return Ok(Err(error)),
    };
    for step in steps_left {
        for change in texts(dialect, step) {
            run(connection, &statement(change), &[]).await?;
        }
    }
    let newest = [Arg::Int(version_of(steps))];
    run(connection, &statement(tables::NOTE), &newest).await?;
    Ok(Ok(()))
}

fn failed(source: DriverError) -> Error {
    let hint = if has_code(&source, |rules| rules.permission_denied) {
        " (this role may not; an administrator can, by running what `Builder::ddl` returns)"
    } else if has_code(&source, |rules| rules.not_our_table) {
        " (tables of these names are there that are not Perennial's: set another `Builder::table_prefix`)"
    } else if has_code(&source, |rules| rules.read_only) {
        " (the database may only be read: Perennial stores what it generates in it)"
    } else {
        ""
    };
    Error::database(
        format!("cannot make or upgrade Perennial's tables{hint}"),
        source,
    )
}

/// Returns the texts of statements, without those that the database does not need.
fn texts(
    dialect: Dialect,
    statements: &'static [PerDialect],
) -> impl Iterator<Item = &'static str> {
    let texts = statements.iter().map(move |sql| sql.of(dialect));
    texts.filter(|text| !text.is_empty())
}

/// Returns the statements of [`prepare`] on a database without tables, for an administrator.
pub(super) fn script(dialect: Dialect, prefix: &str) -> String {
    let version = version_of(tables::STEPS).to_string();
    let mut statements = vec![tables::BEGIN.of(dialect)];
    statements.extend(texts(dialect, &tables::SCHEMA));
    for step in tables::STEPS {
        statements.extend(texts(dialect, step));
    }
    statements.extend([tables::NOTE, "COMMIT"]);
    let mut script = String::new();
    for statement in statements {
        let statement = dialect.render(statement, prefix).replace("$1", &version);
        for line in statement.lines() {
            // Without the indentation that the texts have in this crate.
            script.push_str(line.strip_prefix("    ").unwrap_or(line));
            script.push('\n');
        }
        script.insert(script.len() - 1, ';');
    }
    script
}

/// Returns the version after these steps.
fn version_of<T>(steps: &[T]) -> i64 {
    i64::try_from(steps.len()).unwrap_or(i64::MAX)
}

/// Returns the steps from the tables' version to this release's.
fn pending<T>(steps: &[T], version: i64) -> Result<&[T], Error> {
    let done = usize::try_from(version).ok();
    done.and_then(|done| steps.get(done..)).ok_or_else(|| {
        Error::with_message(ErrorKind::Schema, format!(
            "the database's Perennial tables have version {version}, and this release knows versions up to {}: \
             use the release that made the tables or a newer one, or another table prefix",
            version_of(steps),
        ))
    })
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::{
        SqlitePool,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous},
    };

    use super::*;
    use crate::sql::Database;

    const OLD: &[&[PerDialect]] = &[&[PerDialect::same(
        "CREATE TABLE {p}entry (key TEXT PRIMARY KEY)",
    )]];
    const NEW: &[&[PerDialect]] = &[
        OLD[0],
        &[
            PerDialect::same(
                "ALTER TABLE {p}entry ADD COLUMN colour TEXT NOT NULL DEFAULT 'green'",
            ),
            PerDialect::same("CREATE TABLE {p}more (name TEXT)"),
        ],
        &[PerDialect::same(
            "INSERT INTO {p}more SELECT key FROM {p}entry",
        )],
    ];
    const BROKEN: &[&[PerDialect]] = &[
        OLD[0],
        &[
            PerDialect::same("CREATE TABLE {p}more (name TEXT)"),
            PerDialect::same("CREATE NONSENSE"),
        ],
    ];

    async fn memory() -> SqlitePool {
        let pool = SqlitePoolOptions::new().max_connections(1);
        pool.connect("sqlite::memory:").await.expect("opens")
    }

    async fn make(pool: &SqlitePool, steps: &'static [&'static [PerDialect]]) -> Result<(), Error> {
        let connections = Database::from(pool.clone()).connections();
        prepare(&connections, Dialect::Sqlite, "p_", steps).await
    }

    async fn old(pool: &SqlitePool) {
        make(pool, OLD).await.expect("is made");
        let row = sqlx::query("INSERT INTO p_entry (key) VALUES ('/')");
        row.execute(pool).await.expect("is stored");
    }

    async fn one(pool: &SqlitePool, sql: &'static str) -> String {
        sqlx::query_scalar(sql)
            .fetch_one(pool)
            .await
            .expect("is there")
    }

    #[tokio::test]
    async fn an_older_release_is_upgraded_in_place() {
        let pool = memory().await;
        old(&pool).await;
        for _ in 0..2 {
            make(&pool, NEW).await.expect("is upgraded");
            assert_eq!(
                one(&pool, "SELECT key || colour FROM p_entry").await,
                "/green"
            );
            assert_eq!(
                one(&pool, "SELECT group_concat(name) FROM p_more").await,
                "/"
            );
        }
        let error = make(&pool, OLD).await.expect_err("is newer");
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(
            error.to_string().contains("version 3") && error.to_string().contains("up to 1"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_upgrade_that_fails_leaves_everything_as_it_was() {
        let pool = memory().await;
        old(&pool).await;
        make(&pool, BROKEN).await.expect_err("is nonsense");
        make(&pool, NEW).await.expect("the table is not in its way");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_upgrade_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!(
            "sqlite://{}?mode=rwc",
            folder.path().join("site.db").display()
        );
        // SQLite lets one transaction write at a time. Without waits for the disk (`synchronous =
        // OFF`), none of the transactions has to wait for too long.
        let options: SqliteConnectOptions = url.parse().expect("a URL");
        let options = options.synchronous(SqliteSynchronous::Off);
        let first = SqlitePool::connect_with(options.clone()).await;
        let first = first.expect("opens");
        old(&first).await;
        let upgrades: Vec<_> = (0..8)
            .map(|_| {
                let pool = SqlitePool::connect_with(options.clone());
                tokio::spawn(async move {
                    let pool = pool.await.expect("opens");
                    make(&pool, NEW).await
                })
            })
            .collect();
        for upgrade in upgrades {
            upgrade.await.expect("no panic").expect("is upgraded");
        }
        assert_eq!(
            one(&first, "SELECT group_concat(name) FROM p_more").await,
            "/"
        );
    }
}
