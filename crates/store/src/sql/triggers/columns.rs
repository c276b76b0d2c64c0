//! What a database says of a table: its columns, with their types.

use super::{ColumnType, check::ask, check::failed, quoted};
use crate::{driver::Engine, error::Error, sql::Database, sql::run::Cells};

/// A table, for a [`Trigger`](super::Trigger) on it.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Table {
    /// The columns, in the order of the table. The list is empty if there is no such table.
    pub columns: Vec<Column>,
    /// It is no table, but a view.
    pub is_view: bool,
    pub is_partitioned: bool,
}

#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Column {
    pub name: String,
    pub type_name: String,
    pub is_key: bool,
}

impl Column {
    /// Returns the type that a template needs to turn the column into text, or `None` if a template cannot contain
    /// columns of this type.
    pub fn column_type(&self, engine: Engine) -> Option<ColumnType> {
        let name = self.type_name.to_lowercase();
        let is_one_of = |names: &[&str]| names.contains(&&*name);
        match engine {
            Engine::Postgres if is_one_of(&["smallint", "integer", "bigint"]) => {
                Some(ColumnType::Integer)
            }
            Engine::Postgres if is_one_of(&["text", "character varying", "character"]) => {
                Some(ColumnType::Text)
            }
            Engine::MySql if is_one_of(&["tinyint", "smallint", "mediumint", "int", "bigint"]) => {
                Some(ColumnType::Integer)
            }
            Engine::MySql if name == "binary(16)" => Some(ColumnType::Uuid),
            Engine::MySql
                if is_one_of(&[
                    "char",
                    "varchar",
                    "tinytext",
                    "text",
                    "mediumtext",
                    "longtext",
                ]) =>
            {
                Some(ColumnType::Text)
            }
            _ if name == "uuid" => Some(ColumnType::Uuid),
            // By SQLite's rules of affinity.
            Engine::Sqlite if name.contains("int") => Some(ColumnType::Integer),
            Engine::Sqlite
                if ["char", "clob", "text"]
                    .iter()
                    .any(|word| name.contains(word)) =>
            {
                Some(ColumnType::Text)
            }
            Engine::Sqlite if name == "blob" => Some(ColumnType::Uuid),
            _ => None,
        }
    }
}

/// Reads the columns of a table. Each row has the name, the type, 1 if the column is part of the primary key,
/// and the kind of the table.
const POSTGRES: &str =
    "SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), NULL),
        (CASE WHEN a.attnum = ANY (i.indkey::int2[]) THEN 1 ELSE 0 END)::bigint, c.relkind::text
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
const MYSQL: &str = "SELECT CAST(c.column_name AS CHAR), CAST(IF(c.column_type = 'binary(16)', c.column_type, c.data_type) AS CHAR),
        IF(c.column_key = 'PRI', 1, 0), CAST(t.table_type AS CHAR)
    FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = DATABASE() AND c.table_name = $1 ORDER BY c.ordinal_position";
const SQLITE: &str = "SELECT c.name, c.type, min(c.pk, 1), s.type
    FROM sqlite_schema s JOIN pragma_table_xinfo(s.name) c WHERE s.name = $1 AND s.type IN ('table', 'view') ORDER BY c.cid";

impl Table {
    /// Reads the columns of a table. Without a schema, the database searches for the table, as it does for an
    /// unqualified name.
    pub async fn read(
        database: &Database,
        schema: Option<&str>,
        table: &str,
    ) -> Result<Self, Error> {
        let engine = database.driver().engine();
        let (query, name) = match engine {
            Engine::Postgres => {
                let parts = schema.into_iter().chain([table]);
                let parts = parts.map(|name| quoted(engine, name));
                (POSTGRES, parts.collect::<Vec<_>>().join("."))
            }
            Engine::MySql => (MYSQL, table.to_owned()),
            Engine::Sqlite => (SQLITE, table.to_owned()),
        };
        let mut found = Self {
            columns: Vec::new(),
            is_view: false,
            is_partitioned: false,
        };
        for row in ask(database, query, &[&name]).await? {
            let kind = row.name(3).map_err(failed)?;
            found.is_view |= ["v", "m", "VIEW", "view"].contains(&&*kind);
            found.is_partitioned |= kind == "p";
            found.columns.push(Column {
                name: row.name(0).map_err(failed)?,
                type_name: row.name(1).map_err(failed)?,
                is_key: row.number(2).map_err(failed)? != 0,
            });
        }
        Ok(found)
    }

    /// Returns the PostgreSQL schema in which the database finds a table.
    pub async fn schema_of(database: &Database, table: &str) -> Result<Option<String>, Error> {
        const SCHEMA: &str =
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = to_regclass($1)";
        let rows = ask(database, SCHEMA, &[table]).await?;
        let schema = rows.first().map(|row| row.name(0));
        schema.transpose().map_err(failed)
    }
}
