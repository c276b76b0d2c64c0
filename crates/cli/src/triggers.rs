//! `perennial triggers`: prints the triggers by which the database itself invalidates pages when rows of a table of
//! the application change, or checks that they are there. It reads the types of the table's columns, and installs
//! nothing.

use clap::Args;
use perennial::{
    driver::Engine,
    entries::EntryFilter,
    sql::{ColumnType, Trigger},
};
use perennial_store::sql::dialect_of;
use sqlx::{AnyConnection, AssertSqlSafe, Row};

use crate::{Failure, Result, open::Source, print};

#[derive(Args)]
pub(crate) struct TriggerOptions {
    /// The application's table; on PostgreSQL also as schema.table.
    #[arg(long)]
    table: String,
    /// The tag of each changed row, with columns in braces, as in product-{id}. Several are allowed.
    #[arg(long = "tag", value_name = "TEMPLATE")]
    tags: Vec<String>,
    /// The tag of a list of the rows. Several are allowed.
    #[arg(long = "list-tag", value_name = "TAG")]
    list_tags: Vec<String>,
    /// The columns that pages show: an update of others writes nothing. Default: all of them.
    #[arg(long, value_delimiter = ',')]
    columns: Vec<String>,
    /// Print the statements that remove the triggers.
    #[arg(long, conflicts_with = "check")]
    drop: bool,
    /// Compare the triggers in the database with those that would be printed. Names the changes of the table
    /// that escape them, and the templates whose tags no stored page has.
    #[arg(long)]
    check: bool,
}

/// What a database says of a column.
struct Column {
    name: String,
    type_name: String,
    is_key: bool,
}

/// What a database says of a table.
struct Table {
    columns: Vec<Column>,
    /// It is no table, but a view.
    is_view: bool,
    is_partitioned: bool,
    /// The schema of Perennial's tables, on PostgreSQL.
    outbox_schema: Option<String>,
}

impl TriggerOptions {
    pub(crate) async fn run(&self, source: &Source) -> Result {
        let (engine, trigger) = self.trigger(source).await?;
        if self.check {
            return self.check(source, engine, &trigger).await;
        }
        let statements = if self.drop {
            trigger.drop(engine)
        } else {
            trigger.create(engine)
        };
        print::line(&head(engine, &self.table, self.drop));
        for statement in statements? {
            print::line(&format!("{statement};"));
        }
        Ok(())
    }

    async fn check(&self, source: &Source, engine: Engine, trigger: &Trigger) -> Result {
        let site = source.site_as_it_is().await?;
        let faults = trigger.check(&site.database()?).await?;
        let mut findings: Vec<_> = faults.iter().map(ToString::to_string).collect();
        for (template, beginning) in trigger.beginnings(engine)? {
            let tagged = EntryFilter::new().tag_prefix(&*beginning).limit(1);
            if site.entries(&tagged).await?.entries.is_empty() {
                findings.push(format!(
                    "no stored page has a tag that begins with {beginning:?}: is the template {template:?} spelled as the tag in the handler?"
                ));
            }
        }
        for tag in trigger.list_tags() {
            let tagged = EntryFilter::new().tag(&**tag).limit(1);
            if site.entries(&tagged).await?.entries.is_empty() {
                findings.push(format!(
                    "no stored page has the list tag {tag:?}: is it spelled as in the handler?"
                ));
            }
        }
        if findings.is_empty() {
            print::line(&format!(
                "the triggers on {} are those that would be printed, and stored pages have their tags",
                print::text(&self.table)
            ));
            return Ok(());
        }
        for finding in findings {
            print::line(&format!("! {}", print::text(&finding)));
        }
        Err(Failure::Findings)
    }

    /// Returns the trigger for the table, with the types of its columns.
    async fn trigger(&self, source: &Source) -> Result<(Engine, Trigger)> {
        let engine = dialect_of(source.url()?)?.engine();
        let (schema, name) = match self.table.split_once('.') {
            Some((schema, name)) if engine == Engine::Postgres => (Some(schema), name),
            _ => (None, &*self.table),
        };
        let mut connection = source.connect().await?;
        let outbox = source.table("outbox");
        let reading = read(&mut connection, engine, schema, name, &outbox);
        let table = source.within(reading).await??;
        if table.columns.is_empty() {
            return Err(Failure::Failed(format!(
                "there is no table {:?} in this database that the role may see",
                self.table
            )));
        }
        if table.is_view {
            return Err(Failure::Failed(format!(
                "{:?} is a view: its rows change with those of its tables, so make triggers on these",
                self.table
            )));
        }
        let mut trigger = Trigger::on(name).table_prefix(source.table(""));
        if let Some(schema) = schema {
            trigger = trigger.schema(schema);
        }
        for column in &table.columns {
            match column_type(engine, &column.type_name) {
                Some(column_type) => trigger = trigger.column(&*column.name, column_type),
                None => self.refuse_in_templates(column)?,
            }
        }
        for tag in &self.tags {
            trigger = trigger.tag(&**tag);
        }
        for tag in &self.list_tags {
            trigger = trigger.list_tag(&**tag);
        }
        for column in &self.columns {
            if !table.columns.iter().any(|there| there.name == *column) {
                return Err(Failure::Failed(format!(
                    "the table {:?} has no column {column:?}",
                    self.table
                )));
            }
        }
        if !self.columns.is_empty() {
            trigger = trigger.columns(&self.columns);
        } else if engine != Engine::Postgres {
            trigger = trigger.columns(table.columns.iter().map(|column| &*column.name));
        }
        let key = table.columns.iter().filter(|column| column.is_key);
        trigger = trigger.key(key.map(|column| &*column.name));
        if let Some(schema) = table.outbox_schema {
            trigger = trigger.outbox_schema(schema);
        } else if engine == Engine::Postgres {
            return Err(Failure::Failed(format!(
                "there is no table {outbox:?}, which the triggers write: a site makes its tables when it starts; `perennial ddl` prints them"
            )));
        }
        if table.is_partitioned {
            trigger = trigger.for_each_row();
        }
        Ok((engine, trigger))
    }

    /// Refuses a column of another type in a template.
    fn refuse_in_templates(&self, column: &Column) -> Result {
        let place = format!("{{{}}}", column.name);
        match self.tags.iter().find(|tag| tag.contains(&place)) {
            Some(tag) => Err(Failure::Failed(format!(
                "the column {:?} in the template {tag:?} has the type {}: in a template stand integers, UUIDs and texts, as a value of \
                 another type has more than one text",
                column.name, column.type_name
            ))),
            None => Ok(()),
        }
    }
}

/// Returns the type of a column in a template, or `None` if it has no place there.
fn column_type(engine: Engine, type_name: &str) -> Option<ColumnType> {
    let name = type_name.to_lowercase();
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

/// The columns of a table. Each row: its name, type, 1 in the primary key, and what kind of table it is.
const POSTGRES: &str =
    "SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), NULL),
        CASE WHEN a.attnum = ANY (i.indkey::int2[]) THEN 1 ELSE 0 END, c.relkind::text
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
const MYSQL: &str = "SELECT CAST(c.column_name AS CHAR), CAST(IF(c.column_type = 'binary(16)', c.column_type, c.data_type) AS CHAR),
        IF(c.column_key = 'PRI', 1, 0), CAST(t.table_type AS CHAR)
    FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = DATABASE() AND c.table_name = ? ORDER BY c.ordinal_position";
const SQLITE: &str = "SELECT c.name, c.type, min(c.pk, 1), s.type
    FROM sqlite_schema s JOIN pragma_table_xinfo(s.name) c WHERE s.name = ? AND s.type IN ('table', 'view') ORDER BY c.cid";

async fn read(
    connection: &mut AnyConnection,
    engine: Engine,
    schema: Option<&str>,
    table: &str,
    outbox: &str,
) -> Result<Table, sqlx::Error> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let (query, name) = match engine {
        Engine::Postgres => {
            let parts = schema.into_iter().chain([table]).map(quoted);
            (POSTGRES, parts.collect::<Vec<_>>().join("."))
        }
        Engine::MySql => (MYSQL, table.to_owned()),
        _ => (SQLITE, table.to_owned()),
    };
    let rows = sqlx::query(query).bind(name).fetch_all(&mut *connection);
    let mut found = Table {
        columns: Vec::new(),
        is_view: false,
        is_partitioned: false,
        outbox_schema: None,
    };
    for row in rows.await? {
        let is_key = match row.try_get::<i64, _>(2) {
            Ok(is_key) => is_key,
            Err(_) => row.try_get::<i32, _>(2)?.into(),
        };
        let kind: String = row.try_get(3)?;
        found.is_view |= ["v", "m", "VIEW", "view"].contains(&&*kind);
        found.is_partitioned |= kind == "p";
        found.columns.push(Column {
            name: row.try_get(0)?,
            type_name: row.try_get(1)?,
            is_key: is_key != 0,
        });
    }
    if engine == Engine::Postgres {
        let schema = format!(
            "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{outbox}')"
        );
        let schema = sqlx::query_scalar(AssertSqlSafe(schema));
        found.outbox_schema = schema.fetch_optional(connection).await?;
    }
    Ok(found)
}

/// The beginning of the migration, which says what it needs.
fn head(engine: Engine, table: &str, is_drop: bool) -> String {
    let table = table.replace(char::is_control, " ");
    if is_drop {
        return format!("-- Removes the triggers by which a change of {table} made pages stale.");
    }
    let rights = match engine {
        Engine::Postgres => {
            "-- The role of this migration needs TRIGGER on the table, CREATE on the schema of Perennial's tables, and INSERT on\n\
             -- the outbox, with whose rights the functions run."
        }
        Engine::MySql => {
            "-- The role of this migration needs TRIGGER on the table; with a binary log also SUPER, or the server's\n\
             -- log_bin_trust_function_creators (error 1419). The triggers write the outbox with that role's rights. A change that a\n\
             -- foreign key makes (ON DELETE CASCADE) fires no trigger."
        }
        _ => {
            "-- A row that INSERT OR REPLACE removes fires the trigger only with PRAGMA recursive_triggers. A migration that\n\
             -- rebuilds the table drops them: run this after it."
        }
    };
    format!("-- A change of {table} makes pages stale, in the transaction of the change.\n{rights}")
}
