//! The checks of the server and its settings, one method each.

use std::time::{Duration, Instant};

use super::{
    Verdict,
    examined::{Checked, ExaminedDatabase, Kind, found},
};

impl ExaminedDatabase<'_> {
    pub(super) async fn connection(&mut self) -> Checked {
        let since = Instant::now();
        self.text("SELECT 'answers'").await?;
        let took = since.elapsed();
        let text = format!(
            "connected in {:.1?}; a statement takes {took:.1?}",
            self.connected_in
        );
        if took < Duration::from_millis(100) {
            found(Verdict::Ok, text)
        } else {
            found(
                Verdict::Warning,
                format!(
                    "{text}: a first version and a lock wait for it. Move the site nearer to the database"
                ),
            )
        }
    }

    pub(super) async fn encryption(&mut self) -> Checked {
        let (is_encrypted, is_local) = match self.kind {
            Kind::Sqlite => return Ok(None),
            Kind::Postgres => (
                self.number("SELECT count(*) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl").await? != 0,
                // A Unix socket has no address.
                self.number(
                    "SELECT coalesce(inet_client_addr() <<= inet '127.0.0.0/8' OR inet_client_addr() = inet '::1', true)::int::bigint",
                )
                .await?
                    != 0,
            ),
            Kind::MySql => {
                let cipher = self.shown("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await?;
                let user = self.text("SELECT CAST(USER() AS CHAR)").await?;
                let host = user.rsplit('@').next().unwrap_or_default();
                let is_local = matches!(host, "localhost" | "127.0.0.1" | "::1");
                (!cipher.is_empty(), is_local)
            }
        };
        let setting = match self.kind {
            Kind::MySql => "ssl-mode=VERIFY_IDENTITY",
            Kind::Sqlite | Kind::Postgres => "sslmode=verify-full",
        };
        match (is_encrypted, is_local) {
            (true, _) => found(Verdict::Ok, "the connection is encrypted"),
            (false, true) => found(
                Verdict::Ok,
                "the connection is not encrypted, and does not leave this machine",
            ),
            (false, false) => found(
                Verdict::Warning,
                format!(
                    "the connection is not encrypted, and others on the network may read pages and passwords: write `{setting}` into the URL, and \
                     give the site Perennial's feature `tls-rustls`"
                ),
            ),
        }
    }

    pub(super) async fn version(&mut self) -> Checked {
        let (sql, least) = match self.kind {
            Kind::Sqlite => ("SELECT sqlite_version()", (3, 35)),
            Kind::Postgres => ("SELECT current_setting('server_version')", (12, 0)),
            Kind::MySql => ("SELECT CAST(version() AS CHAR)", (8, 0)),
        };
        let version = self.text(sql).await?;
        let mut numbers = version
            .split(|c: char| !c.is_ascii_digit())
            .map(|it| it.parse().unwrap_or(0));
        let number: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let least = if version.contains("MariaDB") {
            (10, 6)
        } else {
            least
        };
        if number >= least {
            found(Verdict::Ok, format!("version {version}"))
        } else {
            found(
                Verdict::Failure,
                format!(
                    "version {version} is too old: claims and locks need {}.{} or newer",
                    least.0, least.1
                ),
            )
        }
    }

    pub(super) async fn role(&mut self) -> Checked {
        // Each condition under which writes fail or are not committed.
        let conditions: &[(&str, &str)] = match self.kind {
            Kind::Sqlite => return Ok(None),
            Kind::Postgres => &[
                (
                    "SELECT pg_is_in_recovery()::int::bigint",
                    "the server is a standby: the URL has to lead to the primary",
                ),
                (
                    "SELECT (current_setting('default_transaction_read_only') = 'on')::int::bigint",
                    "transactions only read by default: reset `default_transaction_read_only` of the role, the database or the server",
                ),
            ],
            Kind::MySql => &[
                (
                    "SELECT CAST(@@read_only AS SIGNED)",
                    "the server is read-only: the URL has to lead to the primary",
                ),
                (
                    "SELECT CAST(@@innodb_read_only AS SIGNED)",
                    "the server runs with `innodb_read_only`",
                ),
                (
                    "SELECT CAST(/*M! @@tx_read_only *//*!50720 @@transaction_read_only */ AS SIGNED)",
                    "transactions only read by default: set `transaction_read_only = 0` (`tx_read_only` on MariaDB before 11.1)",
                ),
                (
                    "SELECT CAST(@@autocommit = 0 AS SIGNED)",
                    "sessions have `autocommit = 0`, and what is written is undone at their end: set `autocommit = 1`",
                ),
            ],
        };
        let mut failures = Vec::new();
        for (sql, failure) in conditions {
            if self.number(sql).await? != 0 {
                failures.push(*failure);
            }
        }
        if failures.is_empty() {
            found(
                Verdict::Ok,
                "the server takes writes, and sessions commit them",
            )
        } else {
            found(Verdict::Failure, failures.join("; "))
        }
    }

    pub(super) async fn journal(&mut self) -> Checked {
        if self.kind != Kind::Sqlite {
            return Ok(None);
        }
        match &*self.text("PRAGMA journal_mode").await? {
            "wal" => found(Verdict::Ok, "the write-ahead log is on"),
            mode => found(
                Verdict::Warning,
                format!(
                    "the journal mode is {mode}: readers wait for writers. Run `PRAGMA journal_mode = WAL`, once"
                ),
            ),
        }
    }

    /// A pooler in transaction mode may run two statements of one connection in two sessions. The check
    /// recognises a pooler if the URL names a port, and the server reports a different one.
    pub(super) async fn pooler(&mut self) -> Checked {
        if self.kind != Kind::Postgres {
            return Ok(None);
        }
        let asked = self
            .text("SELECT coalesce(inet_server_port()::text, 'socket')")
            .await?;
        let url = self.source.url()?;
        let host = url.split_once("://").map_or(url, |(_, rest)| rest);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = host.split(['/', '?']).next();
        let port = host.and_then(|host| host.rsplit_once(':')?.1.parse::<u16>().ok());
        match port {
            Some(port) if asked != "socket" && port.to_string() != asked => found(
                Verdict::Warning,
                format!(
                    "the server listens on port {asked}, and the URL names {port}: if a pooler in transaction mode is between, `listen` and session locks need a direct connection"
                ),
            ),
            _ => found(Verdict::Ok, "the connection seems to be direct"),
        }
    }

    pub(super) async fn isolation(&mut self) -> Checked {
        let level = match self.kind {
            Kind::Sqlite => return Ok(None),
            Kind::Postgres => {
                self.text("SELECT current_setting('default_transaction_isolation')")
                    .await?
            }
            Kind::MySql => {
                let variable = "/*M! @@tx_isolation *//*!50720 @@transaction_isolation */";
                self.text(&format!("SELECT CAST({variable} AS CHAR)"))
                    .await?
            }
        };
        let is_serializable = level.eq_ignore_ascii_case("serializable");
        if is_serializable {
            found(
                Verdict::Warning,
                "transactions are serializable by default: contended tries fail and are repeated. Perennial needs no more than READ COMMITTED",
            )
        } else {
            found(Verdict::Ok, level.to_lowercase())
        }
    }

    pub(super) async fn packet(&mut self) -> Checked {
        if self.kind != Kind::MySql {
            return Ok(None);
        }
        let packet = self
            .number("SELECT CAST(@@max_allowed_packet AS SIGNED)")
            .await?;
        let entry = self.source.table("entry");
        let largest = self
            .number(&format!(
                "SELECT CAST(coalesce(max(length(`body`)), 0) AS SIGNED) FROM {entry}"
            ))
            .await?;
        let text =
            format!("max_allowed_packet is {packet} bytes, the largest stored page {largest}");
        if packet > 2 * largest && packet > 16_000_000 {
            found(Verdict::Ok, text)
        } else {
            found(
                Verdict::Warning,
                format!(
                    "{text}: pages up to `Builder::max_body` (8 MiB by default) have to fit; set 16777216 or more"
                ),
            )
        }
    }

    pub(super) async fn encoding(&mut self) -> Checked {
        let encoding = match self.kind {
            Kind::Sqlite => self.text("PRAGMA encoding").await?,
            Kind::Postgres => {
                self.text("SELECT current_setting('server_encoding')")
                    .await?
            }
            // The tables' columns are bytes.
            Kind::MySql => return Ok(None),
        };
        if encoding.to_uppercase().starts_with("UTF") {
            found(Verdict::Ok, encoding)
        } else {
            found(
                Verdict::Warning,
                format!(
                    "the database stores texts as {encoding}: names outside of it are refused. Use UTF-8"
                ),
            )
        }
    }
}
