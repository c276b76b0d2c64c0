//! Finds database settings with which a crash or a failover may lose the latest commits.

use std::collections::HashMap;

use super::{
    Verdict,
    examined::{Checked, ExaminedDatabase, Kind, found},
};

/// The statements that read the settings, each setting as `name=value`.
const POSTGRES: &str = "SELECT name || '=' || setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'synchronous_standby_names') \
    UNION ALL SELECT 'standbys=' || count(*) FROM pg_stat_replication";
const MARIADB: &str = "SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM information_schema.GLOBAL_VARIABLES \
    WHERE VARIABLE_NAME IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on', 'rpl_semi_sync_master_enabled') \
    UNION ALL SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM information_schema.GLOBAL_STATUS \
    WHERE VARIABLE_NAME = 'Slaves_connected'";
const MYSQL: &str = "SELECT CAST(CONCAT(LOWER(VARIABLE_NAME), '=', VARIABLE_VALUE) AS CHAR) FROM performance_schema.global_variables \
    WHERE VARIABLE_NAME IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'rpl_semi_sync_source_enabled')";

const CRASH: &str = "a crash of the machine";
const SERVER: &str = "a crash of the server";
const FAILOVER: &str = "a failover to an asynchronous standby";

impl ExaminedDatabase<'_> {
    pub(super) async fn durability(&mut self) -> Checked {
        let texts = match self.kind {
            // The setting belongs to a connection, and the site has other connections than this one.
            Kind::Sqlite => {
                return found(
                    Verdict::Ok,
                    "each connection decides: with `Perennial::open`, a crash of the machine may take the latest commits",
                );
            }
            Kind::Postgres => self.texts(POSTGRES).await?,
            Kind::MySql => match self.texts(MARIADB).await {
                Ok(texts) => texts,
                Err(_) => self.texts(MYSQL).await?,
            },
        };
        let (commits, lost_after) = judge(self.kind, &texts);
        let text = format!("a commit is on {commits}");
        match &*lost_after {
            [] => found(Verdict::Ok, text),
            faults => {
                let remedy = match self.kind {
                    Kind::Postgres => {
                        "if that matters, set `synchronous_commit = on` and `fsync = on`, and for a failover name a synchronous standby"
                    }
                    _ => {
                        "if that matters, set `innodb_flush_log_at_trx_commit = 1` and `sync_binlog = 1`, and for a failover replicate semi-synchronously"
                    }
                };
                found(
                    Verdict::Warning,
                    format!(
                        "{text}; the latest commits may be lost after {}: afterwards work done once may be done again. \
                         {remedy}",
                        faults.join(", or ")
                    ),
                )
            }
        }
    }
}

/// Judges the settings of a server, in the form `name=value`. Returns where a commit is stored by the time it
/// is acknowledged, and the faults after which the latest commits may be missing.
fn judge(kind: Kind, texts: &[String]) -> (&'static str, Vec<&'static str>) {
    let settings: HashMap<_, _> = texts.iter().filter_map(|it| it.split_once('=')).collect();
    let setting = |name: &str| settings.get(name).copied().unwrap_or_default();
    let is_on = |name: &str| matches!(setting(name), "ON" | "1");
    let standbys = |name: &str| !matches!(setting(name), "" | "0");
    let (commits, mut lost_after) = if kind == Kind::Postgres {
        let named = !setting("synchronous_standby_names").is_empty();
        match (setting("synchronous_commit"), named) {
            ("off", _) => ("the server", vec![SERVER]),
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
    } else if is_on("wsrep_on") {
        return ("all nodes of the Galera cluster", vec![]);
    } else if is_on("rpl_semi_sync_master_enabled") || is_on("rpl_semi_sync_source_enabled") {
        (
            "the server and, while it answers in time, a replica",
            vec![],
        )
    } else {
        let fault = standbys("slaves_connected").then_some(FAILOVER);
        ("the server", fault.into_iter().collect())
    };
    match setting("innodb_flush_log_at_trx_commit") {
        "0" => lost_after.push(SERVER),
        "2" => lost_after.push(CRASH),
        // After a restart, a commit that is not in the binary log is rolled back.
        _ if is_on("log_bin") && setting("sync_binlog") != "1" => lost_after.push(CRASH),
        _ => {}
    }
    if setting("fsync") == "off" {
        lost_after.push(CRASH);
    }
    (commits, lost_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_tell_after_which_faults_commits_are_lost() {
        let cases: [(Kind, &str, &[&str]); 14] = [
            (
                Kind::Postgres,
                "fsync=on synchronous_commit=on synchronous_standby_names= standbys=0",
                &[],
            ),
            (
                Kind::Postgres,
                "fsync=on synchronous_commit=on synchronous_standby_names= standbys=2",
                &[FAILOVER],
            ),
            (
                Kind::Postgres,
                "fsync=on synchronous_commit=on synchronous_standby_names=node2 standbys=2",
                &[],
            ),
            (
                Kind::Postgres,
                "fsync=on synchronous_commit=local synchronous_standby_names=node2 standbys=2",
                &[FAILOVER],
            ),
            (
                Kind::Postgres,
                "fsync=on synchronous_commit=off synchronous_standby_names=node2",
                &[SERVER],
            ),
            (
                Kind::Postgres,
                "fsync=off synchronous_commit=on synchronous_standby_names= standbys=0",
                &[CRASH],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=1 slaves_connected=0",
                &[],
            ),
            (Kind::MySql, "innodb_flush_log_at_trx_commit=0", &[SERVER]),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=2 slaves_connected=1",
                &[FAILOVER, CRASH],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=1 slaves_connected=1 rpl_semi_sync_master_enabled=ON",
                &[],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=1 log_bin=ON sync_binlog=0",
                &[CRASH],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=1 log_bin=ON sync_binlog=1",
                &[],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=2 wsrep_on=ON",
                &[],
            ),
            (
                Kind::MySql,
                "innodb_flush_log_at_trx_commit=1 wsrep_on=OFF slaves_connected=1",
                &[FAILOVER],
            ),
        ];
        for (kind, settings, expected) in cases {
            let texts: Vec<_> = settings.split(' ').map(str::to_owned).collect();
            assert_eq!(judge(kind, &texts).1, expected, "{settings}");
        }
    }
}
