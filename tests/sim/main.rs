//! The real engine in several simulated processes over a store in memory: every fault and every
//! order of events follows from a seed.
//!
//! `scripts/simulate N` runs N further seeds. A failing seed is printed, with its journal and the
//! command that repeats the seed.

mod ground;
mod jobs;
mod line;
mod oracle;
mod plan;
mod process;
mod random;
mod world;

use std::{
    cell::Cell,
    env,
    fmt::Write,
    panic,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use ground::{OfKey, lock};
use oracle::Tally;

/// Seeds of the default run.
const SEEDS: u64 = 200;

/// Seeds that failed once, each followed by its reason.
const FAILED_ONCE: &str = include_str!("seeds.txt");

/// The faults and outcomes of the default run. A run without one of them proves nothing about it.
const REACHED: [&str; 54] = [
    "answers of the service to one visitor",
    "callers left",
    "calls applied after a minute",
    "calls applied after the limit",
    "calls refused",
    "clock set back",
    "exclusive requests refused",
    "exclusive requests served",
    "generators begun without a lease",
    "generators cancelled",
    "generators failed",
    "generators panicked",
    "idempotent requests answered",
    "idempotent requests begun",
    "idempotent requests in progress",
    "idempotent requests of unknown outcome",
    "idempotent responses repeated",
    "invalidations done",
    "invalidations failed",
    "locks waited for and taken",
    "locks waited for in vain",
    "named lock lost",
    "named lock taken",
    "processes cut off",
    "processes left alone",
    "processes of a newer revision",
    "publishes",
    "publishes refused",
    "purges done",
    "purges failed",
    "invalidations whose callers have left",
    "purges unheard of in time",
    "regenerations on request done",
    "regenerations on request failed",
    "regenerations on request without effect",
    "renewals",
    "repeated tries won",
    "store hung",
    "store refused writes",
    "store refused all",
    "tries refused",
    "tries won",
    "visitors got a failure",
    "visitors got a fresh page",
    "visitors got a stale page",
    "visitors after a pause",
    "visitors got nothing yet",
    "visitors left",
    "work begun once",
    "work begun until it is done",
    "work done",
    "work found done",
    "work not begun or failed",
    "work that the database did not let begin",
];

/// Has the seed to repeat; the journal of the seed is printed.
const SEED: &str = "PERENNIAL_SIM_SEED";

/// Has the number of a key beside a seed: only the events of this key are printed.
const KEY: &str = "PERENNIAL_SIM_KEY";

/// Has the number of seeds to run, and `PERENNIAL_SIM_FIRST` the first one.
const COUNT: &str = "PERENNIAL_SIM_COUNT";

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number")),
    )
}

thread_local! {
    /// On this thread a panic has happened that is not part of the simulation.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Panics of simulated generators are part of the simulation, and are not printed. Any other panic
/// fails the seed, also in a task of the engine, where tokio catches the panic.
fn watch_panics() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<process::Intended>() {
            PANICKED.set(true);
            hook(info);
        }
    }));
}

/// Simulates a seed and judges it. An error is the failure, with the end of the journal.
fn simulate(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let run = world::run(seed);
    if PANICKED.take() {
        return Err(format!("seed {seed}: a task of the engine panicked\n"));
    }
    oracle::judge(&run, tally).map_err(|(index, broken)| {
        let mut text = format!("seed {seed}: {broken}\n");
        let last = &run.journal[index.saturating_sub(60)..=index];
        for event in last {
            let _ = writeln!(text, "{event}");
        }
        let _ = write!(
            text,
            "seed {seed}: {broken}\nAll of it: {SEED}={seed} cargo test --all-features --test sim seed_is_repeated -- --nocapture\n\
             Of one key: the same with {KEY}=0"
        );
        text
    })
}

#[test]
fn one_seed_gives_the_same_journal_in_two_processes() {
    let journal = |seed: u64| {
        let program = env::current_exe().expect("has a path");
        let mut child = Command::new(program);
        child.args(["--exact", "seed_is_repeated", "--nocapture"]);
        let output = child.env(SEED, seed.to_string()).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("is text");
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(" "))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    for seed in 0..3 {
        let [first, second] = [journal(seed), journal(seed)];
        assert!(first.len() > 100, "{first:?}");
        for (line, (a, b)) in first.iter().zip(&second).enumerate() {
            assert_eq!(a, b, "seed {seed}, line {line}");
        }
        assert_eq!(first.len(), second.len());
    }
}

#[test]
fn seed_is_repeated() {
    let Some(seed) = number(SEED) else {
        return;
    };
    watch_panics();
    let run = world::run(seed);
    let mut of_key = number(KEY).map(|key| {
        let key = usize::try_from(key).expect("fits");
        let resource = run.ground.plan.resources.get(key);
        let resource = resource.unwrap_or_else(|| panic!("the seed has no key {key}"));
        OfKey::new(key, resource)
    });
    for event in &run.journal {
        if of_key.as_mut().is_none_or(|of_key| of_key.concerns(event)) {
            println!("{event}");
        }
    }
    if let Err((_, broken)) = oracle::judge(&run, &mut Tally::new()) {
        panic!("seed {seed}: {broken}");
    }
}

#[test]
fn promises_are_kept_whatever_happens() {
    if number(SEED).is_some() {
        return;
    }
    watch_panics();
    let begun = Instant::now();
    let failed_once = FAILED_ONCE.lines().filter_map(|line| {
        let seed = line.split_whitespace().next()?;
        seed.parse().ok()
    });
    let first = number("PERENNIAL_SIM_FIRST").unwrap_or(0);
    let count = number(COUNT).unwrap_or(SEEDS);
    let seeds: Vec<u64> = failed_once.chain(first..first + count).collect();
    let (tally, failures) = simulate_all(&seeds);
    println!("{} seeds in {:.1?}:", seeds.len(), begun.elapsed());
    for (what, count) in &tally {
        println!("{count:>10} {what}");
    }
    assert!(failures.is_empty(), "{failures:#?}");
    for what in REACHED {
        let reached = count < SEEDS || tally.contains_key(what);
        assert!(reached, "never reached: {what}");
    }
}

/// Simulates seeds on all cores; each world is alone on its thread. Stops after 20 failures.
fn simulate_all(seeds: &[u64]) -> (Tally, Vec<String>) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let mut tally = Tally::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Relaxed)) {
            let Err(failure) = simulate(*seed, &mut tally) else {
                continue;
            };
            println!("{failure}");
            let mut failures = lock(&failures);
            failures.push(failure.lines().next().unwrap_or_default().to_owned());
            if failures.len() == 20 {
                next.store(seeds.len(), Relaxed);
            }
        }
        tally
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let tallies = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|tally| tally.expect("does not panic"))
            .collect::<Vec<_>>()
    });
    let mut all = Tally::new();
    for (what, count) in tallies.into_iter().flatten() {
        *all.entry(what).or_default() += count;
    }
    (all, failures.into_inner().expect("no thread panicked"))
}
