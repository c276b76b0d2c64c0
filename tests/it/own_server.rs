//! A server of the test's own, to be killed and started again.

use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AnyConnection, Connection};
use tempfile::{NamedTempFile, TempDir};

use crate::support::HANG;

#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerKind {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MariaDb,
}

pub(crate) struct OwnServer {
    kind: ServerKind,
    folder: TempDir,
    /// What the server printed.
    log: NamedTempFile,
    port: u16,
    child: Option<Child>,
}

impl OwnServer {
    pub(crate) async fn start(kind: ServerKind) -> Self {
        // A port outside of the system's range for clients: while the server is away, no other
        // process gets the port.
        let ports = RandomState::new().hash_one(0) as u16 % 10_000;
        let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (20_000 + ports..30_000).chain(20_000..30_000).find(free);
        let mut server = Self {
            kind,
            folder: tempfile::tempdir().expect("a folder"),
            log: NamedTempFile::new().expect("a file"),
            port: port.expect("some are free"),
            child: None,
        };
        server.again().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        let (scheme, database) = match self.kind {
            #[cfg(feature = "postgres")]
            ServerKind::Postgres => ("postgres", "postgres"),
            #[cfg(feature = "mysql")]
            ServerKind::MariaDb => ("mysql", "perennial"),
        };
        format!("{scheme}://perennial@127.0.0.1:{}/{database}", self.port)
    }

    /// Starts the server on its stored data, and waits for its first answer.
    pub(crate) async fn again(&mut self) {
        sqlx::any::install_default_drivers();
        let name = match self.kind {
            #[cfg(feature = "postgres")]
            ServerKind::Postgres => "postgres",
            #[cfg(feature = "mysql")]
            ServerKind::MariaDb => "mariadb",
        };
        let url = self.url();
        let start = Instant::now();
        while !self.answers(name, &url).await {
            // Many servers may be installing their tables at once.
            let log = || std::fs::read_to_string(self.log.path()).unwrap_or_default();
            assert!(
                start.elapsed() < HANG * 3,
                "{name} does not answer:\n{}",
                log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts the server if it does not run, and says whether it answers.
    async fn answers(&mut self, name: &str, url: &str) -> bool {
        // A killed server may still hold its files.
        let gone = self
            .child
            .as_mut()
            .is_none_or(|child| child.try_wait().expect("is ours").is_some());
        if gone {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/server");
            let mut command = Command::new(script);
            command.arg(name).arg(self.folder.path());
            command.arg(self.port.to_string());
            // The server is killed, and the machine is not.
            command.arg(match self.kind {
                #[cfg(feature = "postgres")]
                ServerKind::Postgres => "--fsync=off",
                #[cfg(feature = "mysql")]
                ServerKind::MariaDb => "--innodb-flush-log-at-trx-commit=2",
            });
            let log = File::options().append(true).open(self.log.path());
            command.stdout(Stdio::null()).stderr(log.expect("is there"));
            self.child = Some(command.spawn().expect("starts"));
        }
        let connection = tokio::time::timeout(Duration::from_secs(1), AnyConnection::connect(url));
        match connection.await {
            Ok(Ok(connection)) => connection.close().await.is_ok(),
            _ => false,
        }
    }

    /// Stops the server, and waits for its end.
    pub(crate) fn end(&mut self, how: Ending) {
        let mut child = self.child.take().expect("runs");
        let signal = match (how, self.kind) {
            (Ending::Kill, _) => Signal::KILL,
            #[cfg(feature = "postgres")]
            (Ending::Stop, ServerKind::Postgres) => Signal::INT,
            #[cfg(feature = "mysql")]
            (Ending::Stop, ServerKind::MariaDb) => Signal::TERM,
        };
        kill_process(Pid::from_child(&child), signal).expect("is alive");
        child.wait().expect("ends");
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// By SIGKILL, as in a crash.
    Kill,
    /// Shuts the server down as an administrator does.
    Stop,
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.end(Ending::Kill);
        }
    }
}
