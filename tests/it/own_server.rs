//! A server of the test's own, to be killed and started again.

use std::{
    hash::{BuildHasher, RandomState},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;

use crate::support::{HANG, until_within};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MariaDb,
}

pub(crate) struct OwnServer {
    kind: Kind,
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl OwnServer {
    pub(crate) async fn start(kind: Kind) -> Self {
        // Not one that the system gives out by itself: while the server is away, nobody else is to get it.
        let ports = RandomState::new().hash_one(0) as u16 % 10_000;
        let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (20_000 + ports..30_000).chain(20_000..30_000).find(free);
        let mut server = Self {
            kind,
            folder: tempfile::tempdir().expect("a folder"),
            port: port.expect("some are free"),
            child: None,
        };
        server.again().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        let (scheme, database) = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => ("postgres", "postgres"),
            #[cfg(feature = "mysql")]
            Kind::MariaDb => ("mysql", "perennial"),
        };
        format!("{scheme}://perennial@127.0.0.1:{}/{database}", self.port)
    }

    /// Starts it, on what it has stored, and waits until it answers.
    pub(crate) async fn again(&mut self) {
        sqlx::any::install_default_drivers();
        let name = match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres => "postgres",
            #[cfg(feature = "mysql")]
            Kind::MariaDb => "mariadb",
        };
        let url = self.url();
        // Many servers may be installing their tables at once.
        until_within(HANG * 3, "the server answers", async || {
            // One that was killed may still be letting go of its files.
            let gone = self
                .child
                .as_mut()
                .is_none_or(|child| child.try_wait().expect("is ours").is_some());
            if gone {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/server");
                let mut command = Command::new(script);
                command.arg(name).arg(self.folder.path());
                command.arg(self.port.to_string());
                // What is killed is the server, not the machine.
                command.arg(match self.kind {
                    #[cfg(feature = "postgres")]
                    Kind::Postgres => "--fsync=off",
                    #[cfg(feature = "mysql")]
                    Kind::MariaDb => "--innodb-flush-log-at-trx-commit=2",
                });
                command.stdout(Stdio::null()).stderr(Stdio::null());
                self.child = Some(command.spawn().expect("starts"));
            }
            let connection =
                tokio::time::timeout(Duration::from_secs(1), AnyConnection::connect(&url));
            match connection.await {
                Ok(Ok(connection)) => connection.close().await.is_ok(),
                _ => false,
            }
        })
        .await;
    }

    /// Ends it, and waits until it has ended.
    pub(crate) fn end(&mut self, how: Ending) {
        let mut child = self.child.take().expect("runs");
        let signal = match (how, self.kind) {
            (Ending::Kill, _) => Signal::KILL,
            #[cfg(feature = "postgres")]
            (Ending::Stop, Kind::Postgres) => Signal::INT,
            #[cfg(feature = "mysql")]
            (Ending::Stop, Kind::MariaDb) => Signal::TERM,
        };
        kill_process(Pid::from_child(&child), signal).expect("is alive");
        child.wait().expect("ends");
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// By SIGKILL, as in a crash.
    Kill,
    /// As its administrator ends it.
    Stop,
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.end(Ending::Kill);
        }
    }
}
