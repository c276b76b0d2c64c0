//! The demonstration as text: two rounds, and the six stories one after another.

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, SystemTime},
};

use super::{
    Demo,
    copy::{ROUND, round_at},
    rounds,
    stories::STORIES,
};
use example_common::print;

use crate::options::Options;

/// The rounds that are shown before the stories.
const ROUNDS: u64 = 2;

/// Runs the demonstration to its end. Returns an error if a story does not go as promised.
pub(crate) async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let demo = Demo::start(options, IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
    let [a, b] = [0, 1].map(|shop| demo.shops.address(shop));
    print(format_args!(
        "One page, two processes, one database. Process A serves http://{a}/demo, process B http://{b}/demo.\n\
         The page takes {} s to generate and becomes stale every {} s, by the clock. Visitors ask each process\n\
         ten times a second. The same visitors ask a usual cache in each process: it serves the old page, too,\n\
         and joins requests, but it generates once in each process, and a restart empties it.\n",
        demo.slow.as_secs_f64(),
        ROUND.as_secs(),
    ));
    let first = round_at(SystemTime::now()) + 1;
    for number in first..first + ROUNDS {
        demo.show_round(number).await?;
    }
    let mut failed = 0;
    for (number, (title, watch)) in (1..).zip(STORIES) {
        print(format_args!(
            "Story {number}: {title}.\n  Watch for: {watch}"
        ));
        let told = demo.tell(number).await;
        let (ok, sentence) = told.map_err(|error| error.to_string())?;
        print(format_args!(
            "  {} {sentence}\n",
            if ok { "✓" } else { "✗ not as promised:" }
        ));
        failed += usize::from(!ok);
    }
    let [with, without] = [true, false].map(|perennial| demo.figures.counts(perennial));
    print(format_args!(
        "Since the start: with Perennial, visitors: {}, generations: {}; with a cache in each process, visitors: {}, generations: {}.",
        with.visitors, with.generations, without.visitors, without.generations,
    ));
    demo.shops.stop();
    match failed {
        0 => Ok(()),
        failed => Err(format!(
            "{failed} of {} stories did not go as promised",
            STORIES.len()
        )
        .into()),
    }
}

impl Demo {
    /// Prints each step of a round as soon as it is over, and the lease while it is held.
    async fn show_round(&self, number: u64) -> Result<(), Box<dyn Error>> {
        let at = SystemTime::UNIX_EPOCH + ROUND * u32::try_from(number)?;
        print(format_args!("Round at {} UTC", clock(at)));
        let (mut shown, mut is_lease_shown) = (0, false);
        while shown < 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let is_over = round_at(SystemTime::now()) > number;
            let Some(round) = self.figures.round(at) else {
                if is_over {
                    return Err("no shop answers".into());
                } else {
                    continue;
                }
            };
            let steps = rounds::steps(&round, &self.leases.all());
            if shown == 1 && !is_lease_shown && steps[1].1.starts_with("Now") {
                print(format_args!("  … {}", steps[1].1));
                is_lease_shown = true;
            }
            for (done, sentence) in steps.iter().skip(shown) {
                // The counts are those of the whole round.
                if !is_over && (!done || shown == 3) {
                    break;
                }
                print(format_args!(
                    "  {} {sentence}",
                    if *done { "✓" } else { "–" }
                ));
                shown += 1;
            }
        }
        print(format_args!(""));
        Ok(())
    }
}

/// Returns the hour, minute and second of a time.
fn clock(at: SystemTime) -> String {
    let at = humantime::format_rfc3339_seconds(at).to_string();
    at.get(11..19).unwrap_or_default().to_owned()
}
