//! The tables of a trial, as Markdown.

use std::time::Duration;

use comfy_table::{Table, presets::ASCII_MARKDOWN};

use crate::{
    history::{Breach, Fact, Micros, Promise},
    load::{Kind, Request},
    trial::Seen,
};

fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head);
    table
}

fn seconds(micros: Micros) -> String {
    format!("{:.1} s", micros as f64 / 1e6)
}

pub(crate) fn trial(seen: &Seen) {
    if !seen.faults.is_empty() {
        faults(seen);
    }
    requests(&seen.requests);
    let count = |status: fn(u16) -> bool| {
        let statuses = seen.payments.iter();
        statuses.filter(|it| status(**it)).count()
    };
    println!();
    println!(
        "payments sent again at the end: {} answered as before or made now, {} of unknown outcome (409), {} others",
        count(|status| status == 200),
        count(|status| status == 409),
        count(|status| status != 200 && status != 409),
    );
}

/// Prints a row for each fault: the outage, and the slowest requests of the time up to the next
/// fault.
fn faults(seen: &Seen) {
    println!();
    let mut rows = table([
        "fault",
        "writes failed for",
        "slowest warm",
        "stale",
        "cold",
        "payment",
        "failed",
    ]);
    for (index, fault) in seen.faults.iter().enumerate() {
        let end = seen
            .faults
            .get(index + 1)
            .map_or(Micros::MAX, |next| next.at);
        let outages = seen.outages.iter();
        // An outage may go on, or come back, after the freeze that caused it, while the cluster
        // recovers.
        let outages = outages.filter(|it| it.until > fault.at && it.from < end);
        let failed: Micros = outages.map(|it| it.until - it.from).sum();
        let during = |kind| {
            let requests = seen.requests.iter();
            let during = move |it: &&Request| it.kind == kind && (fault.at..end).contains(&it.from);
            requests.filter(during)
        };
        let slowest = |kind| {
            let slowest = during(kind).map(|it| it.took).max();
            format!("{} ms", slowest.unwrap_or_default().as_millis())
        };
        let pages = [Kind::Warm, Kind::Stale, Kind::Cold];
        let failures = pages.map(|kind| during(kind).filter(|it| it.failed()).count());
        rows.add_row([
            fault.name.clone(),
            seconds(failed),
            slowest(Kind::Warm),
            slowest(Kind::Stale),
            slowest(Kind::Cold),
            slowest(Kind::Payment),
            failures.iter().sum::<usize>().to_string(),
        ]);
    }
    println!("{rows}");
}

/// Prints a row for each kind of request.
pub(crate) fn requests(requests: &[Request]) {
    println!();
    let mut rows = table([
        "requests",
        "all",
        "no answer",
        "an error",
        "median",
        "99.9 %",
        "slowest",
    ]);
    for kind in [Kind::Warm, Kind::Stale, Kind::Cold, Kind::Payment] {
        let of_kind = requests.iter().filter(|it| it.kind == kind);
        let mut times: Vec<Duration> = of_kind.clone().map(|it| it.took).collect();
        times.sort();
        let at = |place: usize| {
            let time = times.get(place).copied().unwrap_or_default();
            format!("{:.1} ms", time.as_secs_f64() * 1e3)
        };
        let failed = of_kind.clone().filter(|it| it.failed()).count();
        let without_answer = of_kind.filter(|it| it.status == 0).count();
        rows.add_row([
            format!("{kind:?}").to_lowercase(),
            times.len().to_string(),
            without_answer.to_string(),
            (failed - without_answer).to_string(),
            at(times.len() / 2),
            at((times.len() * 999 / 1000).min(times.len().saturating_sub(1))),
            at(times.len().saturating_sub(1)),
        ]);
    }
    println!("{rows}");
}

/// The breaches of each promise, with the first of each.
pub(crate) fn breaches(history: &[Fact], breaches: &[Breach]) {
    println!();
    println!("{} facts judged", history.len());
    let mut rows = table(["promise", "breaches"]);
    for promise in Promise::ALL {
        let of_promise = breaches.iter().filter(|it| it.promise == promise);
        rows.add_row([promise.to_string(), of_promise.count().to_string()]);
    }
    println!("{rows}");
    for promise in Promise::ALL {
        let of_promise = breaches.iter().filter(|it| it.promise == promise);
        for breach in of_promise.take(3) {
            println!("{promise}: {}", breach.text);
        }
    }
}
