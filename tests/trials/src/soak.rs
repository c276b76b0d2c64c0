//! Sites on three databases for hours: visitors, deploys, invalidations, purges, and faults of
//! processes, servers, disks, networks and clocks.

mod disk;
mod disturb;
mod sample;

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use perennial::Perennial;
use rustix::process::Signal;

use crate::{
    Result, bank,
    history::judge,
    load::Load,
    process::{Process, Settings},
    record::{self, Recorder},
    report,
};
use disk::Disk;
use disturb::Site;
use perennial_testkit::{
    clock::Clock,
    server::{Kind, Server, shared_folder},
    wire::Wire,
};
use sample::Samples;

/// Processes of each site.
const PROCESSES: usize = 2;

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
    let (sqlite, postgres, mariadb) = tokio::join!(
        soak(&options, Kind::Sqlite, seed),
        soak(&options, Kind::Postgres, seed),
        soak(&options, Kind::MariaDb, seed),
    );
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
    record::begin(&folder)?;
    // The database server runs as another user of the system. It reads its clock from this folder,
    // and writes its data into it.
    let work = shared_folder()?;
    let disks = options.disks.as_ref();
    let disk = disks.map(|disks| Disk::at(disks.join(kind.name())));
    let data = disk.as_ref().map_or(work.path(), Disk::folder).join("data");
    fs::create_dir(&data)?;
    let clock = |name: &str| Clock::new(&work.path().join(name));
    let server_clock = clock("server")?;
    let settings: &[_] = match kind {
        // The server's write-ahead log must not fill the small disk.
        Kind::Postgres => &["-c", "max_wal_size=128MB"],
        Kind::Sqlite | Kind::MariaDb => &[],
    };
    let environment = server_clock.as_ref().map(Clock::text).unwrap_or_default();
    let log = folder.join("server.txt");
    let server = Server::start_in(kind, &data, log, settings, environment).await?;
    let recorder = Recorder::to(&folder.join("soak.facts"))?;
    let bank = bank::open(recorder.clone()).await?;
    let (mut processes, mut wires, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..PROCESSES {
        let name = format!("{}-{number}", kind.name());
        let (database, clock) = match kind {
            // SQLite uses the clocks of the processes that open the file, so all of them must have
            // the same clock.
            Kind::Sqlite => (server.url(), server_clock.clone()),
            Kind::Postgres | Kind::MariaDb => {
                let wire = Wire::before(&server.url()).await;
                let database = wire.url(&server.url());
                wires.push(wire);
                (database, clock(&name)?)
            }
        };
        let settings = Settings {
            database,
            bank,
            folder: folder.clone(),
            clock: clock.clone(),
        };
        processes.push(Process::start(&settings, name, number > 0).await?);
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
    load.end(tasks).await;
    for process in site.processes {
        process.kill().await?;
    }
    site.server.end(Signal::KILL).await?;
    Ok((kind, load, site.samples, site.done))
}
