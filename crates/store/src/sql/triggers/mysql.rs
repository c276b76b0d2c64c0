//! Triggers on MySQL and MariaDB. There is one trigger for each kind of change (INSERT, UPDATE, DELETE), and it
//! runs for each row. Each is a single statement, so that every tool can run it without a `DELIMITER`.

use super::{Change, ColumnType, Plan};

pub(super) fn trigger(plan: &Plan<'_>, change: Change) -> String {
    format!(
        "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW
    {body}",
        name = plan.name(change),
        event = change.word().to_uppercase(),
        table = plan.table(),
        body = body(plan, change),
    )
}

/// Returns the statement of the trigger.
pub(super) fn body(plan: &Plan<'_>, change: Change) -> String {
    let and_changed = match change {
        Change::Update => {
            // The bytes are compared, because the column's collation may treat two different strings as equal.
            let differs = |column: &&str| {
                let column = plan.quoted(column);
                format!("NOT (CAST(OLD.{column} AS BINARY) <=> CAST(NEW.{column} AS BINARY))")
            };
            let differ: Vec<_> = plan.compared().iter().map(differs).collect();
            format!(" AND ({})", differ.join(" OR "))
        }
        _ => String::new(),
    };
    // The names are compared as bytes: `UNION` then removes exact duplicates only, and not names that a
    // collation treats as equal.
    let names = plan.names_after(change);
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("SELECT CAST({name} AS BINARY) AS name"))
        .collect();
    format!(
        "INSERT INTO {outbox} (id, name) SELECT REPLACE(UUID(), '-', ''), n.name FROM (
        {names}
    ) n WHERE n.name IS NOT NULL{and_changed}",
        outbox = plan.outbox(),
        names = names.join("\n        UNION "),
    )
}

/// Returns the text of a value.
pub(super) fn text_of(value: &str, column_type: ColumnType) -> String {
    match column_type {
        // Without the zeros of ZEROFILL.
        ColumnType::Integer => format!("CONVERT({value} + 0 USING utf8mb4)"),
        ColumnType::Text => format!("CONVERT({value} USING utf8mb4)"),
        ColumnType::Uuid => {
            let part = |from: u8, length: u8| format!("SUBSTR(HEX({value}), {from}, {length})");
            let parts = [
                part(1, 8),
                part(9, 4),
                part(13, 4),
                part(17, 4),
                part(21, 12),
            ];
            format!(
                // Bytes have no lower case.
                "LOWER(CONVERT(IF(LENGTH({value}) = 16, CONCAT_WS('-', {}), {value}) USING utf8mb4))",
                parts.join(", ")
            )
        }
    }
}

/// Returns the condition under which a value has the text that the application reads.
pub(super) fn has_text(value: &str, column_type: ColumnType) -> Option<String> {
    match column_type {
        ColumnType::Integer | ColumnType::Text => None,
        ColumnType::Uuid => Some(format!("LENGTH({value}) IN (16, 36)")),
    }
}
