//! `perennial claims` shows which rows of an application's table are claimed by workers.

use perennial_store::sql::{dialect_of, statements::Dialect};
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};

use crate::{
    Failure, Result,
    open::Source,
    print::{self, time},
};

/// Shows how many rows each claim has. The table is the application's own.
pub(crate) async fn show(
    source: &Source,
    table: &str,
    lock: &str,
    expires: Option<&str>,
    as_json: bool,
) -> Result {
    let dialect = dialect_of(source.url()?)?;
    let quoted_table = quoted(table, dialect)?;
    let quoted_lock = quoted(lock, dialect)?;
    // `coalesce` and `0` make the result an integer that is not NULL on all three databases.
    let ends = match expires {
        Some(column) => format!("coalesce(max({}), 0)", quoted(column, dialect)?),
        None => "0".to_owned(),
    };
    let text = match dialect {
        Dialect::MySql | Dialect::MariaDb | Dialect::Galera => "CHAR",
        _ => "TEXT",
    };
    // Ages are by the database's clock.
    let now = dialect.render("{now}", "");
    let sql = format!(
        "SELECT CAST({quoted_lock} AS {text}), count(*), {ends}, {now} FROM {quoted_table} WHERE {quoted_lock} NOT LIKE '-%' \
         GROUP BY {quoted_lock} ORDER BY 2 DESC LIMIT 1000"
    );
    let mut connection = source.connect().await?;
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection);
    let rows = source.within(rows).await?.map_err(|error| {
        Failure::Failed(format!(
            "the claims of {table:?} cannot be read: {error}. Name the application's table as its migration does, and its columns by \
             --lock and --expires"
        ))
    })?;
    let (mut claims, mut now) = (Vec::new(), 0);
    for row in rows {
        let (id, count): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let ends: i64 = row.try_get(2).unwrap_or_default();
        now = row.try_get(3)?;
        claims.push((id, count, ends));
    }
    if as_json {
        let claims = claims.iter().map(|(id, rows, ends)| {
            json!({ "lock_id": id, "rows": rows, "expires_at_us": expires.map(|_| ends) })
        });
        print::json(json!({ "claims": claims.collect::<Vec<_>>() }));
        return Ok(());
    }
    let rows = claims.into_iter().map(|(id, rows, ends)| {
        let ends = match (expires, u64::try_from(ends.saturating_sub(now))) {
            (None, _) => "without expiry".to_owned(),
            (Some(_), Ok(left)) => format!("in {}", time(std::time::Duration::from_micros(left))),
            (Some(_), Err(_)) => "expired".to_owned(),
        };
        [id, rows.to_string(), ends]
    });
    print::table(["lock id", "rows", "ends"], rows);
    Ok(())
}

/// Returns a name in quotes, so that it may be an SQL keyword, or contain capitals on PostgreSQL. The name of a
/// table may begin with its schema.
fn quoted(name: &str, dialect: Dialect) -> Result<String> {
    let is_plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !part.is_empty() && part.chars().all(allowed)
    };
    if !name.split('.').all(is_plain) {
        return Err(Failure::Usage(format!(
            "{name:?} cannot be a table or a column of claims: write letters, digits and `_`"
        )));
    }
    let quote = match dialect {
        Dialect::Postgres => '"',
        // Not in double quotes: SQLite reads an unknown column in double quotes as a string.
        _ => '`',
    };
    let parts: Vec<_> = name
        .split('.')
        .map(|part| format!("{quote}{part}{quote}"))
        .collect();
    Ok(parts.join("."))
}
