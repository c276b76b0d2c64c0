//! A site of several processes under load, with faults of its database.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use perennial::Perennial;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    Result, bank,
    faults::{Cluster, Fault, schedule},
    history::judge,
    load::{Load, Request},
    process::{Process, Settings},
    record::{self, Recorder, now},
    report,
    watch::{self, Outage, Watch},
};

#[derive(Args)]
pub(crate) struct Options {
    /// patroni, replica or galera; the cluster is up.
    #[arg(required_unless_present = "url")]
    kind: Option<String>,
    /// A database in place of a cluster: the trial then has no faults.
    #[arg(long)]
    url: Option<String>,
    /// Lets the site's processes use the cluster's second URL: any node of Galera, or PgBouncer.
    #[arg(long, requires = "kind")]
    second_url: bool,
    /// The time of load.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The faults, in place of all that the cluster may have.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// The order of the faults follows from this number.
    #[arg(long)]
    seed: Option<u64>,
    /// The processes of the site.
    #[arg(long, default_value_t = 3)]
    processes: usize,
    /// Visitors a second of each process.
    #[arg(long, default_value_t = 80)]
    rate: u32,
    /// The folder that keeps the record and the logs.
    #[arg(long)]
    record: Option<PathBuf>,
}

/// The observations of a trial, for the report.
pub(crate) struct Seen {
    pub(crate) faults: Vec<Fault>,
    pub(crate) outages: Vec<Outage>,
    pub(crate) requests: Vec<Request>,
    pub(crate) payments: Vec<u16>,
}

pub(crate) async fn run(options: Options) -> Result<bool> {
    let cluster = options.kind.as_deref().map(Cluster::new);
    let (url, watched) = match (&options.url, &cluster) {
        (Some(url), _) => (url.clone(), url.clone()),
        (None, Some(cluster)) => {
            let urls = cluster.urls().await?;
            let [first, second] = &*urls else {
                return Err(format!("two URLs are expected, and not {urls:?}").into());
            };
            let used = if options.second_url { second } else { first };
            (used.clone(), first.clone())
        }
        (None, None) => return Err("name a kind of cluster, or a --url".into()),
    };
    let kept = TempDir::new()?;
    let folder = options.record.clone();
    let folder = folder.unwrap_or_else(|| kept.path().to_owned());
    record::begin(&folder)?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!(
        "seed {seed}, database {url}, record in {}",
        folder.display()
    );

    let prepared = watch::prepare(&watched).await;
    prepared.map_err(|error| {
        let kind = options.kind.as_deref().unwrap_or("KIND");
        format!("{error}; is the cluster up? `scripts/cluster {kind} up` starts it")
    })?;
    let site = Perennial::open(&url).await?;
    // The pages may be those of an earlier trial, so they are removed. Payments have new names in
    // each trial and need no removal.
    site.purge_prefix("/").await?;
    let recorder = Recorder::to(&folder.join("trial.facts"))?;
    let bank = bank::open(recorder.clone()).await?;
    let settings = Settings {
        database: url.clone(),
        bank,
        folder: folder.clone(),
        clock: None,
    };
    let mut processes = Vec::new();
    for number in 1..=options.processes {
        // The first process waits for new versions, and the other processes serve old ones.
        let name = format!("process-{number}");
        processes.push(Process::start(&settings, name, number > 1).await?);
    }
    let fronts = processes.iter().map(|process| process.front.clone());
    let load = Load::new(fronts.collect(), recorder.clone());
    load.warm_up().await;
    let watch = Watch::default();
    let watchers = watch.begin(&watched, &site, recorder);
    let tasks = load.begin(options.rate);
    let mut faults = Vec::new();
    let suffered = match &cluster {
        Some(cluster) => suffer(&options, cluster, &watch, seed, &mut faults).await,
        None => {
            sleep(Duration::from_secs(60 * options.minutes)).await;
            Ok(())
        }
    };
    if let Err(error) = &suffered {
        println!("the faults end here: {error}");
    }
    let payments = load.end(tasks).await;
    watch.end();
    watchers.join_all().await;
    for process in processes {
        process.kill().await?;
    }
    let seen = Seen {
        faults,
        outages: watch.outages(),
        requests: load.requests(),
        payments,
    };
    let history = record::read(&folder)?;
    let breaches = judge(&history);
    report::trial(&seen);
    report::breaches(&history, &breaches);
    suffered.map(|()| breaches.is_empty())
}

/// Causes one fault after another for the time of the trial.
async fn suffer(
    options: &Options,
    cluster: &Cluster,
    watch: &Watch,
    seed: u64,
    faults: &mut Vec<Fault>,
) -> Result {
    let mut random = fastrand::Rng::with_seed(seed);
    let known = cluster.faults().await?;
    if let Some(unknown) = options.faults.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "there is no fault {unknown}; there are {}",
            known.join(", ")
        )
        .into());
    }
    let names = if options.faults.is_empty() {
        known
    } else {
        options.faults.clone()
    };
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let mut names = schedule(&names, random.fork());
    while Instant::now() < end {
        sleep(Duration::from_millis(random.u64(5000..10_000))).await;
        let Some(name) = names.next() else { break };
        println!("{name}");
        let at = now();
        faults.push(Fault {
            name: name.clone(),
            at,
        });
        cluster.suffer(&name, watch).await?;
    }
    sleep(Duration::from_secs(5)).await;
    Ok(())
}
