//! The statements, each with its text on every database side by side.
//!
//! In the texts `{p}` is the table prefix, `{now}` the database's clock in microseconds since 1970,
//! UTC, and `$n` the n-th argument of those that the statement's comment lists before the arrow.
//! Each is one statement. All but `MARK`, `INSPECT_NOW` and those that make the tables run in
//! autocommit.

pub(super) mod entries;
pub(super) mod invalidations;
pub(super) mod locks;
pub(super) mod requests;
pub(super) mod tables;

/// The choice of the field of [`Sides`] whose text a database runs.
#[derive(Clone, Copy)]
#[allow(
    dead_code,
    reason = "each is that of a database, which may not be built in"
)]
pub(super) enum Side {
    Sqlite,
    Postgres,
    /// CockroachDB and YugabyteDB.
    Relative,
    MySql,
}

/// The text of a statement on each database.
pub(super) struct Sides {
    pub(super) sqlite: &'static str,
    pub(super) postgres: &'static str,
    /// `None`: the text of PostgreSQL.
    pub(super) relative: Option<&'static str>,
    pub(super) mysql: &'static str,
}

impl Sides {
    /// Returns the same text for every database. A statement overrides it for some by
    /// `..Sides::same(text)`.
    const fn same(text: &'static str) -> Self {
        Self {
            sqlite: text,
            postgres: text,
            relative: None,
            mysql: text,
        }
    }

    pub(super) fn of(&self, side: Side) -> &'static str {
        match side {
            Side::Sqlite => self.sqlite,
            Side::Postgres => self.postgres,
            Side::Relative => self.relative.unwrap_or(self.postgres),
            Side::MySql => self.mysql,
        }
    }
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::{super::dialect, *};

    #[test]
    fn protocol_document_has_the_statements_that_run() {
        // A column that one database quotes is the same column.
        let words = |text: &str| {
            let text = text.replace('`', "");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let protocol = words(include_str!("../../../docs/protocol.md"));
        for dialect in [dialect::SQLITE, dialect::POSTGRES, dialect::MYSQL] {
            let statements = [
                &locks::TRY,
                &locks::EXTEND,
                &locks::RELEASE,
                &locks::BREAK,
                &locks::INSPECT,
                &locks::MARK,
                &entries::PUBLISH,
                &invalidations::INVALIDATE,
                &requests::BEGIN,
                &requests::READ,
                &requests::TAKE,
                &requests::FINISH,
                &requests::FORGET,
                &requests::PRUNE,
            ];
            let statements = statements.map(|sides| sides.of(dialect.side));
            for statement in statements.into_iter().chain([dialect.now, dialect.claim]) {
                let statement = statement
                    .replace("{p}", "perennial_")
                    .replace("{collate}", dialect.collate)
                    .replace("{waits}", "");
                let statement = words(&statement);
                assert!(
                    protocol.contains(&statement),
                    "docs/protocol.md lacks: {statement}"
                );
            }
        }
    }

    #[test]
    fn protocol_document_has_each_column() {
        let protocol = include_str!("../../../docs/protocol.md");
        for (sides, table) in [
            (&tables::LOCK, "lock"),
            (&tables::ENTRY, "entry"),
            (&tables::INVALIDATION, "invalidation"),
            (&tables::REQUEST, "request"),
        ] {
            let (_, rows) = protocol
                .split_once(&format!("\n`perennial_{table}`: "))
                .expect("the table is described");
            let rows = rows.split("\n\n").nth(1).expect("its columns follow");
            for side in [Side::Sqlite, Side::Postgres, Side::MySql] {
                let columns = sides.of(side).lines().map(str::trim);
                let columns =
                    columns.filter(|line| line.contains(" NOT NULL") || line.starts_with("owner"));
                for column in columns {
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
