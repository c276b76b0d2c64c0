//! The databases of a soak.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::Signal;
use sqlx::{AnyConnection, Connection};
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{
    Result,
    clock::Clock,
    process::{free_port, send},
    record::append,
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
    MariaDb,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::MariaDb];

    /// Returns the name, as scripts/server has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }
}

pub(super) struct Server {
    kind: Kind,
    data: PathBuf,
    log: PathBuf,
    clock: Option<Clock>,
    pub(super) port: u16,
    /// `None`: a file has no server.
    child: Option<Child>,
}

impl Server {
    /// Starts a server on an empty folder, and waits for its first answer.
    pub(super) async fn start(
        kind: Kind,
        data: &Path,
        folder: &Path,
        clock: Option<Clock>,
    ) -> Result<Self> {
        let mut server = Self {
            kind,
            data: data.to_owned(),
            log: folder.join("server.txt"),
            clock,
            port: free_port()?,
            child: None,
        };
        server.again().await?;
        Ok(server)
    }

    pub(super) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the database's URL for a client that reaches the server at this port.
    pub(super) fn url_at(&self, port: u16) -> String {
        match self.kind {
            Kind::Sqlite => format!("sqlite://{}/soak.db?mode=rwc", self.data.display()),
            Kind::Postgres => format!("postgres://perennial@127.0.0.1:{port}/postgres"),
            Kind::MariaDb => format!("mysql://perennial@127.0.0.1:{port}/perennial"),
        }
    }

    /// Starts the server on its data.
    pub(super) async fn again(&mut self) -> Result {
        if self.kind == Kind::Sqlite {
            return Ok(());
        }
        let mut command = Command::new("scripts/server");
        command
            .arg(self.kind.name())
            .arg(&self.data)
            .arg(self.port.to_string())
            .stdin(Stdio::null())
            .stdout(append(&self.log)?)
            .stderr(append(&self.log)?)
            .kill_on_drop(true);
        if self.kind == Kind::Postgres {
            // Its write-ahead log is not to fill a small disk.
            command.args(["-c", "max_wal_size=128MB"]);
        }
        if let Some(clock) = &self.clock {
            let variables = clock
                .variables()
                .map(|(name, value)| format!("{name}={value}"));
            command.env("SERVER_ENVIRONMENT", variables.join(" "));
        }
        self.child = Some(command.spawn()?);
        let url = self.url();
        loop {
            let connection = timeout(Duration::from_secs(1), AnyConnection::connect(&url)).await;
            if let Ok(Ok(connection)) = connection {
                return Ok(connection.close().await?);
            }
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?;
            if let Some(Some(status)) = ended {
                let log = self.log.display();
                return Err(format!("{} ended with {status}: see {log}", self.kind.name()).into());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) fn signal(&self, signal: Signal) -> Result {
        self.child
            .as_ref()
            .map_or(Ok(()), |child| send(child, signal))
    }

    /// Kills the server, and waits for its end. The crash of a server loses no commit.
    pub(super) async fn kill(&mut self) -> Result {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Starts the server again if it has ended, as some do on a full disk.
    pub(super) async fn again_if_ended(&mut self) -> Result {
        let ended = self.child.as_mut().map(Child::try_wait).transpose()?;
        if ended.flatten().is_some() {
            self.again().await?;
        }
        Ok(())
    }

    /// Returns the numbers of entries, of locks, and of statements since the server's start, which
    /// SQLite does not count. `None`: the server does not answer.
    pub(super) async fn counts(&self) -> Option<Vec<i64>> {
        let url = self.url();
        let statements = match self.kind {
            Kind::Sqlite => None,
            Kind::Postgres => Some(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'",
            ),
            Kind::MariaDb => Some(
                "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                 WHERE variable_name = 'QUESTIONS'",
            ),
        };
        let rows = [
            "SELECT count(*) FROM perennial_entry",
            "SELECT count(*) FROM perennial_lock",
        ];
        let count = async {
            let mut connection = AnyConnection::connect(&url).await?;
            let mut counts = Vec::new();
            for sql in rows.into_iter().chain(statements) {
                counts.push(sqlx::query_scalar(sql).fetch_one(&mut connection).await?);
            }
            connection.close().await?;
            Ok::<_, sqlx::Error>(counts)
        };
        timeout(Duration::from_secs(1), count).await.ok()?.ok()
    }
}
