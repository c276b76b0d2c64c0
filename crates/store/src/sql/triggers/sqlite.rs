//! Triggers on SQLite. There is one trigger for each kind of change (INSERT, UPDATE, DELETE), and it runs for
//! each row.

use super::{Change, ColumnType, Plan};

pub(super) fn trigger(plan: &Plan<'_>, change: Change) -> String {
    let when = match change {
        Change::Update => {
            // The bytes are compared, because the column's collation may treat two different strings as equal.
            let differs = |column: &&str| {
                let column = plan.quoted(column);
                format!("OLD.{column} IS NOT NEW.{column} COLLATE BINARY")
            };
            let differ: Vec<_> = plan.compared().iter().map(differs).collect();
            format!("\nWHEN {}", differ.join(" OR "))
        }
        _ => String::new(),
    };
    // `UNION` removes duplicate names.
    let names = plan.names_after(change);
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("SELECT {name} AS name"))
        .collect();
    format!(
        "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW{when}
BEGIN
    INSERT INTO {outbox} (id, name) SELECT lower(hex(randomblob(16))), n.name FROM (
        {names}
    ) n WHERE n.name IS NOT NULL;
END",
        name = plan.name(change),
        event = change.word().to_uppercase(),
        table = plan.table(),
        outbox = plan.outbox(),
        names = names.join("\n        UNION "),
    )
}

/// Returns the text of a value. SQLite stores a value of any type in a column of any type; see [`has_text`].
pub(super) fn text_of(value: &str, column_type: ColumnType) -> String {
    match column_type {
        ColumnType::Integer | ColumnType::Text => format!("CAST({value} AS TEXT)"),
        ColumnType::Uuid => {
            let part = |from: u8, length: u8| format!("substr(hex({value}), {from}, {length})");
            let parts = [
                part(1, 8),
                part(9, 4),
                part(13, 4),
                part(17, 4),
                part(21, 12),
            ];
            format!(
                "lower(CASE typeof({value}) WHEN 'blob' THEN {} ELSE {value} END)",
                parts.join(" || '-' || ")
            )
        }
    }
}

/// Returns the condition under which a value is of the type that the application reads.
pub(super) fn has_text(value: &str, column_type: ColumnType) -> String {
    match column_type {
        ColumnType::Integer => format!("typeof({value}) = 'integer'"),
        ColumnType::Text => format!("typeof({value}) = 'text'"),
        ColumnType::Uuid => format!(
            "(typeof({value}) = 'blob' AND length({value}) = 16 OR typeof({value}) = 'text' AND length({value}) = 36)"
        ),
    }
}
