//! The real engine in several simulated processes over a store in memory: every fault and every order of events follows from a seed.
//!
//! `scripts/simulate N` runs N further seeds. A seed that fails is printed, with its journal and the command that repeats it.

mod ground;
mod line;
mod oracle;
mod plan;
mod process;
mod random;
mod world;

use std::{env, fmt::Write, fs, panic, path::PathBuf, process::Command, time::Instant};

use oracle::Tally;

/// Seeds of the default run.
const SEEDS: u64 = 200;

/// Seeds that failed once, each with its reason behind it.
const FAILED_ONCE: &str = include_str!("seeds.txt");

/// Faults and outcomes that happen in the default run: without one of them it proves nothing about it.
const REACHED: [&str; 31] = [
    "answers of the service to one visitor",
    "calls applied after the limit",
    "calls refused",
    "clock set back",
    "generators cancelled",
    "generators failed",
    "generators panicked",
    "invalidations done",
    "invalidations failed",
    "named lock lost",
    "named lock taken",
    "processes cut off",
    "processes of a newer revision",
    "publishes",
    "publishes refused",
    "purges done",
    "purges failed",
    "purges unheard of in time",
    "regenerate_now done",
    "regenerate_now failed",
    "regenerate_now without effect",
    "renewals",
    "store hung",
    "store refused all",
    "tries refused",
    "tries won",
    "visitors got a failure",
    "visitors got a fresh page",
    "visitors got a stale page",
    "visitors got nothing yet",
    "visitors left",
];

/// Has the seed to repeat, with its journal.
const SEED: &str = "PERENNIAL_SIM_SEED";

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

/// Panics of simulated generators are part of the simulation, and said nowhere.
fn quiet_panics() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<process::Intended>() {
            hook(info);
        }
    }));
}

/// Simulates a seed, and judges it. `Err`: what went wrong, and the end of the journal.
fn simulate(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let run = world::run(seed);
    oracle::judge(&run, tally).map_err(|(index, broken)| {
        let mut text = format!("seed {seed}: {broken}\n");
        let last = &run.journal[index.saturating_sub(60)..=index];
        for event in last {
            let _ = writeln!(text, "{event}");
        }
        let _ = write!(
            text,
            "seed {seed}: {broken}\nAll of it: {SEED}={seed} cargo test --all-features --test sim seed_is_repeated -- --nocapture"
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
    for seed in 0..10 {
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
    quiet_panics();
    let run = world::run(seed);
    for event in &run.journal {
        println!("{event}");
    }
    if let Err((_, broken)) = oracle::judge(&run, &mut Tally::new()) {
        panic!("seed {seed}: {broken}");
    }
}

/// Without an order, tokio polls the branches of `select!` in a random one, and a seed does not repeat.
#[test]
fn every_select_polls_its_branches_in_their_order() {
    let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(folder).expect("is a folder") {
            let path = file.expect("is read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("is text");
            for (_, branches) in text
                .match_indices("select! {")
                .map(|(at, it)| text.split_at(at + it.len()))
            {
                found += 1;
                let ordered = branches.trim_start().starts_with("biased;");
                assert!(ordered, "{}: a select! without `biased;`", path.display());
            }
        }
    }
    assert!(found > 0);
}

#[test]
fn promises_are_kept_whatever_happens() {
    if number(SEED).is_some() {
        return;
    }
    quiet_panics();
    let begun = Instant::now();
    let failed_once = FAILED_ONCE.lines().filter_map(|line| {
        let seed = line.split_whitespace().next()?;
        seed.parse().ok()
    });
    let first = number("PERENNIAL_SIM_FIRST").unwrap_or(0);
    let count = number(COUNT).unwrap_or(SEEDS);
    let seeds: Vec<u64> = failed_once.chain(first..first + count).collect();
    let mut tally = Tally::new();
    let mut failures = Vec::new();
    for seed in &seeds {
        if let Err(failure) = simulate(*seed, &mut tally) {
            println!("{failure}");
            failures.push(failure.lines().next().unwrap_or_default().to_owned());
            if failures.len() == 20 {
                break;
            }
        }
    }
    let took = begun.elapsed();
    println!("{} seeds in {took:.1?}:", seeds.len());
    for (what, count) in &tally {
        println!("{count:>10} {what}");
    }
    assert!(failures.is_empty(), "{failures:#?}");
    for what in REACHED {
        let reached = count < SEEDS || tally.contains_key(what);
        assert!(reached, "never reached: {what}");
    }
}
