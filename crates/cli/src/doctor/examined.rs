//! The database under examination, and the checks of Perennial's own rows.

use std::time::{Duration, Instant, SystemTime};

use perennial::Perennial;
use perennial_admin::{self as report, Report};
use perennial_store::sql::{dialect_of, statements::Dialect};
use sqlx::{AnyConnection, AssertSqlSafe, query_as, query_scalar};

use super::Verdict;
use crate::{Failure, Result, open::Source, print::time};

/// The lock with which the check tries whether the role has all rights.
const TRIAL: &str = "perennial-doctor";

/// The tables, each with a column that is never NULL.
const TABLES: [(&str, &str); 7] = [
    ("schema", "id"),
    ("lock", "name"),
    ("entry", "name"),
    ("invalidation", "name"),
    ("outbox", "id"),
    ("request", "name"),
    ("process", "name"),
];

/// A lease that is longer than this keeps its lock taken for a long time after a crash.
const LONG_LEASE: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// The database under examination.
pub(super) struct ExaminedDatabase<'a> {
    pub(super) source: &'a Source,
    pub(super) kind: Kind,
    connection: AnyConnection,
    pub(super) connected_in: Duration,
    /// `None` means that the database has no tables of a site.
    site: Option<Perennial>,
}

pub(super) type Checked = Result<Option<(Verdict, String)>>;

pub(super) fn found(verdict: Verdict, text: impl Into<String>) -> Checked {
    Ok(Some((verdict, text.into())))
}

impl<'a> ExaminedDatabase<'a> {
    pub(super) async fn open(source: &'a Source) -> Result<Self> {
        let since = Instant::now();
        let mut connection = source.connect().await?;
        let connected_in = since.elapsed();
        let kind = match dialect_of(source.url()?)? {
            Dialect::Sqlite => Kind::Sqlite,
            Dialect::Postgres => Kind::Postgres,
            Dialect::MySql | Dialect::MariaDb | Dialect::Galera => Kind::MySql,
        };
        // The doctor creates nothing: if the tables are missing, there is no site to check.
        let site = match source.version_of(&mut connection).await? {
            Ok(_) => Some(source.site_as_it_is().await?),
            Err(_) => None,
        };
        Ok(Self {
            source,
            kind,
            connection,
            connected_in,
            site,
        })
    }

    /// Returns the site. If there is none, the check is skipped.
    pub(super) fn site(&self) -> Result<&Perennial> {
        let none = || Failure::Failed("there are no tables".to_owned());
        self.site.as_ref().ok_or_else(none)
    }

    pub(super) async fn text(&mut self, sql: &str) -> Result<String> {
        let text = query_scalar::<_, String>(AssertSqlSafe(sql.to_owned()));
        Ok(text.fetch_one(&mut self.connection).await?)
    }

    pub(super) async fn texts(&mut self, sql: &str) -> Result<Vec<String>> {
        let texts = query_scalar::<_, String>(AssertSqlSafe(sql.to_owned()));
        Ok(texts.fetch_all(&mut self.connection).await?)
    }

    /// Returns the second column of the first row, where `SHOW` has the value, or an empty string if there is
    /// no row.
    pub(super) async fn shown(&mut self, sql: &str) -> Result<String> {
        let shown = query_as::<_, (String, String)>(AssertSqlSafe(sql.to_owned()));
        let shown = shown.fetch_optional(&mut self.connection).await?;
        Ok(shown.map(|(_, value)| value).unwrap_or_default())
    }

    pub(super) async fn number(&mut self, sql: &str) -> Result<i64> {
        let number = query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned()));
        Ok(number.fetch_one(&mut self.connection).await?)
    }

    pub(super) async fn check(&mut self, id: &str) -> Checked {
        match id {
            "connection" => self.connection().await,
            "encryption" => self.encryption().await,
            "version" => self.version().await,
            "tables" => self.tables().await,
            "rights" => self.rights().await,
            "clock" => self.clock().await,
            "role" => self.role().await,
            "durability" => self.durability().await,
            "journal" => self.journal().await,
            "pooler" => self.pooler().await,
            "isolation" => self.isolation().await,
            "packet" => self.packet().await,
            "encoding" => self.encoding().await,
            "size" => self.size().await,
            "locks" => self.locks().await,
            "triggers" => self.triggers().await,
            _ => self.entries().await,
        }
    }

    async fn tables(&mut self) -> Checked {
        match self.source.version_of(&mut self.connection).await? {
            Ok(version) => found(Verdict::Ok, format!("the tables have version {version}")),
            Err(error) => found(
                Verdict::Failure,
                format!(
                    "there are no tables with the prefix of {:?} ({error}): start the site, or run what `perennial ddl` prints",
                    self.source.table("")
                ),
            ),
        }
    }

    async fn rights(&mut self) -> Checked {
        self.site()?;
        let (mut lacking, mut failed) = (Vec::new(), Vec::new());
        for (table, column) in TABLES {
            let name = self.source.table(table);
            // A computed column takes no value.
            let (into, from) = match table {
                "invalidation" => (" (name, epoch)", "name, epoch"),
                _ => ("", "*"),
            };
            // No row satisfies the condition, and the server checks the rights nevertheless.
            for (right, statement) in [
                ("SELECT", format!("SELECT count(*) FROM {name} WHERE 1 = 0")),
                (
                    "INSERT",
                    format!("INSERT INTO {name}{into} SELECT {from} FROM {name} WHERE 1 = 0"),
                ),
                (
                    "UPDATE",
                    format!(
                        "UPDATE {name} SET {column} = {column} WHERE {column} IS NULL AND 1 = 0"
                    ),
                ),
                (
                    "DELETE",
                    format!("DELETE FROM {name} WHERE {column} IS NULL AND 1 = 0"),
                ),
            ] {
                // No statement removes the version of the tables.
                if (table, right) == ("schema", "DELETE") {
                    continue;
                }
                let tried = sqlx::query(AssertSqlSafe(statement));
                let Err(error) = tried.execute(&mut self.connection).await else {
                    continue;
                };
                let code = error.as_database_error().and_then(|error| error.code());
                // insufficient_privilege; the SQLSTATE of ER_DBACCESS_DENIED_ERROR and
                // ER_TABLEACCESS_DENIED_ERROR
                match code.as_deref() {
                    Some("42501" | "42000") => lacking.push(format!("{right} on {name} ({error})")),
                    _ => failed.push(format!("{right} on {name}: {error}")),
                }
            }
        }
        if !failed.is_empty() {
            let failed = failed.join("; ");
            return found(
                Verdict::Failure,
                format!(
                    "the rights cannot be tried, as statements fail for another reason: {failed}"
                ),
            );
        }
        if !lacking.is_empty() {
            let (lacking, schema) = (lacking.join("; "), self.source.table("schema"));
            return found(
                Verdict::Failure,
                format!(
                    "this role may not {lacking}: it needs SELECT, INSERT and UPDATE on each table, and DELETE on each but {schema}"
                ),
            );
        }
        match self.site()?.locks().try_lock(TRIAL).await {
            Ok(Some(lease)) => {
                lease.release().await?;
                found(
                    Verdict::Ok,
                    "the role has its rights on each table, and a lock was taken and released",
                )
            }
            Ok(None) => found(Verdict::Ok, "another doctor holds the lock of this check"),
            Err(error) => found(
                Verdict::Failure,
                format!("a lock cannot be taken ({error:#})"),
            ),
        }
    }

    /// A fence follows the database's clock.
    async fn clock(&mut self) -> Checked {
        let site = self.site()?;
        let Some(lease) = site.locks().try_lock(TRIAL).await? else {
            return found(
                Verdict::NotChecked,
                "another doctor holds the lock of this check",
            );
        };
        let fence = Duration::from_micros(u64::try_from(lease.fence().0).unwrap_or(0));
        let now = SystemTime::now();
        lease.release().await?;
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let apart = now.abs_diff(fence);
        match apart < Duration::from_secs(5) {
            true => found(
                Verdict::Ok,
                format!("the clocks are {} apart at most", time(apart)),
            ),
            false if fence > now => found(
                Verdict::Warning,
                format!(
                    "the database's clock, or the fences that an earlier clock has left, are {} ahead of this machine. Ages follow the database's clock alone; set both by NTP",
                    time(apart)
                ),
            ),
            false => found(
                Verdict::Warning,
                format!(
                    "the database's clock is {} behind this machine: set both by NTP",
                    time(apart)
                ),
            ),
        }
    }

    async fn size(&mut self) -> Checked {
        let sizes = self.site()?.sizes().await?;
        let sizes: Vec<_> = sizes
            .iter()
            .map(|(table, bytes)| format!("{table} {} KiB", bytes >> 10))
            .collect();
        match &sizes[..] {
            [] => Ok(None),
            sizes => found(Verdict::Ok, sizes.join(", ")),
        }
    }

    async fn locks(&mut self) -> Checked {
        let site = self.site()?;
        let locks = site.locks().list().await?;
        let held = locks
            .iter()
            .filter(|lock| lock.holder.is_some() && lock.kind.as_str() != "housekeeping");
        match held.max_by_key(|lock| lock.age) {
            None => found(Verdict::Ok, "no lock is held"),
            Some(lock) => {
                let text = format!(
                    "{:?} has been held longest, for {}",
                    lock.name,
                    time(lock.age)
                );
                // A living holder extends its lease long before the end. So a lease with a long remaining
                // time may belong to a holder that is gone, and would block others for that time.
                let longest = locks.iter().filter(|lock| lock.holder.is_some());
                let longest = longest.max_by_key(|lock| lock.remaining);
                match longest {
                    Some(long) if long.remaining > LONG_LEASE => found(
                        Verdict::Warning,
                        format!(
                            "the lease of {:?} ends in {}: if its holder has died, nobody can take the lock before. `perennial unlock` frees \
                             it; use leases of seconds, which a living holder extends",
                            long.name,
                            time(long.remaining)
                        ),
                    ),
                    _ if lock.age < Duration::from_secs(24 * 3600) => found(Verdict::Ok, text),
                    _ => found(
                        Verdict::Warning,
                        format!("{text}: is its holder at work? `perennial locks` shows it"),
                    ),
                }
            }
        }
    }

    /// The checks of the report that `perennial status` shows.
    async fn entries(&mut self) -> Checked {
        let report = Report::read(self.site()?).await?;
        let checks = report.checks.iter();
        let checks: Vec<_> = checks
            .filter(|check| ["regenerations", "versions"].contains(&check.id))
            .collect();
        let is_ok = checks
            .iter()
            .all(|check| check.result == report::Verdict::Ok);
        let texts = checks
            .iter()
            .flat_map(|check| [&*check.text, &*check.remedy]);
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        let verdict = if is_ok { Verdict::Ok } else { Verdict::Warning };
        found(verdict, texts.join(" "))
    }
}
