//! The commands that show, and change nothing.

use std::io::{self, IsTerminal, Write};

use perennial::{
    Perennial,
    entries::{Entry, EntryFilter},
    locks::{LockInfo, LockKind},
};
use perennial_admin::{Generated, Report, Verdict, rate, runs, size};
use serde_json::json;

use crate::{
    EntriesOptions, Failure, Result,
    print::{self, Colour, time},
};

/// The number of variants that an error message names.
const MAX_LISTED_VARIANTS: usize = 3;

pub(crate) async fn status(site: &Perennial, as_json: bool) -> Result {
    let report = Report::read(site).await?;
    if as_json {
        print::json(json!(report));
    } else {
        summary(report);
    }
    Ok(())
}

/// Shows the checks, the figures, the locks, the latest generations and the processes of a report.
pub(crate) fn summary(report: Report) {
    for check in &report.checks {
        let colour = match check.result {
            Verdict::Ok => Colour::Green,
            Verdict::Warning => Colour::Yellow,
            Verdict::Failure => Colour::Red,
        };
        let sign = print::coloured(&format!("{:<10}", check.result.sign()), Some(colour));
        print::line(&format!("{sign} {}", print::text(&check.text)));
        if !check.remedy.is_empty() {
            print::line(&format!("{:10} {}", "", print::text(&check.remedy)));
        }
    }
    print::line("");
    let hour = &report.last_hour;
    let ratio = hour.hit_ratio().map_or_else(String::new, |ratio| {
        let stale = hour.stale as f64 / hour.requests as f64;
        format!(
            ", {:.1} % hits, {:.1} % stale",
            100.0 * ratio,
            100.0 * stale
        )
    });
    let a_second = rate(hour.last_full_minute().requests, 60);
    let store = match report.store_capacity {
        Some(capacity) => format!(" of {}", size(capacity)),
        None => String::new(),
    };
    let is_shared = report.processes.iter().any(|process| !process.ended);
    let shared = |text: String| match is_shared {
        true => text,
        false => {
            "unknown: no process shares its figures, which `site.share_stats()` starts".to_owned()
        }
    };
    for (name, text) in [
        (
            "requests",
            shared(format!(
                "{} in the last hour{ratio}, {} waited or failed; {a_second} a second in the last full minute",
                hour.requests, hour.waited
            )),
        ),
        (
            "regenerations",
            shared(format!(
                "{} in the last hour, {} of them failed",
                hour.regenerations, hour.failures
            )),
        ),
        (
            "pages",
            format!(
                "{} stored, {} of them stale, {} in cooldown after a failure",
                report.pages,
                report.stale,
                report.failing.len()
            ),
        ),
        ("store", format!("{}{store}", size(report.stored_bytes))),
        (
            "memory",
            shared(format!(
                "{} of {} in the processes that share their figures",
                size(report.memory.bytes),
                size(report.memory.capacity)
            )),
        ),
    ] {
        print::line(&format!("{name:<14} {text}"));
    }
    for (table, bytes) in &report.tables {
        print::line(&format!("{:<14} {} in {table}", "", size(*bytes)));
    }
    if !report.held.is_empty() {
        print::line("");
        table_of_locks(report.held);
    }
    if !report.latest.is_empty() {
        print::line("");
        latest(report.latest);
    }
    let failures = report.failures.into_iter().map(|it| {
        let ago = format!("{} ago", time(it.regeneration.ago));
        [ago, it.regeneration.key, it.regeneration.error, it.process]
    });
    let failures: Vec<_> = failures.collect();
    if !failures.is_empty() {
        print::line("");
        print::table(["failed", "key", "error", "process"], failures);
    }
    let running = report.processes.into_iter().filter(|it| !it.ended);
    let rows = running.map(|it| {
        let silent_for = format!("{} ago", time(it.silent_for));
        [it.label.clone(), runs(&it), time(it.up_for), silent_for]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        print::line("");
        print::table(["process", "runs", "up for", "sign of life"], rows);
    }
}

pub(crate) async fn entries(site: &Perennial, options: &EntriesOptions, as_json: bool) -> Result {
    let mut filter = EntryFilter::new()
        .prefix(&options.prefix)
        .limit(options.limit.into());
    if let Some(tag) = &options.tag {
        filter = filter.tag(tag);
    }
    if let Some(state) = options.state {
        filter = filter.state(state);
    }
    if let Some(from) = &options.from {
        filter = filter.start_at(from);
    }
    let page = site.entries(&filter).await?;
    if as_json {
        print::json(json!(page));
        return Ok(());
    }
    if page.entries.is_empty() {
        print::line("No entry matches.");
    }
    let rows = page.entries.iter().map(|it| {
        let took = it
            .history
            .first()
            .map_or_else(String::new, |it| time(it.took));
        let age = format!("{} of {}", time(it.age), time(it.interval));
        let holder = it
            .holder
            .as_ref()
            .map_or_else(String::new, |it| it.label.clone());
        [
            it.key.clone(),
            it.state.as_str().to_owned(),
            age,
            size(it.bytes),
            took,
            it.layer.clone(),
            holder,
        ]
    });
    print::table(
        ["key", "state", "age", "size", "took", "layer", "held by"],
        rows,
    );
    if let Some(next) = page.next {
        eprintln!("There are more: --from {:?}", print::text(&next));
    }
    Ok(())
}

/// Shows the latest generations.
fn latest(generations: Vec<Generated>) {
    let rows = generations.into_iter().map(|it| {
        let (key, it) = (it.key, it.version);
        let ago = format!("{} ago", time(it.ago));
        [ago, key, it.reason.to_string(), time(it.took), it.process]
    });
    print::table(["generated", "key", "reason", "took", "process"], rows);
}

pub(crate) async fn entry(site: &Perennial, key: &str) -> Result<Entry> {
    if let Some(entry) = site.entry(key).await? {
        return Ok(entry);
    }
    let variants = variants(site, key).await?;
    if variants.is_empty() {
        return Err(missing(key));
    }
    let keys: Vec<_> = variants.iter().map(|it| format!("{:?}", it.key)).collect();
    let first = &keys[..keys.len().min(MAX_LISTED_VARIANTS)];
    let more = match keys.len() - first.len() {
        0 => String::new(),
        more => format!(", or one of {more} more"),
    };
    Err(Failure::Missing(format!(
        "{key:?} is stored in variants: write the key of one of them, {}{more}",
        first.join(" or ")
    )))
}

/// Returns the entry of this key and those of its variants, which differ in a host or a header.
pub(crate) async fn variants(site: &Perennial, key: &str) -> Result<Vec<Entry>> {
    let mut found: Vec<_> = site.entry(key).await?.into_iter().collect();
    let mut others = EntryFilter::new().prefix(format!("{key}#"));
    loop {
        let page = site.entries(&others).await?;
        found.extend(page.entries);
        match page.next {
            Some(next) => others = others.start_at(next),
            None => return Ok(found),
        }
    }
}

pub(crate) fn missing(key: &str) -> Failure {
    Failure::Missing(format!(
        "nothing is stored under {key:?}: `perennial entries` lists the keys, and `perennial explain` asks a site why a page is not stored"
    ))
}

pub(crate) async fn show(site: &Perennial, key: &str, as_json: bool) -> Result {
    let entry = entry(site, key).await?;
    if as_json {
        print::json(json!(entry));
        return Ok(());
    }
    let next = match entry.next_regeneration {
        next if next.is_zero() => "by the next request".to_owned(),
        next => format!("in {}", time(next)),
    };
    let holder = match &entry.holder {
        Some(holder) => format!("{}, for {} still", holder.label, time(entry.remaining)),
        None => "none".to_owned(),
    };
    let status = entry
        .status
        .map_or_else(|| "not stored".to_owned(), |it| it.to_string());
    let lines = [
        ("key", entry.key),
        ("state", entry.state.as_str().to_owned()),
        (
            "age",
            format!("{} of {}", time(entry.age), time(entry.interval)),
        ),
        ("next regeneration", next),
        ("status", status),
        ("size", size(entry.bytes)),
        ("layer", entry.layer),
        ("tags", entry.tags.join(", ")),
        ("revision", entry.revision.unwrap_or_default()),
        ("fence", entry.fence.to_string()),
        ("held by", holder),
    ];
    for (name, value) in lines {
        print::line(&format!(
            "{name:<18} {}",
            perennial::entries::visible(&value)
        ));
    }
    Ok(())
}

/// Writes the stored body. On a terminal, control characters are escaped, and a body that is not text is
/// refused.
pub(crate) async fn body(site: &Perennial, key: &str) -> Result {
    let stored = site
        .stored_response(key)
        .await?
        .ok_or_else(|| missing(key))?;
    let body = stored.into_body();
    if io::stdout().is_terminal() {
        let text = std::str::from_utf8(&body).map_err(|_| {
            Failure::Refused("the body is no text: redirect the output to a file".to_owned())
        })?;
        print::line(&print::text(text));
        return Ok(());
    }
    let written = io::stdout().write_all(&body);
    written.map_err(|error| Failure::Failed(format!("cannot write the body: {error}")))
}

pub(crate) async fn history(site: &Perennial, key: &str, as_json: bool) -> Result {
    let entry = entry(site, key).await?;
    if as_json {
        print::json(json!({ "key": entry.key, "history": entry.history }));
        return Ok(());
    }
    let rows = entry.history.into_iter().map(|it| {
        let ago = format!("{} ago", time(it.ago));
        let content = if it.changed { "changed" } else { "unchanged" };
        [
            ago,
            it.reason.to_string(),
            time(it.took),
            size(it.bytes),
            content.to_owned(),
            it.process,
            it.fence.to_string(),
        ]
    });
    print::table(
        [
            "began", "reason", "took", "size", "content", "process", "fence",
        ],
        rows,
    );
    Ok(())
}

pub(crate) async fn locks(site: &Perennial, kind: Option<LockKind>, as_json: bool) -> Result {
    let mut locks = site.locks().list().await?;
    locks.retain(|lock| kind.is_none_or(|kind| lock.kind == kind));
    if as_json {
        print::json(json!({ "locks": locks }));
        return Ok(());
    }
    if locks.is_empty() {
        print::line("No lock is held or in cooldown.");
        return Ok(());
    }
    table_of_locks(locks);
    Ok(())
}

fn table_of_locks(locks: Vec<LockInfo>) {
    let rows = locks.into_iter().map(|it| {
        let (label, action) = match it.holder {
            Some(holder) => (holder.label, holder.action),
            None => ("none: in cooldown".to_owned(), String::new()),
        };
        [
            it.kind.as_str().to_owned(),
            it.name,
            label,
            action,
            time(it.age),
            time(it.remaining),
            it.fence.to_string(),
        ]
    });
    print::table(
        [
            "kind", "name", "holder", "does", "since", "ends in", "fence",
        ],
        rows,
    );
}
