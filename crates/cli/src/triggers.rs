//! `perennial triggers`: prints the triggers by which the database itself invalidates pages when rows of a table of
//! the application change, or checks that they are there. It reads the types of the table's columns, and installs
//! nothing.

use clap::Args;
use perennial::{driver::Engine, entries::EntryFilter, sql::Trigger};
use perennial_store::sql::{
    dialect_of,
    triggers::{Column, Table},
};

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
    /// Compare the triggers in the database with those that would be printed. Also list changes to the table
    /// that the triggers cannot see, and templates whose tags no stored page has.
    #[arg(long)]
    check: bool,
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
        let database = source.database().await?;
        let table = source
            .within(Table::read(&database, schema, name))
            .await??;
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
            match column.column_type(engine) {
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
            trigger = trigger.columns(
                table
                    .columns
                    .iter()
                    .map(|column| &*column.name)
                    .collect::<Vec<_>>(),
            );
        }
        let key = table.columns.iter().filter(|column| column.is_key);
        trigger = trigger.key(key.map(|column| &*column.name).collect::<Vec<_>>());
        if engine == Engine::Postgres {
            let outbox = source.table("outbox");
            let found = source
                .within(Table::schema_of(&database, &outbox))
                .await??;
            trigger = trigger.outbox_schema(found.ok_or_else(|| {
                Failure::Failed(format!(
                    "there is no table {outbox:?}, which the triggers write: a site makes its tables when it starts; `perennial ddl` prints \
                     them"
                ))
            })?);
        }
        if table.is_partitioned {
            trigger = trigger.for_each_row();
        }
        Ok((engine, trigger))
    }

    /// Refuses a template that contains this column, if no tag can be made from values of the column's type.
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

/// Returns the comment at the beginning of a migration. It says what the migration does, and what has to exist
/// before.
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
