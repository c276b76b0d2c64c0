//! Sites on three databases for hours: visitors, deploys, invalidations, purges, and faults of
//! processes, servers, disks, networks and clocks.

mod disk;
mod disturb;
mod sample;
mod server;
mod wire;

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use perennial::Perennial;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    Result, bank,
    clock::Clock,
    history::judge,
    load::Load,
    process::{Process, Settings},
    record::{self, Recorder},
    report,
};
use disk::Disk;
use disturb::Site;
use sample::Samples;
use server::{Kind, Server};
use wire::Wire;

/// Processes of each site.
const PROCESSES: usize = 2;

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
    /// A folder in which `sqlite`, `postgres` and `mariadb` are disks that may be filled and frozen.
    #[arg(long)]
    disks: Option<PathBuf>,
}

pub(crate) async fn run(options: Options) -> Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}, record in {}", options.record.display());
    if options.disks.is_none() {
        println!("without full and slow disks: only root can mount them");
    }
    let soaks = Kind::ALL.map(|kind| soak(&options, kind, seed));
    let [sqlite, postgres, mariadb] = soaks;
    let (sqlite, postgres, mariadb) = tokio::join!(sqlite, postgres, mariadb);
    let (mut samples, mut sound) = (Samples::default(), true);
    for soaked in [sqlite, postgres, mariadb] {
        let (kind, load, sampled, done) = soaked?;
        let history = record::read(&options.record.join(kind.name()))?;
        let breaches = judge(&history);
        println!("\n## {}", kind.name());
        let done = done.iter().map(|(what, times)| format!("{what} {times}"));
        println!("disturbances: {}\n", done.collect::<Vec<_>>().join(", "));
        report::requests(&load.requests());
        report::breaches(&history, &breaches);
        sound &= breaches.is_empty();
        samples.add(sampled);
    }
    samples.print();
    fs::write(options.record.join("soak.svg"), samples.drawn())?;
    Ok(sound)
}

type Soaked = (Kind, Load, Samples, BTreeMap<&'static str, u64>);

async fn soak(options: &Options, kind: Kind, seed: u64) -> Result<Soaked> {
    let folder = options.record.join(kind.name());
    fs::create_dir_all(&folder)?;
    if !record::read(&folder)?.is_empty() {
        let folder = folder.display();
        return Err(
            format!("{folder} has the record of another soak: name an empty folder").into(),
        );
    }
    // The server's user may read its clock in here, and write to its data.
    let work = TempDir::new()?;
    fs::set_permissions(work.path(), Permissions::from_mode(0o755))?;
    let disks = options.disks.as_ref();
    let disk = disks.map(|disks| Disk::at(disks.join(kind.name())));
    let data = disk.as_ref().map_or(work.path(), Disk::folder).join("data");
    fs::create_dir(&data)?;
    let clock = |name: &str| Clock::new(work.path().join(name));
    let server_clock = clock("server")?;
    let server = Server::start(kind, &data, &folder, server_clock.clone()).await?;
    let recorder = Recorder::to(&folder.join("soak.facts"))?;
    let bank = bank::open(recorder.clone()).await?;
    let (mut processes, mut wires, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..PROCESSES {
        let wire = Wire::to(server.port).await?;
        let name = format!("{}-{number}", kind.name());
        // A database without a server has the clocks of its processes, which must be one.
        let clock = match kind {
            Kind::Sqlite => server_clock.clone(),
            _ => clock(&name)?,
        };
        let settings = Settings {
            database: server.url_at(wire.address.port()),
            bank,
            folder: folder.clone(),
            clock: clock.clone(),
        };
        processes.push(Process::start(&settings, name, number > 0).await?);
        wires.push(wire);
        clocks.extend(clock);
    }
    let fronts = processes.iter().map(|process| process.front.clone());
    let load = Load::new(fronts.collect(), recorder);
    load.warm_up().await;
    let tasks = load.begin(options.rate);
    let mut site = Site {
        random: fastrand::Rng::with_seed(seed ^ kind as u64),
        samples: Samples::of(kind.name()),
        sampled: None,
        done: BTreeMap::new(),
        revision: 1,
        handle: Perennial::open(&server.url()).await?,
        kind,
        server,
        server_clock,
        behind: 0,
        disk,
        processes,
        wires,
        clocks,
    };
    let end = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    while Instant::now() < end {
        site.suffers().await?;
    }
    load.end();
    tasks.join_all().await;
    sleep(REST).await;
    load.pay_again().await;
    for process in site.processes {
        process.kill().await?;
    }
    site.server.kill().await?;
    Ok((kind, load, site.samples, site.done))
}
