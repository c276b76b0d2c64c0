//! `perennial doctor`: checks of the database and its settings, each with a remedy.

mod durability;
mod examined;
mod server;
mod triggers;

use serde_json::json;

use crate::{
    Failure, Result,
    open::Source,
    print::{self, Colour},
};

use examined::ExaminedDatabase;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The check is not for this kind of database.
    Skipped,
    Ok,
    Warning,
    Failure,
    /// The check itself failed, or took too long. Counts as a failure.
    NotChecked,
}

impl Verdict {
    /// Returns the word and the sign.
    fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Skipped => ("skipped", "–"),
            Self::Ok => ("ok", "✓"),
            Self::Warning => ("warning", "!"),
            Self::Failure => ("failure", "✗"),
            Self::NotChecked => ("not-checked", "?"),
        }
    }
}

impl Verdict {
    fn colour(self) -> Option<Colour> {
        match self {
            Self::Skipped => None,
            Self::Ok => Some(Colour::Green),
            Self::Warning | Self::NotChecked => Some(Colour::Yellow),
            Self::Failure => Some(Colour::Red),
        }
    }
}

struct Finding {
    id: &'static str,
    verdict: Verdict,
    text: String,
}

/// The checks in their order, each with its subject.
const CHECKS: [(&str, &str); 17] = [
    ("connection", "the database answers, and how fast"),
    (
        "encryption",
        "a connection that leaves this machine is encrypted",
    ),
    ("version", "the server is new enough"),
    ("tables", "Perennial's tables are there"),
    ("rights", "this role may read and change each table"),
    ("clock", "this machine's clock agrees with the database's"),
    ("role", "the server takes writes, and sessions commit them"),
    (
        "durability",
        "the faults after which the latest commits are lost",
    ),
    ("journal", "SQLite: the write-ahead log is on"),
    (
        "pooler",
        "PostgreSQL: no pooler in transaction mode between",
    ),
    ("isolation", "the isolation level of transactions"),
    ("packet", "MySQL, MariaDB: the largest packet"),
    ("encoding", "texts are stored as UTF-8"),
    ("size", "the size of each table"),
    ("locks", "no lock is held for very long"),
    (
        "triggers",
        "the triggers of each table are there, and not disabled",
    ),
    (
        "entries",
        "no page is in cooldown after a failure, and processes run one version",
    ),
];

pub(crate) async fn run(
    source: &Source,
    chosen: &[String],
    list: bool,
    strict: bool,
    as_json: bool,
) -> Result {
    if list {
        print::table(
            ["check", "about"],
            CHECKS.map(|(id, about)| [id.to_owned(), about.to_owned()]),
        );
        return Ok(());
    }
    for name in chosen {
        if !CHECKS.iter().any(|(id, _)| id == name) {
            return Err(Failure::Usage(format!(
                "there is no check {name:?}; `perennial doctor --list` lists them"
            )));
        }
    }
    let mut examined = ExaminedDatabase::open(source).await?;
    let mut findings = Vec::new();
    for (id, _) in CHECKS {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == id) {
            continue;
        }
        let checked = tokio::time::timeout(source.timeout(), examined.check(id)).await;
        let (verdict, text) = match checked {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => (Verdict::Skipped, "not for this kind of database".to_owned()),
            Ok(Err(error)) => (Verdict::NotChecked, describe(error)),
            Err(_) => (Verdict::NotChecked, "the check took too long".to_owned()),
        };
        findings.push(Finding { id, verdict, text });
    }
    let worst = findings
        .iter()
        .map(|it| it.verdict)
        .max()
        .unwrap_or(Verdict::Ok);
    if as_json {
        let findings = findings.iter().map(|it| {
            let (verdict, _) = it.verdict.shown();
            json!({ "check": it.id, "result": verdict, "text": it.text })
        });
        print::json(json!({ "checks": findings.collect::<Vec<_>>() }));
    } else {
        for Finding { id, verdict, text } in &findings {
            let (_, sign) = verdict.shown();
            let sign = print::coloured(sign, verdict.colour());
            print::line(&format!("{sign} {id:<11} {}", print::text(text)));
        }
    }
    match worst {
        Verdict::Skipped | Verdict::Ok => Ok(()),
        Verdict::Warning if !strict => Ok(()),
        _ => Err(Failure::Findings),
    }
}

fn describe(failure: Failure) -> String {
    match failure {
        Failure::Failed(why)
        | Failure::Usage(why)
        | Failure::Missing(why)
        | Failure::Refused(why) => why,
        Failure::Findings | Failure::Status(..) => "the check failed".to_owned(),
    }
}
