//! Compares the triggers in a database with those that the application has declared, and finds changes to the
//! table that these triggers would not notice.
//!
//! The text of the installed trigger is compared with the text that [`create`](super::Trigger::create) would
//! write. Only white space may differ, because tools change it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    Change, Column, ColumnType, Plan, Table, Trigger, mysql, postgres, sqlite, template::Template,
};
use crate::{
    driver::{Engine, Row},
    error::{Error, ErrorKind},
    sql::{
        Database,
        run::{Arg, Cells, Statement},
    },
    timing::within,
};

/// What [`Trigger::check`] has found. Its text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TriggerFault {
    /// The database has no trigger of this name on the table.
    #[non_exhaustive]
    Missing {
        /// The name of the trigger.
        trigger: String,
    },
    /// The trigger does something other than it should.
    #[non_exhaustive]
    Differs {
        /// The name of the trigger.
        trigger: String,
    },
    /// The trigger exists, but does not fire.
    #[non_exhaustive]
    Disabled {
        /// The name of the trigger.
        trigger: String,
    },
    /// A trigger reads a column that the table does not have, or whose type has changed since the trigger was
    /// made. If a column is missing, every write to the table fails with the database's error.
    #[non_exhaustive]
    Column {
        /// The name of the column.
        column: String,
        /// The type in the database, or `None` if there is no such column.
        type_name: Option<String>,
    },
    /// Some changes to the table fire no trigger.
    #[non_exhaustive]
    Escapes {
        /// The changes, and what to do about them.
        what: String,
    },
}

impl fmt::Display for TriggerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let print = "run what `perennial triggers` prints";
        match self {
            Self::Missing { trigger } => write!(f, "the trigger {trigger:?} is missing: {print}"),
            Self::Differs { trigger } => write!(
                f,
                "the trigger {trigger:?} is not the one that would be printed now: {print}"
            ),
            Self::Disabled { trigger } => write!(
                f,
                "the trigger {trigger:?} is disabled: `ALTER TABLE … ENABLE TRIGGER`"
            ),
            Self::Column {
                column,
                type_name: None,
            } => write!(
                f,
                "the table has no column {column:?}, which the triggers read: change the template or the columns, and {print}"
            ),
            Self::Column {
                column,
                type_name: Some(name),
            } => write!(
                f,
                "the column {column:?} in a template has the type {name}, and not the one that the trigger was told: change the template, and {print}"
            ),
            Self::Escapes { what } => f.write_str(what),
        }
    }
}

/// A trigger in a database.
struct Installed {
    /// The text that is compared.
    text: String,
    is_enabled: bool,
    /// True if the trigger runs for each row. Only PostgreSQL has triggers that run for each statement.
    by_row: bool,
}

impl Trigger {
    /// Compares the triggers of a database with those that [`create`](Self::create) would make there, and
    /// returns what is missing or different, and the known ways in which a change to the table can escape the
    /// triggers.
    ///
    /// ```no_run
    /// # async fn f(trigger: perennial_store::Trigger, database: perennial_store::Database) -> Result<(), perennial_store::Error> {
    /// for fault in trigger.check(&database).await? {
    ///     eprintln!("{fault}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create); or the database fails or does not answer within its statement
    /// timeout.
    pub async fn check(&self, database: &Database) -> Result<Vec<TriggerFault>, Error> {
        let plan = self.plan(database.driver().engine())?;
        let checking = async {
            let mut faults = plan.compare(&installed(&plan, database).await?);
            let schema = self.schema.as_deref();
            faults.extend(plan.columns_of(&Table::read(database, schema, &self.table).await?));
            faults.extend(escapes(&plan, database).await?);
            Ok(faults)
        };
        within(database.limit(), "checking the triggers", checking).await?
    }

    /// Returns the template of each tag, together with the fixed text that every tag made from the template
    /// begins with.
    #[doc(hidden)]
    pub fn beginnings(&self, engine: Engine) -> Result<Vec<(String, String)>, Error> {
        let plan = self.plan(engine)?;
        let templates = self.tags.iter().zip(&plan.tags);
        let beginnings = templates.map(|(tag, it)| (tag.clone(), it.beginning().to_owned()));
        Ok(beginnings.collect())
    }

    /// Returns the tags of lists.
    #[doc(hidden)]
    pub fn list_tags(&self) -> &[String] {
        &self.list_tags
    }
}

impl Plan<'_> {
    fn compare(&self, installed: &BTreeMap<String, Installed>) -> Vec<TriggerFault> {
        let fault = |change: &Change| {
            let trigger = self.plain_name(*change);
            let Some(found) = installed.get(&trigger) else {
                return Some(TriggerFault::Missing { trigger });
            };
            let fires_otherwise = self.engine == Engine::Postgres
                && *change != Change::Truncate
                && found.by_row != self.trigger.by_row;
            if fires_otherwise || words(&found.text) != words(&self.text(*change)) {
                Some(TriggerFault::Differs { trigger })
            } else if !found.is_enabled {
                Some(TriggerFault::Disabled { trigger })
            } else {
                None
            }
        };
        self.changes().iter().filter_map(fault).collect()
    }

    /// Returns the columns that the triggers read, and that are missing from the table, or have another
    /// type there than in the trigger.
    fn columns_of(&self, table: &Table) -> Vec<TriggerFault> {
        let in_templates: BTreeSet<_> = self.tags.iter().flat_map(Template::columns).collect();
        let mut read = self.compared();
        read.extend(&self.key);
        let read: BTreeSet<_> = read.into_iter().collect();
        let fault = |column: &str| {
            let there = table.columns.iter().find(|there| there.name == column);
            let has_its_type = |there: &Column| {
                use ColumnType::{Text, Uuid};
                match (self.column_type(column), there.column_type(self.engine)) {
                    // A UUID as a text.
                    (Uuid, Some(Text)) => true,
                    (Text, Some(Uuid)) => self.engine == Engine::Postgres,
                    (told, has) => has == Some(told),
                }
            };
            match there {
                Some(there) if in_templates.contains(column) && !has_its_type(there) => {
                    Some(Some(there.type_name.clone()))
                }
                Some(_) => None,
                None => Some(None),
            }
        };
        let faults = read.into_iter().filter_map(|column| {
            let type_name = fault(column)?;
            let column = column.to_owned();
            Some(TriggerFault::Column { column, type_name })
        });
        faults.collect()
    }

    /// Returns the text of the trigger or function that ought to be installed, to be compared with the installed one.
    fn text(&self, change: Change) -> String {
        match self.engine {
            Engine::Sqlite => sqlite::trigger(self, change),
            Engine::Postgres => postgres::body(self, change),
            Engine::MySql => mysql::body(self, change),
        }
    }

    /// Returns the table as an argument of a query.
    fn table_argument(&self) -> String {
        match self.engine {
            Engine::Postgres => self.table(),
            _ => self.trigger.table.clone(),
        }
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// The triggers of a table. Each row: the name, the text, 1 if it is enabled, and 1 if it fires for each row.
const SQLITE: &str = "SELECT name, sql, 1, 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = $1 COLLATE NOCASE";
const POSTGRES: &str = "SELECT t.tgname::text, p.prosrc, (CASE WHEN t.tgenabled IN ('O', 'A') THEN 1 ELSE 0 END)::bigint, (t.tgtype & 1)::bigint
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = to_regclass($1) AND NOT t.tgisinternal";
const MYSQL: &str = "SELECT CAST(trigger_name AS CHAR), COALESCE(CAST(action_statement AS CHAR), ''), 1, 1
    FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table = $1";

async fn installed(
    plan: &Plan<'_>,
    database: &Database,
) -> Result<BTreeMap<String, Installed>, Error> {
    let query = match plan.engine {
        Engine::Sqlite => SQLITE,
        Engine::Postgres => POSTGRES,
        Engine::MySql => MYSQL,
    };
    let rows = ask(database, query, &[&plan.table_argument()]).await?;
    // The server names the triggers, but hides their definitions.
    if rows
        .iter()
        .any(|row| row.name(1).is_ok_and(|text| text.is_empty()))
    {
        let table = &plan.trigger.table;
        return Err(Error::with_message(
            ErrorKind::Database,
            format!(
                "the triggers of the table {table} cannot be compared: this role may not read them; GRANT TRIGGER ON {table} TO the role, or check \
                 them by `perennial triggers --check` as another role"
            ),
        ));
    }
    let installed = rows.iter().map(|row| {
        let installed = Installed {
            text: row.name(1)?,
            is_enabled: row.number(2)? != 0,
            by_row: row.number(3)? != 0,
        };
        Ok((row.name(0)?, installed))
    });
    installed.collect::<Result<_, _>>().map_err(failed)
}

/// Foreign keys by which InnoDB changes rows of the table: the table that they follow, and their names.
const CASCADES: &str = "SELECT CAST(referenced_table_name AS CHAR), CAST(constraint_name AS CHAR) FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = $1
        AND (delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL'))";
const STATEMENTS_ARE_REPLICATED: &str =
    "SELECT 1 FROM DUAL WHERE @@GLOBAL.log_bin = 1 AND @@GLOBAL.binlog_format = 'STATEMENT'";
/// Reads what a PostgreSQL table is: its kind, 1 if logical replication writes it, and 1 if other tables
/// inherit from it.
const KIND: &str = "SELECT c.relkind::text, (EXISTS (SELECT 1 FROM pg_subscription_rel s WHERE s.srrelid = c.oid))::int::bigint,
        (EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhparent = c.oid))::int::bigint
    FROM pg_class c WHERE c.oid = to_regclass($1)";

async fn escapes(plan: &Plan<'_>, database: &Database) -> Result<Vec<TriggerFault>, Error> {
    let table = &plan.trigger.table;
    let argument = plan.table_argument();
    let mut escapes = Vec::new();
    match plan.engine {
        Engine::Sqlite => {}
        Engine::MySql => {
            for row in ask(database, CASCADES, &[&argument]).await? {
                let [parent, key] = [row.name(0), row.name(1)];
                let (parent, key) = (parent.map_err(failed)?, key.map_err(failed)?);
                escapes.push(format!(
                    "InnoDB changes rows of {table:?} by the foreign key {key:?}, and fires no trigger for that: give a trigger on \
                     {parent:?} the list tags of {table:?}"
                ));
            }
            // If the server does not have this setting, it does not have this problem either.
            let replicated = ask(database, STATEMENTS_ARE_REPLICATED, &[]).await;
            if replicated.is_ok_and(|rows| !rows.is_empty()) {
                escapes.push(
                    "the server replicates statements, and a replica gives the rows of the outbox other ids: set `binlog_format` to `ROW` \
                     or `MIXED`"
                        .to_owned(),
                );
            }
        }
        Engine::Postgres => {
            for row in ask(database, KIND, &[&argument]).await? {
                let kind = row.name(0).map_err(failed)?;
                let [is_replicated, has_heirs] = [row.number(1), row.number(2)];
                let has_heirs = has_heirs.map_err(failed)? != 0;
                if is_replicated.map_err(failed)? != 0 {
                    escapes.push(format!(
                        "logical replication writes {table:?}, and fires none of the triggers: make them on the table at its origin, where \
                         the outbox is replicated, too"
                    ));
                }
                if kind == "p" && !plan.trigger.by_row {
                    escapes.push(format!(
                        "{table:?} is partitioned, and a write to a partition by its own name fires none of the triggers: \
                         `Trigger::for_each_row`"
                    ));
                }
                if kind != "p" && has_heirs {
                    escapes.push(format!(
                        "other tables inherit from {table:?}, and a write to one of them fires none of the triggers: make triggers on \
                         these, too"
                    ));
                }
            }
        }
    }
    let escapes = escapes.into_iter();
    Ok(escapes.map(|what| TriggerFault::Escapes { what }).collect())
}

pub(super) async fn ask(
    database: &Database,
    query: &str,
    arguments: &[&str],
) -> Result<Vec<Row>, Error> {
    let connections = database.connections();
    let dialect = connections.dialect().await?;
    let statement = Statement::new(dialect, "", query);
    let arguments: Vec<_> = arguments.iter().map(|text| Arg::Text(text)).collect();
    let done = connections.run_new(&statement, &arguments).await;
    done.map(|done| done.rows).map_err(failed)
}

pub(super) fn failed(error: crate::driver::DriverError) -> Error {
    Error::database("the database failed while its triggers were checked", error)
}
