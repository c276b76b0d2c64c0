//! The two shops as processes: start, kill, freeze, and their settings.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::{copy::Settings, visitors::request};

/// The time for which a frozen process stands still.
const FROZEN: Duration = Duration::from_secs(8);

/// The time in which a shop is open after its start.
const START: Duration = Duration::from_secs(30);

/// The time in which a shop ends that was told to: it still answers the visitors that it has.
const LAST_VISITORS: Duration = Duration::from_secs(15);

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

pub(super) struct Shops {
    database: String,
    since: SystemTime,
    shops: [Mutex<Shop>; 2],
    /// All processes since the start, with the numbers of their shops.
    pids: Mutex<Vec<(i32, usize)>>,
    settings: Mutex<Settings>,
}

struct Shop {
    /// `None` while a deploy waits for its end.
    child: Option<Child>,
    address: SocketAddr,
    frozen_until: Option<Instant>,
    is_up: bool,
}

impl Shop {
    fn pid(&self) -> Option<i32> {
        let child = self.child.as_ref()?;
        child.id().and_then(|id| i32::try_from(id).ok())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(Pid::from_raw) {
            // The process has ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shops {
    /// Starts both shops on free ports of an address, with a generator that takes `slow`.
    pub(super) async fn start(
        database: &str,
        ip: IpAddr,
        slow: Duration,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let settings = Settings {
            delay_ms: slow.as_millis().try_into()?,
            fails: false,
            held: false,
        };
        let since = SystemTime::now();
        let any = SocketAddr::new(ip, 0);
        let [a, b] = [shop(database, any).await?, shop(database, any).await?];
        let shops = Self {
            database: database.to_owned(),
            since,
            shops: [Mutex::new(a), Mutex::new(b)],
            pids: Mutex::default(),
            settings: Mutex::new(settings),
        };
        for number in 0..2 {
            shops.remember(number, lock(&shops.shops[number]).pid());
        }
        shops.set(settings).await?;
        Ok(shops)
    }

    fn remember(&self, number: usize, pid: Option<i32>) {
        lock(&self.pids).extend(pid.map(|pid| (pid, number)));
    }

    /// Returns the time of the start.
    pub(super) fn since(&self) -> SystemTime {
        self.since
    }

    pub(super) fn address(&self, number: usize) -> SocketAddr {
        lock(&self.shops[number]).address
    }

    /// Returns the shop whose process has, or had, this label: its host and its number.
    pub(super) fn of_label(&self, label: &str) -> Option<usize> {
        let pid: i32 = label.rsplit(':').next()?.parse().ok()?;
        let pids = lock(&self.pids);
        let (_, number) = pids.iter().rev().find(|(known, _)| *known == pid)?;
        Some(*number)
    }

    /// Returns true if visitors can reach the shop.
    pub(super) fn is_open(&self, number: usize) -> bool {
        let shop = lock(&self.shops[number]);
        shop.is_up && shop.frozen_until.is_none_or(|until| until < Instant::now())
    }

    pub(super) fn snapshot(&self) -> Value {
        let shops = self.shops.each_ref().map(|shop| {
            let shop = lock(shop);
            let frozen = shop.frozen_until.is_some_and(|until| until > Instant::now());
            let address = shop.address.to_string();
            json!({ "pid": shop.pid(), "address": address, "port": shop.address.port(), "up": shop.is_up, "frozen": frozen })
        });
        json!(shops)
    }

    pub(super) fn settings(&self) -> Settings {
        *lock(&self.settings)
    }

    async fn tell(&self, path: &str) -> Outcome {
        for number in 0..2 {
            if self.is_open(number) {
                request("POST", self.address(number), path).await?;
            }
        }
        Ok(())
    }

    /// Sets the generator in both shops.
    pub(super) async fn set(&self, settings: Settings) -> Outcome {
        *lock(&self.settings) = settings;
        self.tell(&path_of(settings)).await
    }

    /// Makes the page stale in both shops' own caches. Only the shops themselves can do so.
    pub(super) async fn invalidate_own(&self) -> Outcome {
        self.tell("/own/invalidate").await
    }

    /// Removes the page from both shops' own caches.
    pub(super) async fn purge_own(&self) -> Outcome {
        self.tell("/own/purge").await
    }

    /// Kills a shop as a crash does.
    pub(super) fn kill(&self, number: usize) {
        let mut shop = lock(&self.shops[number]);
        shop.signal(Signal::KILL);
        shop.is_up = false;
    }

    /// Starts a shop that has ended, at its address, and opens it to visitors.
    pub(super) async fn restart(&self, number: usize) -> Outcome {
        if lock(&self.shops[number]).is_up {
            return Ok(());
        }
        let address = self.address(number);
        let fresh = match shop(&self.database, address).await {
            Ok(fresh) => fresh,
            // Another program may have taken the port.
            Err(_) => shop(&self.database, SocketAddr::new(address.ip(), 0)).await?,
        };
        self.remember(number, fresh.pid());
        let address = fresh.address;
        request("POST", address, &path_of(self.settings())).await?;
        *lock(&self.shops[number]) = fresh;
        // Somebody may have changed the settings before the shop was open.
        request("POST", address, &path_of(self.settings())).await?;
        Ok(())
    }

    /// Restarts both shops, one after the other, as a deploy does. A frozen shop is left alone.
    pub(super) async fn deploy(&self) -> Outcome {
        for number in 0..2 {
            let mut old = {
                let mut shop = lock(&self.shops[number]);
                if shop
                    .frozen_until
                    .is_some_and(|until| until > Instant::now())
                {
                    continue;
                }
                shop.signal(Signal::TERM);
                shop.is_up = false;
                shop.child.take()
            };
            // `wait` closes this end of the pipe, which would end the shop before its visitors are served.
            let _pipe = old.as_mut().and_then(|old| old.stdin.take());
            if let Some(old) = &mut old
                && tokio::time::timeout(LAST_VISITORS, old.wait())
                    .await
                    .is_err()
            {
                old.kill().await?;
            }
            self.restart(number).await?;
        }
        Ok(())
    }

    pub(super) async fn kill_and_restart(&self, number: usize) -> Outcome {
        self.kill(number);
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.restart(number).await
    }

    /// Freezes a shop for eight seconds.
    pub(super) fn freeze(&self, number: usize) {
        let pid = {
            let mut shop = lock(&self.shops[number]);
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
    }

    pub(super) fn stop(&self) {
        for shop in &self.shops {
            let shop = lock(shop);
            shop.signal(Signal::CONT);
            shop.signal(Signal::TERM);
        }
    }
}

fn path_of(settings: Settings) -> String {
    let Settings {
        delay_ms,
        fails,
        held,
    } = settings;
    format!("/set?delay_ms={delay_ms}&fails={fails}&held={held}")
}

/// Starts a shop at an address, and waits until it is open.
async fn shop(database: &str, address: SocketAddr) -> Result<Shop, Box<dyn Error + Send + Sync>> {
    let listen = address.to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--controlled", "--listen", &listen, "--database", database])
        // Ends the child when this process ends.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("the shop has no output")?;
    let mut lines = BufReader::new(output).lines();
    let first = tokio::time::timeout(START, lines.next_line()).await??;
    let first =
        first.ok_or("the shop has not started; --shop runs it alone and prints the reason")?;
    let address = first
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next()?.parse().ok())
        .ok_or("the shop has no address")?;
    // A full pipe would block the shop.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(Shop {
        child: Some(child),
        address,
        frozen_until: None,
        is_up: true,
    })
}
