//! What happens to a site in a soak.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use perennial::Perennial;
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::{disk::Disk, sample::Samples};
use crate::{
    Result,
    load::{WARM, popular},
    process::Process,
};
use perennial_testkit::{
    clock::Clock,
    server::{Kind, Server},
    wire::{State, Wire},
};

/// The time between two disturbances, in milliseconds.
const CALM: std::ops::Range<u64> = 2000..10_000;

/// The longest time without a server or a process, in milliseconds.
const AWAY: u64 = 8000;

/// The longest stop of a process or of its network, in milliseconds: longer than its leases.
const STOPPED: u64 = 20_000;

/// The furthest that a process's clock is from the machine's, in seconds.
const AHEAD: i64 = 3600;

/// The step of a database's clock, in seconds. Each process of a server reads its clock's file at
/// another time within a second, so that for this second its connections have different clocks: a
/// step is shorter than each lease.
const STEP: i64 = 1;

/// The time between two samples.
const SAMPLE: Duration = Duration::from_secs(5);

/// The longest time of a statement of the soak's own.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum What {
    ProcessKilled,
    ProcessStopped,
    Deployed,
    ServerKilled,
    ServerStopped,
    DiskFull,
    DiskSlow,
    NetworkCut,
    NetworkSilent,
    ClockOfProcess,
    ClockOfDatabase,
    PurgedByPrefix,
    Purged,
    Invalidated,
}

impl What {
    const ALL: [Self; 14] = [
        Self::ProcessKilled,
        Self::ProcessStopped,
        Self::Deployed,
        Self::ServerKilled,
        Self::ServerStopped,
        Self::DiskFull,
        Self::DiskSlow,
        Self::NetworkCut,
        Self::NetworkSilent,
        Self::ClockOfProcess,
        Self::ClockOfDatabase,
        Self::PurgedByPrefix,
        Self::Purged,
        Self::Invalidated,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ProcessKilled => "process killed",
            Self::ProcessStopped => "process stopped",
            Self::Deployed => "deployed",
            Self::ServerKilled => "server killed",
            Self::ServerStopped => "server stopped",
            Self::DiskFull => "disk full",
            Self::DiskSlow => "disk slow",
            Self::NetworkCut => "network cut",
            Self::NetworkSilent => "network silent",
            Self::ClockOfProcess => "process's clock set",
            Self::ClockOfDatabase => "database's clock set back",
            Self::PurgedByPrefix => "purged by prefix",
            Self::Purged => "purged",
            Self::Invalidated => "invalidated",
        }
    }
}

/// A site with its database, and what may happen to them.
pub(super) struct Site {
    pub(super) random: fastrand::Rng,
    pub(super) samples: Samples,
    pub(super) sampled: Option<Instant>,
    /// How often each disturbance happened.
    pub(super) done: BTreeMap<&'static str, u64>,
    pub(super) revision: u64,
    /// The soak's own view of the site.
    pub(super) handle: Perennial,
    pub(super) server: Server,
    /// `None` means that libfaketime is not installed.
    pub(super) server_clock: Option<Clock>,
    /// How far the database's clock is behind the machine's, in seconds.
    pub(super) behind: i64,
    /// `None` means that the database has no disk of its own.
    pub(super) disk: Option<Disk>,
    pub(super) processes: Vec<Process>,
    pub(super) wires: Vec<Wire>,
    pub(super) clocks: Vec<Clock>,
}

impl Site {
    /// Lets one disturbance happen after a calm time.
    pub(super) async fn suffers(&mut self) -> Result {
        let calm = self.random.u64(CALM);
        self.rests(calm).await;
        let possible: Vec<_> = What::ALL
            .into_iter()
            .filter(|what| self.may_be(*what))
            .collect();
        let what = *self.random.choice(&possible).expect("pages can be purged");
        *self.done.entry(what.name()).or_default() += 1;
        self.happens(what).await
    }

    fn may_be(&self, what: What) -> bool {
        let has_server = self.server.kind != Kind::Sqlite;
        match what {
            What::ServerKilled | What::ServerStopped | What::NetworkCut | What::NetworkSilent => {
                has_server
            }
            What::ClockOfProcess => has_server && !self.clocks.is_empty(),
            What::ClockOfDatabase => self.server_clock.is_some(),
            What::DiskFull | What::DiskSlow => self.disk.is_some(),
            _ => true,
        }
    }

    async fn happens(&mut self, what: What) -> Result {
        let process = self.random.usize(0..self.processes.len());
        match what {
            What::ProcessKilled => {
                self.processes[process].signal(Signal::KILL)?;
                self.rests_at_most(AWAY).await;
                let revision = self.revision.to_string();
                self.processes[process].again(&revision).await?;
            }
            What::ProcessStopped => {
                self.processes[process].signal(Signal::STOP)?;
                self.rests_at_most(STOPPED).await;
                self.processes[process].signal(Signal::CONT)?;
            }
            What::Deployed => {
                // One process after the other.
                self.revision += 1;
                for process in 0..self.processes.len() {
                    self.processes[process].signal(Signal::TERM)?;
                    let revision = self.revision.to_string();
                    self.processes[process].again(&revision).await?;
                    self.rests_at_most(AWAY).await;
                }
            }
            What::ServerKilled => {
                self.server.end(Signal::KILL).await?;
                self.rests_at_most(AWAY).await;
                self.server.again().await?;
            }
            What::ServerStopped => {
                self.server.signal(Signal::STOP)?;
                self.rests_at_most(AWAY).await;
                self.server.signal(Signal::CONT)?;
            }
            What::DiskFull => {
                if let Some(disk) = &self.disk {
                    disk.fill()?;
                }
                self.rests_at_most(AWAY).await;
                if let Some(disk) = &self.disk {
                    disk.empties()?;
                }
                // Some servers end on a full disk.
                self.server.again().await?;
            }
            What::DiskSlow => {
                let time = Duration::from_millis(self.random.u64(0..AWAY));
                if let Some(disk) = &self.disk {
                    disk.is_slow(time).await?;
                }
            }
            What::NetworkCut => self.wire_is(process, State::Cut, AWAY).await,
            What::NetworkSilent => self.wire_is(process, State::Silent, STOPPED).await,
            What::ClockOfProcess => {
                let ahead = self.random.i64(-AHEAD..=AHEAD);
                self.clocks[process].set(ahead)?;
            }
            What::ClockOfDatabase => {
                // If the clock were set forward, leases would end before their time, and no lock
                // that depends on a clock can withstand that. So the clock is only set back.
                self.behind += STEP;
                if let Some(clock) = &self.server_clock {
                    clock.set(-self.behind)?;
                }
            }
            What::PurgedByPrefix => {
                // New pages come all the time.
                drop(timeout(PATIENCE, self.handle.purge_prefix("/cold/")).await);
            }
            What::Purged => {
                drop(timeout(PATIENCE, self.handle.purge(&self.page())).await);
            }
            What::Invalidated => {
                drop(timeout(PATIENCE, self.handle.invalidate(&self.page())).await);
            }
        }
        Ok(())
    }

    fn page(&self) -> String {
        format!("/warm/{}", popular(WARM))
    }

    /// Lets the network of a process be in this state for a while, or that of all processes.
    async fn wire_is(&mut self, process: usize, state: State, at_most: u64) {
        let wires = if self.random.bool() {
            0..self.wires.len()
        } else {
            process..process + 1
        };
        for wire in &self.wires[wires] {
            wire.set(state);
        }
        self.rests_at_most(at_most).await;
        for wire in &self.wires {
            wire.set(State::Open);
        }
    }

    /// Waits, and takes a sample when one is due.
    async fn rests(&mut self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            if self.sampled.is_none_or(|last| last.elapsed() >= SAMPLE) {
                self.sampled = Some(Instant::now());
                self.samples.take(&self.processes, &self.server).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn rests_at_most(&mut self, milliseconds: u64) {
        let time = self.random.u64(0..milliseconds);
        self.rests(time).await;
    }
}
