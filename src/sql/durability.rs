//! The faults after which a database lacks its latest commits, from its settings.

use std::{collections::HashMap, fmt};

use crate::{error::Error, sql::Database, timing::within};

/// The statements that read the settings, each setting as `name=value`. The first that a server
/// knows is taken.
const SETTINGS: [(&str, &[&str]); 3] = [
    (
        "sqlite",
        // The only setting, without its name.
        &["PRAGMA synchronous"],
    ),
    (
        "postgres",
        &[
            "SELECT name || '=' || setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'synchronous_standby_names') \
             UNION ALL SELECT 'standbys=' || count(*) FROM pg_stat_replication \
             UNION ALL SELECT 'standby=' || pg_is_in_recovery()",
        ],
    ),
    (
        "mysql",
        &[
            // MariaDB.
            "SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM information_schema.GLOBAL_VARIABLES \
             WHERE VARIABLE_NAME IN ('innodb_flush_log_at_trx_commit', 'read_only', 'wsrep_on', 'rpl_semi_sync_master_enabled') \
             UNION ALL SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM information_schema.GLOBAL_STATUS \
             WHERE VARIABLE_NAME = 'Slaves_connected'",
            // MySQL.
            "SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM performance_schema.global_variables \
             WHERE VARIABLE_NAME IN ('innodb_flush_log_at_trx_commit', 'read_only', 'rpl_semi_sync_source_enabled')",
        ],
    ),
];

/// The faults after which a database may lack its latest commits, as its settings say. From
/// [`Database::durability`].
///
/// The promises of locks and pages hold as long as no commit is lost. After a loss, a lease, an
/// idempotent request or a mark of work done once may be unknown, so that the work is done again,
/// and an older version of a page may return until it is regenerated.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Durability {
    /// The places of a commit before it is answered.
    pub commits: String,
    /// The faults that may take the latest commits away; empty: none that this looks for.
    pub lost_after: Vec<&'static str>,
    /// The server takes no writes: a standby, or a read-only server.
    pub read_only: bool,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a commit is on {}", self.commits)?;
        if !self.lost_after.is_empty() {
            let faults = self.lost_after.join(", or ");
            write!(f, "; the latest commits may be lost after {faults}")?;
        }
        if self.read_only {
            write!(f, "; the server takes no writes")?;
        }
        Ok(())
    }
}

impl Database {
    /// Reads from the server's settings what becomes of the latest commits after a crash or a
    /// failover. A loss that no setting tells of, such as a disk that does not write what it says,
    /// is not found.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// let durability = site.database()?.durability().await?;
    /// if !durability.lost_after.is_empty() {
    ///     eprintln!("{durability}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails, does not answer within the statement timeout, or does not have these
    /// settings, as CockroachDB.
    pub async fn durability(&self) -> Result<Durability, Error> {
        let known = SETTINGS.iter().find(|(kind, _)| *kind == self.kind);
        let (_, statements) = known.expect("each kind has statements");
        let read = async {
            let mut failed = None;
            for sql in *statements {
                match self.sql.run(sql, &[], true).await {
                    Ok(answer) => return Ok(answer.texts),
                    Err(error) => failed = Some(error),
                }
            }
            let error = failed.expect("each kind has a statement");
            Err(Error::database(
                "cannot read the database's settings",
                error,
            ))
        };
        let texts = within(self.limit, "reading the database's settings", read).await??;
        Ok(judge(self.kind, &texts))
    }
}

/// Judges settings in the form `name=value`.
fn judge(kind: &str, texts: &[String]) -> Durability {
    let settings = texts
        .iter()
        .map(|text| text.split_once('=').unwrap_or(("synchronous", text)));
    let settings: HashMap<_, _> = settings.collect();
    let setting = |name: &str| settings.get(name).copied().unwrap_or_default();
    let is_on = |name: &str| matches!(setting(name), "on" | "ON" | "1" | "true");
    let standbys = |name: &str| !matches!(setting(name), "" | "0");
    const CRASH: &str = "a crash of the machine";
    const FAILOVER: &str = "a failover to an asynchronous standby";
    let (commits, mut lost_after) = match kind {
        "sqlite" => match setting("synchronous") {
            "0" | "1" => ("the machine, soon on its disk", vec![CRASH]),
            _ => ("the disk", vec![]),
        },
        "postgres" => {
            let named = !setting("synchronous_standby_names").is_empty();
            match (setting("synchronous_commit"), named) {
                ("off", _) => ("the server", vec!["a crash of the server"]),
                ("local", true) => ("the server's disk", vec![FAILOVER]),
                ("remote_write", true) => (
                    "the server's disk and the memory of a synchronous standby",
                    vec!["a crash of the server and of the standby's machine"],
                ),
                (_, true) => (
                    "the disks of the server and of a synchronous standby",
                    vec![],
                ),
                (_, false) if standbys("standbys") => ("the server's disk", vec![FAILOVER]),
                (_, false) => ("the server's disk", vec![]),
            }
        }
        _ if is_on("wsrep_on") => ("all nodes of the Galera cluster", vec![]),
        _ => {
            let semi =
                is_on("rpl_semi_sync_master_enabled") || is_on("rpl_semi_sync_source_enabled");
            let first = match (semi, standbys("slaves_connected")) {
                (true, _) => (
                    "the server and, while it answers in time, a replica",
                    vec![],
                ),
                (false, true) => ("the server", vec![FAILOVER]),
                (false, false) => ("the server", vec![]),
            };
            match setting("innodb_flush_log_at_trx_commit") {
                "0" => (first.0, [first.1, vec!["a crash of the server"]].concat()),
                "2" => (first.0, [first.1, vec![CRASH]].concat()),
                _ => first,
            }
        }
    };
    if setting("fsync") == "off" {
        lost_after.push(CRASH);
    }
    Durability {
        commits: commits.to_owned(),
        lost_after,
        read_only: is_on("read_only") || is_on("standby"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(kind: &str, settings: &str) -> Vec<&'static str> {
        let texts: Vec<_> = settings.split(' ').map(str::to_owned).collect();
        judge(kind, &texts).lost_after
    }

    #[test]
    fn settings_tell_after_which_faults_commits_are_lost() {
        const CRASH: &str = "a crash of the machine";
        const SERVER: &str = "a crash of the server";
        const FAILOVER: &str = "a failover to an asynchronous standby";
        let cases: [(&str, &str, &[&str]); 15] = [
            ("sqlite", "synchronous=2", &[]),
            ("sqlite", "synchronous=1", &[CRASH]),
            ("sqlite", "synchronous=0", &[CRASH]),
            (
                "postgres",
                "fsync=on synchronous_commit=on synchronous_standby_names= standbys=0",
                &[],
            ),
            (
                "postgres",
                "fsync=on synchronous_commit=on synchronous_standby_names= standbys=2",
                &[FAILOVER],
            ),
            (
                "postgres",
                "fsync=on synchronous_commit=on synchronous_standby_names=node2 standbys=2",
                &[],
            ),
            (
                "postgres",
                "fsync=on synchronous_commit=local synchronous_standby_names=node2 standbys=2",
                &[FAILOVER],
            ),
            (
                "postgres",
                "fsync=on synchronous_commit=off synchronous_standby_names=node2",
                &[SERVER],
            ),
            (
                "postgres",
                "fsync=off synchronous_commit=on synchronous_standby_names= standbys=0",
                &[CRASH],
            ),
            (
                "mysql",
                "innodb_flush_log_at_trx_commit=1 slaves_connected=0",
                &[],
            ),
            ("mysql", "innodb_flush_log_at_trx_commit=0", &[SERVER]),
            (
                "mysql",
                "innodb_flush_log_at_trx_commit=2 slaves_connected=1",
                &[FAILOVER, CRASH],
            ),
            (
                "mysql",
                "innodb_flush_log_at_trx_commit=1 slaves_connected=1 rpl_semi_sync_master_enabled=ON",
                &[],
            ),
            ("mysql", "innodb_flush_log_at_trx_commit=2 wsrep_on=ON", &[]),
            (
                "mysql",
                "innodb_flush_log_at_trx_commit=1 wsrep_on=OFF slaves_connected=1",
                &[FAILOVER],
            ),
        ];
        for (kind, settings, expected) in cases {
            assert_eq!(lost(kind, settings), expected, "{kind}: {settings}");
        }
    }

    #[test]
    fn a_server_without_writes_is_read_only() {
        let judged = |kind: &str, text: &str| judge(kind, &[text.to_owned()]);
        assert!(judged("mysql", "read_only=ON").read_only);
        assert!(judged("postgres", "standby=true").read_only);
        assert!(!judged("postgres", "standby=false").read_only);
        let text = judged("postgres", "standbys=1").to_string();
        let expected = "a commit is on the server's disk; the latest commits may be lost after a failover to an asynchronous standby";
        assert_eq!(text, expected);
    }
}
