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
    port: u16,
    /// `None`: a file has no server.
    child: Option<Child>,
}

impl Server {
    /// Starts a server on an empty folder, and waits for its first answer.
    pub(super) async fn start(kind: Kind, data: &Path, folder: &Path) -> Result<Self> {
        let mut server = Self {
            kind,
            data: data.to_owned(),
            log: folder.join("server.txt"),
            port: free_port()?,
            child: None,
        };
        server.again().await?;
        Ok(server)
    }

    pub(super) fn url(&self) -> String {
        match self.kind {
            Kind::Sqlite => format!("sqlite://{}/soak.db?mode=rwc", self.data.display()),
            Kind::Postgres => format!("postgres://perennial@127.0.0.1:{}/postgres", self.port),
            Kind::MariaDb => format!("mysql://perennial@127.0.0.1:{}/perennial", self.port),
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

    pub(super) async fn stop(mut self) -> Result {
        self.kill().await
    }

    /// Returns the numbers of rows: entries and locks. `None`: the server does not answer.
    pub(super) async fn rows(&self) -> Option<[i64; 2]> {
        let url = self.url();
        let count = async {
            let mut connection = AnyConnection::connect(&url).await?;
            let mut rows = [0; 2];
            for (count, sql) in rows.iter_mut().zip([
                "SELECT count(*) FROM perennial_entry",
                "SELECT count(*) FROM perennial_lock",
            ]) {
                *count = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
            }
            connection.close().await?;
            Ok::<_, sqlx::Error>(rows)
        };
        timeout(Duration::from_secs(1), count).await.ok()?.ok()
    }
}
