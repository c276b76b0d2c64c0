//! Triggers on PostgreSQL. There is one trigger, with a function, for each kind of change (INSERT, UPDATE,
//! DELETE). It runs once for each statement and reads the changed rows from transition tables; where that is
//! not possible, it runs once for each row.
//!
//! The functions run with the rights of the role that creates them (`SECURITY DEFINER`) and with a fixed
//! `search_path`. So a role that writes the application's tables does not need the right to write Perennial's,
//! and cannot substitute tables of its own for them.

use super::{Change, Plan};

pub(super) fn create(plan: &Plan<'_>, change: Change) -> [String; 2] {
    [function(plan, change), trigger(plan, change)]
}

pub(super) fn drop(plan: &Plan<'_>) -> Vec<String> {
    let drops = Change::ALL.into_iter().flat_map(|change| {
        let name = plan.name(change);
        let table = plan.table();
        let schema = plan.quoted(&plan.trigger.outbox_schema);
        [
            format!("DROP TRIGGER IF EXISTS {name} ON {table}"),
            format!("DROP FUNCTION IF EXISTS {schema}.{name}()"),
        ]
    });
    drops.collect()
}

fn function(plan: &Plan<'_>, change: Change) -> String {
    format!(
        "CREATE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $perennial${body}$perennial$",
        schema = plan.quoted(&plan.trigger.outbox_schema),
        name = plan.name(change),
        body = body(plan, change),
    )
}

/// Returns the text of the function.
pub(super) fn body(plan: &Plan<'_>, change: Change) -> String {
    let writes = match change {
        Change::Truncate => truncated(plan),
        _ if plan.trigger.by_row => row(plan, change),
        _ => statement(plan, change),
    };
    format!(
        "
BEGIN
{writes}
    RETURN NULL;
END
"
    )
}

fn trigger(plan: &Plan<'_>, change: Change) -> String {
    let for_each = match change {
        Change::Truncate => "FOR EACH STATEMENT",
        _ if plan.trigger.by_row => "FOR EACH ROW",
        Change::Insert => "REFERENCING NEW TABLE AS perennial_new FOR EACH STATEMENT",
        Change::Update => {
            "REFERENCING OLD TABLE AS perennial_old NEW TABLE AS perennial_new FOR EACH STATEMENT"
        }
        Change::Delete => "REFERENCING OLD TABLE AS perennial_old FOR EACH STATEMENT",
    };
    format!(
        "CREATE TRIGGER {name} AFTER {event} ON {table} {for_each} EXECUTE FUNCTION {schema}.{name}()",
        name = plan.name(change),
        event = change.word().to_uppercase(),
        table = plan.table(),
        schema = plan.quoted(&plan.trigger.outbox_schema),
    )
}

/// The statement that writes what a query of names returns. The names are compared by their bytes.
fn write(plan: &Plan<'_>, names: &str) -> String {
    format!(
        "    INSERT INTO {outbox} (id, name) SELECT replace(gen_random_uuid()::text, '-', ''), n.name FROM (
        SELECT DISTINCT u.name COLLATE \"C\" AS name FROM ({names}) u (name) WHERE u.name IS NOT NULL
    ) n;",
        outbox = plan.outbox(),
    )
}

/// Returns the statement for TRUNCATE. It invalidates every tag that the templates can make, and the tags of
/// lists.
fn truncated(plan: &Plan<'_>) -> String {
    let coarse = plan
        .tags
        .iter()
        .map(|template| super::text_literal(&template.coarse()));
    let names: Vec<_> = coarse.chain(plan.list_names()).collect();
    write(
        plan,
        &format!("VALUES ({}::text)", names.join("::text), (")),
    )
}

fn row(plan: &Plan<'_>, change: Change) -> String {
    let names = plan.names_after(change);
    let write = write(
        plan,
        &format!("VALUES ({}::text)", names.join("::text), (")),
    );
    match change {
        Change::Update => format!(
            "    IF {} IS NOT DISTINCT FROM {} THEN
        RETURN NULL;
    END IF;
{write}",
            compared(plan, "OLD"),
            compared(plan, "NEW"),
        ),
        _ => write,
    }
}

/// Returns the query for the names that have to be invalidated after a statement. PostgreSQL gives the rows
/// before and after the statement as two tables; the query takes the rows that are in only one of them. If
/// a template makes too many names, the query returns the fixed beginning of the template instead.
fn statement(plan: &Plan<'_>, change: Change) -> String {
    let mut columns: Vec<_> = plan
        .tags
        .iter()
        .flat_map(|template| template.columns())
        .collect();
    columns.sort_unstable();
    columns.dedup();
    let columns = columns
        .iter()
        .map(|column| format!("r.{}", plan.quoted(column)));
    let columns: Vec<_> = columns
        .chain([format!("{} AS perennial_compared", identity(plan, "r"))])
        .collect();
    let of = |table: &str| format!("SELECT {} FROM {table} r", columns.join(", "));
    let changed = match change {
        Change::Insert => of("perennial_new"),
        Change::Delete => of("perennial_old"),
        Change::Update | Change::Truncate => {
            let only_in = |one: &str, other: &str| {
                format!(
                    "SELECT a.* FROM ({}) a WHERE NOT EXISTS (SELECT 1 FROM ({}) b WHERE b.perennial_compared = a.perennial_compared)",
                    of(one),
                    of(other),
                )
            };
            [
                only_in("perennial_old", "perennial_new"),
                only_in("perennial_new", "perennial_old"),
            ]
            .join("\n            UNION ALL ")
        }
    };
    let max = plan.trigger.max_names;
    let of_template = plan.tags.iter().map(|template| {
        let name = plan.name_of(template, "d");
        let coarse = super::text_literal(&template.coarse());
        // Reads more names than are allowed, to see whether there are too many.
        format!(
            "SELECT CASE WHEN count(*) OVER () > {max} THEN {coarse} ELSE t.name END AS name FROM (
                SELECT DISTINCT {name} COLLATE \"C\" AS name FROM d LIMIT {limit}
            ) t WHERE t.name IS NOT NULL",
            limit = u64::from(max) + 2,
        )
    });
    let of_lists = plan
        .list_names()
        .map(|name| format!("SELECT {name} AS name WHERE EXISTS (SELECT 1 FROM d)"));
    let names: Vec<_> = of_template.chain(of_lists).collect();
    write(
        plan,
        &format!(
            "WITH d AS MATERIALIZED (
            {changed}
        ) {}",
            names.join("\n        UNION ALL ")
        ),
    )
}

/// Returns the expression for those columns of a row that are compared, converted to one string: every type has
/// a textual form, and some types have no equality operator.
fn compared(plan: &Plan<'_>, row: &str) -> String {
    if plan.watched.is_empty() {
        return format!("{row}::text COLLATE \"C\"");
    }
    let columns = plan.compared();
    let columns: Vec<_> = columns
        .iter()
        .map(|column| format!("{row}.{}::text", plan.quoted(column)))
        .collect();
    format!("ROW({})::text COLLATE \"C\"", columns.join(", "))
}

/// Returns the expression that is compared to find out whether a statement has changed a row. It includes the
/// row's key, so that two rows which exchange their values count as changed. If the key is not known, the
/// whole row is compared.
fn identity(plan: &Plan<'_>, row: &str) -> String {
    if plan.watched.is_empty() || plan.key.is_empty() {
        return format!("{row}::text COLLATE \"C\"");
    }
    let mut columns = plan.key.clone();
    columns.extend(plan.compared());
    let columns: Vec<_> = columns
        .iter()
        .map(|column| format!("{row}.{}::text", plan.quoted(column)))
        .collect();
    format!("ROW({})::text COLLATE \"C\"", columns.join(", "))
}
