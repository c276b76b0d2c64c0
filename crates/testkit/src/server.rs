//! A database server of a test's own, to be killed and started again.

use std::{
    fs::{self, File, Permissions},
    hash::{BuildHasher, RandomState},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The longest time of a start. Many servers may be installing their tables at once.
const START: Duration = Duration::from_mins(3);

/// The kinds of databases that sites run on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, without a server.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

impl Kind {
    /// Returns the name, as scripts/server has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }

    /// Returns the signal by which an administrator stops the server.
    pub fn stop(self) -> Signal {
        match self {
            Self::Postgres => Signal::INT,
            Self::Sqlite | Self::MariaDb => Signal::TERM,
        }
    }
}

/// A server as a process, which ends with the value.
pub struct Server {
    /// What it is.
    pub kind: Kind,
    data: PathBuf,
    /// What the server prints.
    log: PathBuf,
    port: u16,
    /// Options of the server.
    options: &'static [&'static str],
    /// The server's environment; see scripts/server.
    environment: String,
    child: Option<Child>,
    /// The folder of the data, if nobody else needs it.
    _folder: Option<TempDir>,
}

impl Server {
    /// Starts a server on a folder of its own, which loses data if the machine crashes.
    pub async fn start(kind: Kind) -> Result<Self> {
        let folder = shared_folder()?;
        let (data, log) = (folder.path().join("data"), folder.path().join("log"));
        fs::create_dir(&data)?;
        let options: &[_] = match kind {
            Kind::Sqlite => &[],
            Kind::Postgres => &["--fsync=off"],
            Kind::MariaDb => &["--innodb-flush-log-at-trx-commit=2"],
        };
        let server = Self::start_in(kind, &data, log, options, String::new()).await?;
        let _folder = Some(folder);
        Ok(Self { _folder, ..server })
    }

    /// Starts a server on this empty folder.
    pub async fn start_in(
        kind: Kind,
        data: &Path,
        log: PathBuf,
        options: &'static [&'static str],
        environment: String,
    ) -> Result<Self> {
        let mut server = Self {
            kind,
            data: data.to_owned(),
            log,
            port: free_port()?,
            options,
            environment,
            child: None,
            _folder: None,
        };
        server.again().await?;
        Ok(server)
    }

    /// The URL of its only database.
    pub fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Sqlite => format!("sqlite://{}/site.db?mode=rwc", self.data.display()),
            Kind::Postgres => format!("postgres://perennial@127.0.0.1:{port}/postgres"),
            Kind::MariaDb => format!("mysql://perennial@127.0.0.1:{port}/perennial"),
        }
    }

    /// Starts the server on its stored data, unless it is already running, and waits for its first
    /// answer.
    pub async fn again(&mut self) -> Result {
        if self.kind == Kind::Sqlite {
            return Ok(());
        }
        sqlx::any::install_default_drivers();
        let (url, begun) = (self.url(), Instant::now());
        loop {
            // A server that was killed may still have its files locked for a moment. The next
            // server then exits at once, and is started again.
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?;
            if ended.is_none_or(|ended| ended.is_some()) {
                self.child = Some(self.command()?.spawn()?);
            }
            let connection = timeout(Duration::from_secs(1), AnyConnection::connect(&url)).await;
            if let Ok(Ok(connection)) = connection {
                return Ok(connection.close().await?);
            }
            if begun.elapsed() > START {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("{} does not answer:\n{log}", self.kind.name()).into());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn command(&self) -> Result<Command> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command =
            Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/server"));
        command
            .arg(self.kind.name())
            .arg(&self.data)
            .arg(self.port.to_string())
            .args(self.options)
            .env("SERVER_ENVIRONMENT", &self.environment)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) -> Result {
        self.child
            .as_ref()
            .map_or(Ok(()), |child| send(child, signal))
    }

    /// Sends the server this signal, and waits until it has ended. Even a server that is killed
    /// loses no commit.
    pub async fn end(&mut self, signal: Signal) -> Result {
        self.signal(signal)?;
        if let Some(mut child) = self.child.take() {
            child.wait().await?;
        }
        Ok(())
    }
}

/// Sends a signal to a child that has not been waited for.
pub fn send(child: &Child, signal: Signal) -> Result {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let id = id.and_then(Pid::from_raw).ok_or("the process has ended")?;
    Ok(kill_process(id, signal)?)
}

/// Returns a temporary folder that other users can open and read, such as the user that a server
/// runs as.
pub fn shared_folder() -> Result<TempDir> {
    let folder = TempDir::new()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// Returns a port outside of the system's range for clients: while its server is away, no other
/// process gets the port.
pub fn free_port() -> Result<u16> {
    let first = 20_000 + RandomState::new().hash_one(0) as u16 % 10_000;
    let mut ports = (first..30_000).chain(20_000..first);
    let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    Ok(port.ok_or("there is no free port")?)
}
