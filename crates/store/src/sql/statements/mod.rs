//! The statements. The texts for all databases are next to each other.
//!
//! In the texts, `{p}` is the table prefix, `{names}` and similar words are lists (see `expand_lists`), and
//! other words in braces differ from database to database. The comment of a statement lists its arguments,
//! of which `$n` is the n-th, and its columns. The two lists are separated by an arrow, or begin with the
//! words "Arguments" and "Columns".

use std::ops::RangeInclusive;

use crate::driver::Engine;

pub mod entries;
pub mod invalidations;
pub mod locks;
pub mod processes;
pub mod requests;
pub mod tables;

/// A kind of database, by the SQL that it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MySql,
    MariaDb,
    /// MariaDB that may be a node of a Galera cluster. Galera compares the writes of two nodes, and
    /// not their reads.
    Galera,
}

/// The text of a statement, or of a part of it, for each database.
pub struct PerDialect {
    pub sqlite: &'static str,
    pub postgres: &'static str,
    pub mysql: &'static str,
}

impl PerDialect {
    pub const fn same(text: &'static str) -> Self {
        Self {
            sqlite: text,
            postgres: text,
            mysql: text,
        }
    }

    pub fn of(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Sqlite => self.sqlite,
            Dialect::Postgres => self.postgres,
            Dialect::MySql | Dialect::MariaDb | Dialect::Galera => self.mysql,
        }
    }
}

/// Replaces the lists in a statement by these arguments. `{names}` becomes a list of the arguments alone,
/// `{rows}` rows with one argument each, and `{rows_with_epoch}` rows with an argument and, on MySQL, the epoch
/// that was given to the previous row.
pub(crate) fn expand_lists(text: &str, arguments: RangeInclusive<usize>) -> String {
    let list = |before: &str, after: &str| {
        let items = arguments.clone();
        let items: Vec<_> = items.map(|n| format!("{before}${n}{after}")).collect();
        items.join(", ")
    };
    let text = text.replace("{names}", &list("", ""));
    let text = text.replace("{rows}", &list("(", ")"));
    text.replace("{rows_with_epoch}", &list("(", ", LAST_INSERT_ID())"))
}

impl Dialect {
    /// Returns the kind of database that has this dialect.
    pub fn engine(self) -> Engine {
        match self {
            Self::Sqlite => Engine::Sqlite,
            Self::Postgres => Engine::Postgres,
            Self::MySql | Self::MariaDb | Self::Galera => Engine::MySql,
        }
    }

    /// Returns the template with each word in braces replaced by the database's SQL for it.
    pub fn render(self, template: &str, prefix: &str) -> String {
        let mut parts = template.split('{');
        let mut sql = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (word, rest) = part.split_once('}').expect("a word in braces");
            match word {
                "p" => sql.push_str(prefix),
                word => sql.push_str(&self.render(self.keyword(word), prefix)),
            }
            sql.push_str(rest);
        }
        sql
    }

    fn keyword(self, word: &str) -> &'static str {
        let sql = match word {
            // The expression for the database's clock. It gives the time of the statement, and not that of the
            // beginning of the transaction.
            "now" => PerDialect {
                // `unixepoch('subsec')` is NULL before SQLite 3.42, and another program on the same
                // file may have an older SQLite.
                sqlite: "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)",
                // Not `now()`, which does not advance inside a transaction.
                postgres: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
                mysql: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
            },
            // The clock, for a comparison that decides how much of an index is read. The function is not
            // constant within a statement, so PostgreSQL would call it again for each row; in a subquery it is
            // called once.
            "now_once" => PerDialect {
                postgres: "(SELECT {now})",
                ..PerDialect::same("{now}")
            },
            // The beginning of a statement whose decision depends on what other nodes of a cluster have
            // written: a node first waits for all commits of the others. A build of MariaDB without Galera
            // refuses the setting.
            "waits" if self == Dialect::Galera => {
                PerDialect::same("SET STATEMENT wsrep_sync_wait = 15 FOR ")
            }
            "waits" => PerDialect::same(""),
            // On MariaDB, these settings make the statement fail at once if a row is locked, and make the order
            // of assignments independent of the SQL mode.
            "at_once" => PerDialect {
                mysql: match self {
                    Dialect::MariaDb | Dialect::Galera => {
                        "SET STATEMENT innodb_lock_wait_timeout = 0, sql_mode = '' FOR "
                    }
                    // Some programs send the same text to MySQL and to MariaDB, so the part for MariaDB is a
                    // comment that only MariaDB executes.
                    _ => {
                        "/*M!100300 SET STATEMENT innodb_lock_wait_timeout = 0, sql_mode = '' FOR */ "
                    }
                },
                ..PerDialect::same("")
            },
            // Until the transaction of this statement has ended, other transactions cannot change the rows
            // that it reads. The statements for MySQL have their own clauses for that.
            "share" => PerDialect {
                postgres: " FOR SHARE",
                ..PerDialect::same("")
            },
            // The role's default may be another text format for `bytea`.
            "hex" => PerDialect {
                postgres: ", set_config('bytea_output', 'hex', true)",
                ..PerDialect::same("")
            },
            "int" => PerDialect {
                mysql: "SIGNED",
                ..PerDialect::same("BIGINT")
            },
            "notify" => PerDialect {
                postgres: ", pg_notify('{p}invalidation', '')::text",
                ..PerDialect::same("")
            },
            // The word is reserved in MariaDB's Oracle mode, so it is quoted.
            "body" => PerDialect {
                mysql: "`body`",
                ..PerDialect::same("body")
            },
            // The names from `$1` up to `$2`, which is excluded: those that begin with `$1`.
            "variants" => PerDialect::same("name >= $1 AND name < $2"),
            word => tables::keyword(word).unwrap_or_else(|| panic!("{word:?} is no word of SQL")),
        };
        sql.of(self)
    }
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn protocol_document_has_the_statements_that_run() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (dialect, protocol) in [
            (
                Dialect::Sqlite,
                include_str!("../../../../../docs/protocol/sqlite.sql"),
            ),
            (
                Dialect::Postgres,
                include_str!("../../../../../docs/protocol/postgres.sql"),
            ),
            (
                Dialect::MySql,
                include_str!("../../../../../docs/protocol/mysql.sql"),
            ),
        ] {
            let protocol = words(protocol);
            let statements = [
                &locks::TRY,
                &locks::EXTEND,
                &locks::RELEASE,
                &locks::BREAK,
                &locks::INSPECT,
                &PerDialect::same(invalidations::WRITE),
                &entries::PUBLISH,
                &invalidations::INVALIDATE,
                &requests::BEGIN,
                &requests::READ,
                &requests::TAKE,
                &requests::FINISH,
                &requests::FORGET,
                &requests::PRUNE,
            ];
            for statement in statements {
                let statement = expand_lists(statement.of(dialect), 1..=1);
                let statement = words(&dialect.render(&statement, "perennial_"));
                assert!(
                    protocol.contains(&statement),
                    "{dialect:?}: docs/protocol lacks: {statement}"
                );
            }
        }
    }

    #[test]
    fn protocol_document_has_each_column() {
        let protocol = include_str!("../../../../../docs/protocol.md");
        for (sql, table) in [
            (&tables::LOCK, "lock"),
            (&tables::OUTBOX, "outbox"),
            (&tables::ENTRY, "entry"),
            (&tables::INVALIDATION, "invalidation"),
            (&tables::REQUEST, "request"),
            (&tables::PROCESS, "process"),
        ] {
            let (_, rows) = protocol
                .split_once(&format!("\n`perennial_{table}`: "))
                .expect("the table is described");
            let rows = rows.split("\n\n").nth(1).expect("its columns follow");
            for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql] {
                let text = dialect.render(sql.of(dialect), "");
                let lines = text.lines().skip(1).map(str::trim);
                let others = [")", "PRIMARY KEY", "KEY", "CHECK"];
                let is_column = |line: &&str| !others.iter().any(|other| line.starts_with(other));
                for column in lines.filter(is_column) {
                    let column = column.split(' ').next().expect("a name").trim_matches('`');
                    let documented = rows.lines().any(|row| {
                        let names = row.split('|').nth(1).unwrap_or_default();
                        names.contains(&format!("`{column}`"))
                    });
                    assert!(documented, "{table}: {column}");
                }
            }
        }
    }
}
