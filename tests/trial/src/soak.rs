//! Sites on three databases for hours: visitors, deploys, invalidations, purges, and processes and
//! servers that crash or stop for a while.

mod sample;
mod server;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use perennial::Perennial;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::{
    Result, bank,
    history::judge,
    load::{Load, WARM},
    process::{Common, Process},
    record::{self, Recorder},
    report,
};
use sample::Samples;
use server::{Kind, Server};

/// Processes of each site.
const PROCESSES: usize = 2;

/// The time between two disturbances of a site, in milliseconds.
const CALM: std::ops::Range<u64> = 2000..10_000;

/// The longest time without a server or a process, in milliseconds.
const AWAY: u64 = 8000;

/// The longest stop of a process, in milliseconds: longer than its leases.
const STOPPED: u64 = 20_000;

/// The time between two samples.
const SAMPLE: Duration = Duration::from_secs(5);

/// The longest time of a statement of the soak's own.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time after the load, in which leases end and kept responses are stored.
const REST: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct Options {
    /// The time of the soak.
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Visitors a second of each process.
    #[arg(long, default_value_t = 20)]
    rate: u32,
    /// The order of the disturbances follows from this number.
    #[arg(long)]
    seed: Option<u64>,
    /// The folder for the record, the logs and `soak.svg`.
    #[arg(long)]
    record: PathBuf,
}

pub(crate) async fn run(options: Options) -> Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}, record in {}", options.record.display());
    let soaks = Kind::ALL.map(|kind| soak(&options, kind, seed));
    let [sqlite, postgres, mariadb] = soaks;
    let (sqlite, postgres, mariadb) = tokio::join!(sqlite, postgres, mariadb);
    let (mut samples, mut sound) = (Samples::default(), true);
    for soaked in [sqlite, postgres, mariadb] {
        let (kind, load, sampled) = soaked?;
        let history = record::read(&options.record.join(kind.name()))?;
        let breaches = judge(&history);
        println!("\n## {}", kind.name());
        report::requests(&load.requests());
        report::breaches(&history, &breaches);
        sound &= breaches.is_empty();
        samples.add(sampled);
    }
    samples.print();
    std::fs::write(options.record.join("soak.svg"), samples.drawn())?;
    Ok(sound)
}

async fn soak(options: &Options, kind: Kind, seed: u64) -> Result<(Kind, Load, Samples)> {
    let folder = options.record.join(kind.name());
    std::fs::create_dir_all(&folder)?;
    if !record::read(&folder)?.is_empty() {
        let folder = folder.display();
        return Err(
            format!("{folder} has the record of another soak: name an empty folder").into(),
        );
    }
    let data = TempDir::new()?;
    let server = Server::start(kind, data.path(), &folder).await?;
    let recorder = Recorder::to(&folder.join("soak.facts"))?;
    let bank = bank::open(recorder.clone()).await?;
    let common = Common {
        database: server.url(),
        bank,
        folder: folder.clone(),
    };
    let site = Perennial::open(&server.url()).await?;
    let mut processes = Vec::new();
    for number in 0..PROCESSES {
        let name = format!("{}-{number}", kind.name());
        processes.push(Process::start(&common, name, number > 0).await?);
    }
    let fronts = processes.iter().map(|process| process.front.clone());
    let load = Load::new(fronts.collect(), recorder);
    load.warm_up().await;
    let tasks = load.begin(options.rate);
    let mut soak = Soak {
        random: fastrand::Rng::with_seed(seed ^ kind as u64),
        samples: Samples::of(kind.name()),
        sampled: None,
        revision: 1,
        site,
        server,
        processes,
    };
    let end = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    while Instant::now() < end {
        let calm = soak.random.u64(CALM);
        soak.rests(calm).await;
        soak.disturb().await?;
    }
    load.end();
    tasks.join_all().await;
    sleep(REST).await;
    load.pay_again().await;
    for process in soak.processes {
        process.kill().await?;
    }
    soak.server.stop().await?;
    Ok((kind, load, soak.samples))
}

struct Soak {
    random: fastrand::Rng,
    samples: Samples,
    sampled: Option<Instant>,
    revision: u64,
    site: Perennial,
    server: Server,
    processes: Vec<Process>,
}

impl Soak {
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

    async fn disturb(&mut self) -> Result {
        let process = self.random.usize(0..self.processes.len());
        match self.random.u32(0..10) {
            0 => {
                self.processes[process].signal(Signal::KILL)?;
                self.rests_at_most(AWAY).await;
                let revision = self.revision.to_string();
                self.processes[process].again(&revision).await?;
            }
            1 => {
                // A deploy replaces one process after the other.
                self.revision += 1;
                for process in 0..self.processes.len() {
                    self.processes[process].signal(Signal::TERM)?;
                    let revision = self.revision.to_string();
                    self.processes[process].again(&revision).await?;
                    self.rests_at_most(AWAY).await;
                }
            }
            2 => {
                self.processes[process].signal(Signal::STOP)?;
                self.rests_at_most(STOPPED).await;
                self.processes[process].signal(Signal::CONT)?;
            }
            3 => {
                self.server.kill().await?;
                self.rests_at_most(AWAY).await;
                self.server.again().await?;
            }
            4 => {
                self.server.signal(Signal::STOP)?;
                self.rests_at_most(AWAY).await;
                self.server.signal(Signal::CONT)?;
            }
            5 => {
                // New pages come all the time.
                let purged = timeout(PATIENCE, self.site.purge_prefix("/cold/"));
                drop(purged.await);
            }
            6 => {
                let key = format!("/warm/{}", self.random.u64(0..WARM));
                drop(timeout(PATIENCE, self.site.purge(&key)).await);
            }
            _ => {
                let key = format!("/warm/{}", self.random.u64(0..WARM));
                drop(timeout(PATIENCE, self.site.invalidate(&key)).await);
            }
        }
        Ok(())
    }

    async fn rests_at_most(&mut self, milliseconds: u64) {
        let time = self.random.u64(0..milliseconds);
        self.rests(time).await;
    }
}
