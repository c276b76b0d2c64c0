//! Makes the tables, and upgrades in place those of an older release.

use sqlx::{ColumnIndex, Decode, Encode, Executor, IntoArguments, Pool, Row, Type};

use crate::{
    error::Error,
    store::sql::{Driver, fill},
};

const PREPARE: &str = "cannot make or upgrade Perennial's tables";

/// Refuses what cannot be the beginning of a table's name on every database.
pub(super) fn check_prefix(prefix: &str) -> Result<(), Error> {
    let fits = prefix.len() <= 40
        && prefix.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && prefix
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if fits {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "the table prefix {prefix:?} cannot be used: write a lowercase letter or `_`, then up to 39 lowercase letters, digits and `_`"
        )))
    }
}

/// Sees to it that the tables are those of this release. Several processes may do so at once.
pub(super) async fn prepare<DB>(pool: &Pool<DB>, prefix: &str) -> Result<(), Error>
where
    DB: Driver,
    for<'c> &'c Pool<DB>: Executor<'c, Database = DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB> + Decode<'q, DB>,
    usize: ColumnIndex<DB::Row>,
{
    let sql = |template| fill(&DB::DIALECT, prefix, template);
    let failed = |source: sqlx::Error| Error::database(PREPARE, source);
    let steps = DB::DIALECT.schema;
    let version = "SELECT version FROM {p}schema";

    // The usual case changes nothing, so that it needs no right to and waits for no other writer. Any error here (there is no
    // such table, above all) comes again below if it matters.
    if let Ok(row) = sqlx::query(sql(version)).fetch_one(pool).await
        && pending(steps, row.try_get(0).map_err(failed)?)?.is_empty()
    {
        return Ok(());
    }

    let mut transaction = pool
        .begin_with(DB::DIALECT.begin_schema)
        .await
        .map_err(failed)?;
    let table = "CREATE TABLE IF NOT EXISTS {p}schema (version BIGINT NOT NULL)";
    let table = sqlx::query(sql(table));
    transaction.execute(table).await.map_err(failed)?;
    let found = sqlx::query(sql(version));
    let found = transaction.fetch_optional(found).await.map_err(failed)?;
    let found: Option<i64> = match found {
        Some(row) => row.try_get(0).map_err(failed)?,
        None => None,
    };
    for step in pending(steps, found.unwrap_or(0))? {
        for statement in *step {
            let statement = sqlx::query(sql(statement));
            transaction.execute(statement).await.map_err(failed)?;
        }
    }
    let note = match found {
        None => "INSERT INTO {p}schema (version) VALUES ($1)",
        Some(_) => "UPDATE {p}schema SET version = $1",
    };
    let note = sqlx::query(sql(note)).bind(version_of(steps));
    transaction.execute(note).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

/// The version to which these steps lead.
fn version_of<T>(steps: &[T]) -> i64 {
    i64::try_from(steps.len()).unwrap_or(i64::MAX)
}

/// The steps that lead from the tables' version to that of this release.
fn pending<T>(steps: &[T], version: i64) -> Result<&[T], Error> {
    usize::try_from(version)
        .ok()
        .and_then(|done| steps.get(done..))
        .ok_or_else(|| {
            Error::schema(format!(
                "the database's Perennial tables have version {version}, and this release knows versions up to {}: \
                 use the release that made them or a newer one, or another table prefix",
                steps.len()
            ))
        })
}
