//! The processes of a site.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::sleep,
};

use crate::{Result, record::append};
use perennial_testkit::{
    clock::Clock,
    server::{free_port, send},
};

/// A process of the site, as visitors know it.
#[derive(Clone)]
pub(crate) struct Front {
    name: String,
    pub(crate) address: SocketAddr,
    /// The number of starts.
    starts: Arc<AtomicU64>,
}

impl Front {
    /// Returns the name in the record, which is new after each start.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.name, self.starts.load(SeqCst))
    }
}

/// The settings of a process.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) database: String,
    pub(crate) bank: SocketAddr,
    pub(crate) folder: PathBuf,
    /// `None` stands for the machine's clock.
    pub(crate) clock: Option<Clock>,
}

pub(crate) struct Process {
    pub(crate) front: Front,
    settings: Settings,
    in_background: bool,
    child: Child,
}

impl Process {
    /// Starts a process, and waits until it listens.
    pub(crate) async fn start(
        settings: &Settings,
        name: String,
        in_background: bool,
    ) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let front = Front {
            name,
            address,
            starts: Arc::default(),
        };
        let child = spawn(settings, &front, in_background, "1")?;
        let mut process = Self {
            front,
            settings: settings.clone(),
            in_background,
            child,
        };
        process.listens().await?;
        Ok(process)
    }

    /// Starts the process again, which has ended, with this revision of its code.
    pub(crate) async fn again(&mut self, revision: &str) -> Result {
        self.child.wait().await?;
        self.child = spawn(&self.settings, &self.front, self.in_background, revision)?;
        self.listens().await
    }

    async fn listens(&mut self) -> Result {
        while TcpStream::connect(self.front.address).await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                let name = self.front.name();
                return Err(format!("{name} ended with {status}: see its log").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Returns the process's number, or `None` if the process has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result {
        send(&self.child, signal)
    }

    pub(crate) async fn kill(mut self) -> Result {
        self.child.kill().await?;
        Ok(())
    }
}

fn spawn(settings: &Settings, front: &Front, in_background: bool, revision: &str) -> Result<Child> {
    front.starts.fetch_add(1, SeqCst);
    let file = |kind: &str| settings.folder.join(format!("{}.{kind}", front.name));
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["serve", "--database", &settings.database])
        .args(["--name", &front.name(), "--revision", revision])
        .args(["--bank", &settings.bank.to_string()])
        .args(["--listen", &front.address.to_string()])
        .arg("--record")
        .arg(file("facts"))
        .args(in_background.then_some("--in-background"))
        .stderr(append(&file("log"))?)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(clock) = &settings.clock {
        command.envs(clock.variables());
    }
    Ok(command.spawn()?)
}
