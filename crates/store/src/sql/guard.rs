//! What Perennial does about the state in which somebody else has left a connection of the pool.
//!
//! An application that shares its pool also shares what it does to the pool's connections: a
//! transaction that was begun and never ended (sqlx 0.9.0 leaves one when `pool.begin()` is
//! cancelled), a transaction that has failed, `autocommit = 0`, a tenant's schema, another role. On
//! such a connection, a statement would succeed and be undone later, or write into other tables. A
//! pooler that shares a server's sessions does the same to Perennial's own pools.
//!
//! So every statement on a pool has a guard. Where the database allows it, the guard is sent in the same
//! message as the statement and costs no round trip. It corrects the settings that can be changed for one
//! statement. If the statement would not be committed, the guard fails; the connection is then closed, and the
//! statement runs on another one. The decision record `docs/design/0002` says what was tried, what the guard
//! costs, and when it can be removed.

use std::time::Duration;

use crate::{
    driver::{DriverError, Engine},
    sql::{
        dialect::{IN_TRANSACTION, NO_TRANSACTION, literal},
        run::{Arg, Statement, has_code},
        statements::Dialect,
    },
};

/// The names and values of settings of a connection.
pub(super) type Settings = Vec<(String, String)>;

/// Returns the value of a setting.
pub(super) fn setting<'a>(settings: &'a Settings, name: &str) -> Option<&'a str> {
    let mut settings = settings.iter();
    settings.find_map(|(other, value)| (other == name).then_some(&**value))
}

/// What precedes a statement on a connection of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// Nothing, as only Perennial uses the connections.
    None,
    /// Other statements in the same text.
    Before(String),
    /// Settings of MariaDB for one statement.
    Settings(String),
    /// A statement of its own, in a round trip of its own: MySQL lets no statement see that it is in a
    /// transaction.
    Apart(String),
}

impl Guard {
    /// Returns the guard for a server. `is_shared` says that others use the pool's connections, too.
    /// `settings` are those of the connection by which the site was opened. After `limit`, the time limit of
    /// a call, PostgreSQL and MariaDB end the statement as well.
    pub(super) fn new(
        dialect: Dialect,
        is_shared: bool,
        settings: &Settings,
        limit: Duration,
    ) -> Self {
        match dialect {
            Dialect::Postgres => Self::Before(postgres(settings, limit)),
            Dialect::MariaDb | Dialect::Galera if is_shared => {
                Self::Settings(mariadb(settings, limit))
            }
            Dialect::MySql if is_shared => Self::Apart(mysql(settings)),
            // BEGIN fails inside of a transaction.
            Dialect::Sqlite if is_shared => Self::Before("BEGIN; COMMIT; ".to_owned()),
            _ => Self::None,
        }
    }

    /// Returns the statement with the guard in its text.
    pub(super) fn guarded(&self, statement: &Statement) -> Statement {
        match self {
            Self::None | Self::Apart(_) => statement.clone(),
            Self::Before(guard) => statement.with_text(|text| format!("{guard}{text}")),
            Self::Settings(guard) => {
                statement.with_text(|text| match text.strip_prefix("SET STATEMENT ") {
                    Some(more) => format!("SET STATEMENT {guard}, {more}"),
                    None => format!("SET STATEMENT {guard} FOR {text}"),
                })
            }
        }
    }

    /// Returns true if the statement was not executed because of the state in which somebody has left the
    /// connection: the statement would not have been committed, or would have used other tables than the
    /// site's.
    pub(super) fn has_failed(&self, error: &DriverError) -> bool {
        is_guard_failure(error) || has_code(error, |rules| rules.unsuitable_session)
    }

    /// Returns true if the statement may have failed because the connection has selected another database. On
    /// MariaDB that is possible in spite of the guard, because MariaDB looks for the tables before it applies
    /// the guard's settings.
    pub(super) fn may_be_elsewhere(&self, error: &DriverError) -> bool {
        matches!(self, Self::Settings(_))
            && (has_code(error, |rules| rules.no_such_table)
                || has_code(error, |rules| rules.permission_denied))
    }

    /// Returns a statement that does nothing but fail where the guard does, or `None` if the guard never
    /// fails.
    pub(super) fn alone(&self, dialect: Dialect) -> Option<Statement> {
        let nothing = Statement::new(dialect, "", "SELECT 1");
        match self {
            Self::None => None,
            Self::Apart(guard) => Some(nothing.with_text(|_| guard.clone())),
            Self::Before(_) | Self::Settings(_) => Some(self.guarded(&nothing)),
        }
    }
}

/// Returns true if the error is that of a guard, or of a transaction in a transaction.
pub(super) fn is_guard_failure(error: &DriverError) -> bool {
    let code = error.code();
    code.is_some_and(|code| {
        error
            .message()
            .contains(Engine::of(code).rules().guard_failure)
    })
}

/// Returns a form of the statement that fails outside of a transaction, and does nothing there. `None` means
/// that the statement cannot check that on this database.
pub(super) fn inside(dialect: Dialect, statement: &Statement) -> Option<Statement> {
    match dialect {
        Dialect::Postgres => Some(statement.with_text(|text| {
            format!(
                "SELECT set_config('statement_timeout', CASE WHEN transaction_timestamp() <> statement_timestamp()
                    THEN current_setting('statement_timeout') ELSE '{NO_TRANSACTION}' END, true); {text}"
            )
        })),
        Dialect::MariaDb | Dialect::Galera => {
            let guard = format!(
                "time_zone = IF(@@in_transaction OR NOT @@autocommit, @@time_zone, '{NO_TRANSACTION}')"
            );
            Some(Guard::Settings(guard).guarded(statement))
        }
        _ => None,
    }
}

/// Returns the statement that a transaction of Perennial's own begins with, so that it uses the site's tables.
pub(super) fn in_transaction(dialect: Dialect, settings: &Settings) -> Option<Statement> {
    match dialect {
        Dialect::Postgres => {
            let nothing = Statement::new(dialect, "", "");
            Some(nothing.with_text(|_| format!("SELECT {}", places(settings))))
        }
        _ => None,
    }
}

/// Returns the statement that has to come first on a connection which was opened beside the pool, and which the
/// pool has therefore not prepared.
pub(super) fn beside(dialect: Dialect, settings: &Settings) -> Option<Statement> {
    match dialect {
        Dialect::MySql | Dialect::MariaDb | Dialect::Galera => {
            Some(Statement::new(dialect, "", "").with_text(|_| mysql(settings)))
        }
        _ => None,
    }
}

/// Returns the guard for PostgreSQL, which is sent in one message with the statement. The settings that the
/// guard makes hold for this statement, and end with the message. If no transaction is open, the transaction
/// begins with the message, so both timestamps are the same.
fn postgres(settings: &Settings, limit: Duration) -> String {
    let limit = limit.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    format!(
        "SELECT set_config('statement_timeout', CASE WHEN transaction_timestamp() = statement_timestamp()
            THEN '{limit}ms' ELSE '{IN_TRANSACTION}' END, true), {}; ",
        places(settings)
    )
}

/// Returns expressions that set the role and the schemas until the end of the transaction. They get the
/// values that the connection had when the site was opened.
fn places(settings: &Settings) -> String {
    let set = |name| {
        let value = setting(settings, name).unwrap_or_default();
        let value = literal(Arg::Text(value));
        format!(
            "CASE WHEN current_setting('{name}') <> {value} THEN set_config('{name}', {value}, true) END"
        )
    };
    ["role", "search_path"].map(set).join(", ")
}

/// The longest time, in seconds, that `max_statement_time` takes.
const LONGEST_STATEMENT: f64 = 31_536_000.0;

/// Limits the statement's time, and sets the time zone. Usually that is the time zone which the
/// connection already has. If the statement would not be committed, or would run in another database
/// than the site's, the guard sets a time zone that does not exist. The statement then fails, and does
/// nothing.
fn mariadb(settings: &Settings, limit: Duration) -> String {
    // The names from before MariaDB 11.1, and those since.
    let [isolation, read_only] = match setting(settings, "tx_isolation") {
        Some(_) => ["tx_isolation", "tx_read_only"],
        None => ["transaction_isolation", "transaction_read_only"],
    };
    // Two databases may have names that differ only in case, so the names are compared as hexadecimal digits.
    let database = database(settings).map_or("NULL".to_owned(), |name| {
        format!("'{}'", crate::name::hex(name.as_bytes()))
    });
    // The limit in the server is a little longer than the one in this process. When the server's limit is
    // reached, nobody waits for the statement any more. Without a limit in the server, the statement would
    // go on.
    let limit = limit
        .saturating_add(Duration::from_millis(100))
        .as_secs_f64();
    let limit = limit.min(LONGEST_STATEMENT);
    format!(
        "max_statement_time = {limit:.3}, time_zone = IF(@@in_transaction OR NOT @@autocommit OR @@{read_only} OR @@{isolation} = 'READ-UNCOMMITTED' OR NOT (HEX(DATABASE()) <=> {database}), \
         '{IN_TRANSACTION}', @@time_zone)"
    )
}

/// Returns the guard for MySQL. It ends the transaction that somebody may have left open. Its settings stay on
/// the connection afterwards. That does no harm, because they are the ones with which the site was opened.
fn mysql(settings: &Settings) -> String {
    let mut guard =
        "ROLLBACK; UNLOCK TABLES; SET autocommit = 1; SET SESSION TRANSACTION READ WRITE"
            .to_owned();
    let isolation = ["transaction_isolation", "tx_isolation"];
    let isolation = isolation.iter().find_map(|name| setting(settings, name));
    if let Some(level) = isolation {
        let level = level.replace('-', " ");
        guard.push_str(&format!(
            "; SET SESSION TRANSACTION ISOLATION LEVEL {level}"
        ));
    }
    if let Some(name) = database(settings) {
        guard.push_str(&format!("; USE `{}`", name.replace('`', "``")));
    }
    guard
}

fn database(settings: &Settings) -> Option<&str> {
    setting(settings, "database")
}
