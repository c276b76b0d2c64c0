//! Triggers that write into the outbox: pages become stale in the transaction that changes the rows which they
//! show, whoever makes the change.
//!
//! `template.rs` reads the templates of tags. `sqlite.rs`, `postgres.rs` and `mysql.rs` write the statements;
//! what their expressions have in common is here. This code installs nothing: the statements are for a
//! migration. `check.rs` asks a database whether it has them, and `columns.rs` which columns a table has.
//!
//! Invariants: the tag that a trigger makes for a row is byte for byte the one that `format!` makes from the
//! same template in a handler. If a value does not allow that, all tags with the fixed beginning of the
//! template are invalidated instead, so too much may be invalidated, and never too little. No byte of a
//! template or of a row becomes SQL.

mod check;
mod columns;
mod mysql;
mod postgres;
mod sqlite;
mod template;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use self::template::Template;
use crate::{
    driver::Engine,
    error::Error,
    name::IntoNames,
    name::{PLAIN, hex},
    sql::schema::check_prefix,
};
pub use check::TriggerFault;
pub use columns::{Column, Table};

/// The number of names in one statement above which the fixed beginning of a template is invalidated in their
/// place, on PostgreSQL.
const DEFAULT_MAX_NAMES: u32 = 1000;

/// The type of a column that is used in the template of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// An integer, as `{}` of an `i64` or a `u64` shows it.
    Integer,
    /// A UUID, in lowercase with hyphens, as `{}` of a `uuid::Uuid` shows it. On PostgreSQL and MariaDB it is a
    /// column of their UUID type. On SQLite and MySQL it has 16 bytes, or is a string of that form.
    Uuid,
    /// A string in UTF-8. On PostgreSQL, a string of fixed length (`CHAR(n)`) includes its padding, as a driver
    /// returns it.
    Text,
}

/// A database trigger on a table of the application. When rows of that table change, whoever changes them,
/// pages that depend on them become stale, in the same transaction as the change.
///
/// ```
/// use perennial_store::{ColumnType, Trigger, driver::Engine};
///
/// let trigger = Trigger::on("product")
///     .column("id", ColumnType::Integer)
///     .column("category_id", ColumnType::Integer)
///     .tag("product-{id}")
///     .tag("category-{category_id}")
///     .list_tag("products")
///     .columns(["title", "price", "category_id"]);
/// let migration = trigger.create(Engine::Postgres)?.join(";\n") + ";";
/// # assert!(migration.contains("CREATE TRIGGER"));
/// # Ok::<_, perennial_store::Error>(())
/// ```
///
/// The tags are the same as those that a handler sets with `Tags`, and a page that has one of them becomes
/// stale. An update of a row writes two tags: one made of the row's old values, and one made of its new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    table: String,
    schema: Option<String>,
    types: BTreeMap<String, ColumnType>,
    tags: Vec<String>,
    list_tags: Vec<String>,
    columns: Vec<String>,
    key: Vec<String>,
    table_prefix: String,
    outbox_schema: String,
    max_names: u32,
    by_row: bool,
}

impl Trigger {
    /// Returns a trigger on this table, without tags.
    pub fn on(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            schema: None,
            types: BTreeMap::new(),
            tags: Vec::new(),
            list_tags: Vec::new(),
            columns: Vec::new(),
            key: Vec::new(),
            table_prefix: "perennial_".to_owned(),
            outbox_schema: "public".to_owned(),
            max_names: DEFAULT_MAX_NAMES,
            by_row: false,
        }
    }

    /// Sets the schema of the table, on PostgreSQL. Default: the migration finds the table through its
    /// `search_path`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the type of a column that is used in a template.
    #[must_use]
    pub fn column(mut self, name: impl Into<String>, column_type: ColumnType) -> Self {
        self.types.insert(name.into(), column_type);
        self
    }

    /// Adds the template of a tag: at least three characters of literal text, followed by columns in braces, as
    /// in `product-{id}`. `{{` and `}}` stand for literal braces. A row with NULL in one of the columns has no
    /// such tag.
    #[must_use]
    pub fn tag(mut self, template: impl Into<String>) -> Self {
        self.tags.push(template.into());
        self
    }

    /// Adds a tag for pages that list the rows. It is invalidated when rows are inserted or deleted, and when
    /// one of the [watched columns](Self::columns) changes.
    #[must_use]
    pub fn list_tag(mut self, tag: impl Into<String>) -> Self {
        self.list_tags.push(tag.into());
        self
    }

    /// Sets the columns that are watched: an update counts only if one of these, or of those in the templates,
    /// changes. By default every column counts on PostgreSQL. On SQLite, MySQL and MariaDB there is no default,
    /// so you have to name the columns; `perennial triggers` writes a declaration with all of them.
    ///
    /// To compare old and new values, PostgreSQL also needs the table's [key](Self::key). Without it, an update
    /// of any column counts.
    #[must_use]
    pub fn columns(mut self, columns: impl IntoNames) -> Self {
        self.columns = columns.into_names();
        self
    }

    /// Sets the columns of the table's primary key. PostgreSQL needs them to see which old row an update has
    /// turned into which new row. Default: `id`, if that column has a [type](Self::column). Otherwise, all
    /// values of a row together are the key.
    #[must_use]
    pub fn key(mut self, columns: impl IntoNames) -> Self {
        self.key = columns.into_names();
        self
    }

    /// Sets the first part of the names of Perennial's tables, like `Builder::table_prefix`. Default:
    /// `perennial_`.
    #[must_use]
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets the schema of Perennial's tables, on PostgreSQL. Default: `public`.
    #[must_use]
    pub fn outbox_schema(mut self, schema: impl Into<String>) -> Self {
        self.outbox_schema = schema.into();
        self
    }

    /// Limits how many names one statement may invalidate one by one, on PostgreSQL. If a statement would
    /// invalidate more, all tags with the template's fixed prefix are invalidated instead. Default: 1,000.
    #[must_use]
    pub fn max_names(mut self, names: u32) -> Self {
        self.max_names = names;
        self
    }

    /// Makes the trigger fire for each row, on PostgreSQL. Use it for a partitioned table if its partitions may
    /// be written to directly. Default: once for each statement.
    #[must_use]
    pub fn for_each_row(mut self) -> Self {
        self.by_row = true;
        self
    }

    /// Returns the statements that make the triggers, for a migration. They first remove what an earlier
    /// migration has made. On MySQL and MariaDB each trigger is one statement without `;` inside, so that no
    /// tool needs a `DELIMITER`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid): a name, a template or a type cannot be used; the message says why.
    pub fn create(&self, engine: Engine) -> Result<Vec<String>, Error> {
        let plan = self.plan(engine)?;
        let mut statements = plan.drop_statements();
        for change in plan.changes() {
            match engine {
                Engine::Sqlite => statements.push(sqlite::trigger(&plan, *change)),
                Engine::Postgres => statements.extend(postgres::create(&plan, *change)),
                Engine::MySql => statements.push(mysql::trigger(&plan, *change)),
            }
        }
        Ok(statements)
    }

    /// Returns the statements that remove the triggers.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub fn drop(&self, engine: Engine) -> Result<Vec<String>, Error> {
        Ok(self.plan(engine)?.drop_statements())
    }

    fn plan(&self, engine: Engine) -> Result<Plan<'_>, Error> {
        check_prefix(&self.table_prefix)?;
        let names = [&self.table, &self.outbox_schema];
        let names = names.into_iter().chain(&self.schema);
        let names = names.chain(self.types.keys()).chain(&self.columns);
        for name in names.chain(&self.key) {
            check_identifier(name, engine)?;
        }
        if self.schema.is_some() && engine != Engine::Postgres {
            return Err(Error::invalid(
                "only PostgreSQL has schemas in a trigger: on SQLite and MySQL, a trigger, its table and Perennial's tables are in one database",
            ));
        }
        if self.tags.is_empty() && self.list_tags.is_empty() {
            return Err(Error::invalid(format!(
                "the trigger on {:?} invalidates nothing: give it a tag, as in \"product-{{id}}\", or a list tag",
                self.table
            )));
        }
        let tags = self.tags.iter().map(|tag| Template::parse(tag));
        let tags = tags.collect::<Result<Vec<_>, _>>()?;
        for column in tags.iter().flat_map(Template::columns) {
            if !self.types.contains_key(column) {
                return Err(Error::invalid(format!(
                    "the column {column:?} is used in a template, and its type is not known: `Trigger::column`"
                )));
            }
        }
        for tag in &self.list_tags {
            template::check_text(tag)?;
            if tag.is_empty() || tag.len() > PLAIN {
                return Err(Error::invalid(format!(
                    "the list tag {tag:?} cannot be used: write 1 to {PLAIN} bytes"
                )));
            }
        }
        let watched: Vec<_> = self.columns.iter().map(String::as_str).collect();
        if watched.is_empty() && engine != Engine::Postgres {
            return Err(Error::invalid(
                "on SQLite and MySQL a trigger compares the columns that it is told: name them all by `Trigger::columns`, \
                 or those that the pages show",
            ));
        }
        let key = match &*self.key {
            [] if self.types.contains_key("id") => vec!["id"],
            key => key.iter().map(String::as_str).collect(),
        };
        Ok(Plan {
            trigger: self,
            engine,
            tags,
            watched,
            key,
        })
    }
}

/// A trigger whose names and templates have been checked, for one engine.
struct Plan<'a> {
    trigger: &'a Trigger,
    engine: Engine,
    tags: Vec<Template<'a>>,
    /// The columns that are compared; none means the whole row.
    watched: Vec<&'a str>,
    key: Vec<&'a str>,
}

/// What a trigger fires after.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Insert,
    Update,
    Delete,
    /// PostgreSQL's alone.
    Truncate,
}

impl Change {
    const ALL: [Self; 4] = [Self::Insert, Self::Update, Self::Delete, Self::Truncate];

    fn word(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
        }
    }

    /// The rows that exist in a trigger for this change: the old one, the new one, or both.
    fn rows(self) -> &'static [&'static str] {
        match self {
            Self::Insert => &["NEW"],
            Self::Update => &["OLD", "NEW"],
            Self::Delete => &["OLD"],
            Self::Truncate => &[],
        }
    }
}

impl Plan<'_> {
    /// Returns the changes that this engine has triggers for.
    fn changes(&self) -> &'static [Change] {
        match self.engine {
            Engine::Postgres => &Change::ALL,
            _ => &[Change::Insert, Change::Update, Change::Delete],
        }
    }

    /// Returns the quoted name of the trigger that runs after this kind of change. On PostgreSQL, that is also
    /// the name of the function that it calls.
    fn name(&self, change: Change) -> String {
        self.quoted(&self.plain_name(change))
    }

    fn plain_name(&self, change: Change) -> String {
        let Trigger {
            table_prefix,
            table,
            schema,
            ..
        } = self.trigger;
        // The functions for tables of several schemas share one schema, so their names include the table's
        // schema.
        let schema = schema
            .as_ref()
            .map_or_else(String::new, |schema| format!("{schema}."));
        let name = format!("{table_prefix}{schema}{table}_{}", change.word());
        // PostgreSQL takes 63 bytes, MySQL 64 characters.
        if name.len() <= 63 {
            return name;
        }
        let digest = Sha256::digest(&name);
        format!("{table_prefix}trigger_{}", &hex(&digest)[..12])
    }

    fn quoted(&self, name: &str) -> String {
        quoted(self.engine, name)
    }

    /// Returns the table's name.
    fn table(&self) -> String {
        let table = self.quoted(&self.trigger.table);
        match &self.trigger.schema {
            Some(schema) => format!("{}.{table}", self.quoted(schema)),
            None => table,
        }
    }

    fn outbox(&self) -> String {
        let outbox = format!("{}outbox", self.trigger.table_prefix);
        match self.engine {
            Engine::Postgres => {
                format!("{}.{outbox}", self.quoted(&self.trigger.outbox_schema))
            }
            _ => outbox,
        }
    }

    fn column_type(&self, column: &str) -> ColumnType {
        self.trigger.types[column]
    }

    /// Returns the SQL expression for the name of a tag of a row. It is NULL if the row has no such tag, and
    /// the beginning of the template if the tag cannot be made from the row's values.
    fn name_of(&self, template: &Template<'_>, row: &str) -> String {
        let columns: Vec<_> = template.columns().collect();
        let value = |column: &str| format!("{row}.{}", self.quoted(column));
        let nulls: Vec<_> = columns
            .iter()
            .map(|column| format!("{} IS NULL", value(column)))
            .collect();
        let parts = template.parts.iter().map(|part| match part {
            template::Part::Text(text) => text_literal(text),
            template::Part::Column(column) => {
                self.text_of(&value(column), self.column_type(column))
            }
        });
        let parts: Vec<_> = parts.collect();
        let tag = self.concatenated(&parts);
        let fits = columns
            .iter()
            .filter_map(|column| self.has_text(&value(column), self.column_type(column)));
        let fits: Vec<_> = fits.chain([self.is_plain(&tag)]).collect();
        let exactly = self.concatenated(&[text_literal("tag:"), tag]);
        let coarse = text_literal(&template.coarse());
        format!(
            "CASE WHEN {} THEN NULL WHEN {} THEN {exactly} ELSE {coarse} END",
            nulls.join(" OR "),
            fits.join(" AND ")
        )
    }

    fn concatenated(&self, parts: &[String]) -> String {
        match self.engine {
            Engine::Sqlite => format!("({})", parts.join(" || ")),
            // PostgreSQL's `||` would strip the padding of CHAR.
            _ => format!("concat({})", parts.join(", ")),
        }
    }

    /// Returns the SQL expression that turns a value into the text which a driver would return.
    fn text_of(&self, value: &str, column_type: ColumnType) -> String {
        match self.engine {
            Engine::Sqlite => sqlite::text_of(value, column_type),
            Engine::Postgres => value.to_owned(),
            Engine::MySql => mysql::text_of(value, column_type),
        }
    }

    /// Returns the condition under which a tag can be made from a value that is not NULL. `None` means that
    /// this is always possible.
    fn has_text(&self, value: &str, column_type: ColumnType) -> Option<String> {
        match self.engine {
            Engine::Sqlite => Some(sqlite::has_text(value, column_type)),
            Engine::Postgres => None,
            Engine::MySql => mysql::has_text(value, column_type),
        }
    }

    /// Returns the condition under which a tag is stored as it is, and not as a digest.
    fn is_plain(&self, tag: &str) -> String {
        match self.engine {
            Engine::Sqlite => {
                format!("length(CAST({tag} AS BLOB)) <= {PLAIN} AND instr({tag}, char(0)) = 0")
            }
            // No text of PostgreSQL's has a NUL.
            Engine::Postgres => format!("octet_length({tag}) <= {PLAIN}"),
            Engine::MySql => format!("length({tag}) <= {PLAIN} AND instr({tag}, char(0)) = 0"),
        }
    }

    /// Returns the SQL expressions of all names that have to be invalidated when one row has changed.
    fn names_after(&self, change: Change) -> Vec<String> {
        let mut names = Vec::new();
        for row in change.rows() {
            names.extend(self.tags.iter().map(|template| self.name_of(template, row)));
        }
        names.extend(self.list_names());
        names
    }

    /// Returns the names of the lists.
    fn list_names(&self) -> impl Iterator<Item = String> {
        let tags = self.trigger.list_tags.iter();
        tags.map(|tag| text_literal(&format!("tag:{tag}")))
    }

    /// Returns the columns that are compared: the watched ones, and those in templates.
    fn compared(&self) -> Vec<&str> {
        let mut columns: Vec<&str> = self.watched.clone();
        columns.extend(self.tags.iter().flat_map(Template::columns));
        let mut seen = std::collections::BTreeSet::new();
        columns.retain(|column| seen.insert(*column));
        columns
    }

    fn drop_statements(&self) -> Vec<String> {
        match self.engine {
            Engine::Postgres => postgres::drop(self),
            _ => {
                let drop =
                    |change: &Change| format!("DROP TRIGGER IF EXISTS {}", self.name(*change));
                self.changes().iter().map(drop).collect()
            }
        }
    }
}

/// Returns a name as a quoted identifier.
fn quoted(engine: Engine, name: &str) -> String {
    match engine {
        Engine::MySql => format!("`{}`", name.replace('`', "``")),
        _ => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Returns the SQL literal for a string that [`template::check_text`] has accepted.
fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn check_identifier(name: &str, engine: Engine) -> Result<(), Error> {
    let longest = match engine {
        Engine::Sqlite => 1000,
        Engine::Postgres => 63,
        Engine::MySql => 64,
    };
    let length = match engine {
        Engine::MySql => name.chars().count(),
        _ => name.len(),
    };
    if name.is_empty()
        || name.chars().any(char::is_control)
        || name.contains('$')
        || length > longest
    {
        return Err(Error::invalid(format!(
            "{name:?} cannot be used as the name of a table, a column or a schema in a trigger: it is empty, too long, or has a \
             control character or a `$`"
        )));
    }
    Ok(())
}
