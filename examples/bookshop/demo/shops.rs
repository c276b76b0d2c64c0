//! The two shops as processes: start, kill, freeze, and their settings.

use std::{
    error::Error,
    net::SocketAddr,
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::visitors::request;

/// The time for which a frozen process stands still.
const FROZEN: Duration = Duration::from_secs(8);

pub(super) struct Shops {
    database: String,
    shops: [Mutex<Shop>; 2],
    settings: Mutex<(u64, bool)>,
}

struct Shop {
    child: Child,
    address: SocketAddr,
    frozen_until: Option<Instant>,
    is_up: bool,
}

impl Shop {
    fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|id| i32::try_from(id).ok())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(Pid::from_raw) {
            // The process has ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Shops {
    pub(super) async fn start(database: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let [a, b] = [shop(database).await?, shop(database).await?];
        Ok(Self {
            database: database.to_owned(),
            shops: [Mutex::new(a), Mutex::new(b)],
            settings: Mutex::default(),
        })
    }

    fn shop(&self, number: usize) -> MutexGuard<'_, Shop> {
        self.shops[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn address(&self, number: usize) -> SocketAddr {
        self.shop(number).address
    }

    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        [0, 1].map(|number| self.address(number))
    }

    /// Returns the shop with this process number.
    pub(super) fn with_pid(&self, pid: i32) -> Option<usize> {
        (0..2).find(|number| self.shop(*number).pid() == Some(pid))
    }

    /// Returns true if visitors can reach the shop.
    pub(super) fn is_open(&self, number: usize) -> bool {
        let shop = self.shop(number);
        shop.is_up && shop.frozen_until.is_none_or(|until| until < Instant::now())
    }

    pub(super) fn snapshot(&self) -> Value {
        let shops = [0, 1].map(|number| {
            let shop = self.shop(number);
            let frozen = shop.frozen_until.is_some_and(|until| until > Instant::now());
            json!({ "pid": shop.pid(), "address": shop.address.to_string(), "up": shop.is_up, "frozen": frozen })
        });
        json!(shops)
    }

    /// Sets the generator's time and failures in both shops.
    pub(super) async fn set(
        &self,
        delay_ms: u64,
        fails: bool,
        forget: bool,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = (delay_ms, fails);
        for number in 0..2 {
            if self.is_open(number) {
                let path = format!("/set?delay_ms={delay_ms}&fails={fails}&forget={forget}");
                request("POST", self.address(number), &path).await?;
            }
        }
        Ok(())
    }

    /// Makes both own caches forget the page.
    pub(super) async fn forget(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let (delay, fails) = *self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(delay, fails, true).await
    }

    /// Kills a shop as a crash does.
    pub(super) fn kill(&self, number: usize) {
        let mut shop = self.shop(number);
        shop.signal(Signal::KILL);
        shop.is_up = false;
    }

    pub(super) async fn restart(&self, number: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
        let fresh = shop(&self.database).await?;
        *self.shop(number) = fresh;
        let (delay, fails) = *self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(delay, fails, false).await
    }

    pub(super) async fn kill_and_restart(
        &self,
        number: usize,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.kill(number);
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.restart(number).await
    }

    /// Freezes a shop for eight seconds.
    pub(super) fn freeze(&self, number: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
        let pid = {
            let mut shop = self.shop(number);
            shop.signal(Signal::STOP);
            shop.frozen_until = Some(Instant::now() + FROZEN);
            shop.pid()
        };
        tokio::spawn(async move {
            tokio::time::sleep(FROZEN).await;
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::CONT);
            }
        });
        Ok(())
    }

    pub(super) fn stop(&self) {
        for number in 0..2 {
            let shop = self.shop(number);
            shop.signal(Signal::CONT);
            shop.signal(Signal::TERM);
        }
    }
}

/// Starts a shop and waits until it is open.
async fn shop(database: &str) -> Result<Shop, Box<dyn Error + Send + Sync>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([
            "--controlled",
            "--listen",
            "127.0.0.1:0",
            "--database",
            database,
        ])
        // Ends the child when this process ends.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("the shop has no output")?;
    let mut lines = BufReader::new(output).lines();
    let first = lines
        .next_line()
        .await?
        .ok_or("the shop has not started: try --plain")?;
    let address = first
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next()?.parse().ok())
        .ok_or("the shop has no address")?;
    // What the shop prints later is read and dropped.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(Shop {
        child,
        address,
        frozen_until: None,
        is_up: true,
    })
}
