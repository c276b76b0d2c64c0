//! Memory, threads, file descriptors and rows over time.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    time::{Duration, Instant},
};

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use sqlx::{AnyConnection, Connection};
use tokio::time::timeout;

use crate::process::Process;
use perennial_testkit::server::{Kind, Server};

/// A figure that is sampled, with its unit.
const FIGURES: [(&str, &str); 6] = [
    ("memory", "MiB"),
    ("threads", ""),
    ("file descriptors", ""),
    ("entries", "rows"),
    ("locks", "rows"),
    ("statements", "a second"),
];

/// The size of a panel of the drawing.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 130.0;

/// The samples of each figure by process or database: the seconds since the start, and the value.
pub(super) struct Samples {
    name: String,
    begun: Instant,
    /// The last count of statements, and when it was taken.
    statements: Option<(i64, Instant)>,
    of: [BTreeMap<String, Vec<(f64, f64)>>; FIGURES.len()],
}

impl Default for Samples {
    fn default() -> Self {
        Self::of("")
    }
}

impl Samples {
    pub(super) fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            begun: Instant::now(),
            statements: None,
            of: Default::default(),
        }
    }

    fn note(&mut self, figure: usize, what: String, value: f64) {
        let sample = (self.begun.elapsed().as_secs_f64(), value);
        self.of[figure].entry(what).or_default().push(sample);
    }

    pub(super) async fn take(&mut self, processes: &[Process], server: &Server) {
        for (number, process) in processes.iter().enumerate() {
            let Some(values) = process.id().and_then(of_process) else {
                continue;
            };
            for (figure, value) in values.into_iter().enumerate() {
                self.note(figure, format!("{} {number}", self.name), value);
            }
        }
        let counts = counts(server).await.unwrap_or_default();
        for (figure, rows) in (3..5).zip(&counts) {
            self.note(figure, self.name.clone(), *rows as f64);
        }
        if let Some(count) = counts.get(2) {
            let taken = (*count, Instant::now());
            let before = self.statements.replace(taken);
            // A server that was started again counts from the beginning.
            if let Some((less, then)) = before.filter(|before| before.0 <= *count) {
                let rate = (count - less) as f64 / (taken.1 - then).as_secs_f64();
                self.note(5, self.name.clone(), rate);
            }
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        for (all, of) in self.of.iter_mut().zip(other.of) {
            all.extend(of);
        }
    }

    /// Prints the medians of the first and of the last quarter of each line.
    pub(super) fn print(&self) {
        let mut table = Table::new();
        let head = ["figure", "of", "first quarter", "last quarter", "largest"];
        table.load_style(ASCII_MARKDOWN).set_header(head);
        for ((figure, unit), of) in FIGURES.iter().zip(&self.of) {
            for (what, samples) in of {
                let quarter = samples.len().div_ceil(4);
                let median = |samples: &[(f64, f64)]| {
                    let mut values: Vec<_> = samples.iter().map(|sample| sample.1).collect();
                    values.sort_by(f64::total_cmp);
                    format!("{:.0} {unit}", values[values.len() / 2])
                };
                let largest = samples.iter().map(|sample| sample.1).fold(0.0, f64::max);
                table.add_row([
                    (*figure).to_owned(),
                    what.clone(),
                    median(&samples[..quarter]),
                    median(&samples[samples.len() - quarter..]),
                    format!("{largest:.0} {unit}"),
                ]);
            }
        }
        println!("\n{table}");
    }

    /// Draws a panel for each figure, with a line for each process or database.
    pub(super) fn drawn(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            WIDTH + 180.0,
            FIGURES.len() as f64 * (HEIGHT + 40.0)
        );
        let samples = self.of.iter().flat_map(BTreeMap::values).flatten();
        let end = samples.map(|sample| sample.0).fold(1.0, f64::max);
        for (panel, ((figure, unit), of)) in FIGURES.iter().zip(&self.of).enumerate() {
            let top = panel as f64 * (HEIGHT + 40.0) + 25.0;
            let values = of.values().flatten().map(|sample| sample.1);
            let largest = values.fold(1.0, f64::max);
            let minutes = end / 60.0;
            let _ = write!(
                svg,
                "<text x=\"10\" y=\"{}\">{figure} {unit}, up to {largest:.0}, in {minutes:.0} minutes</text>\n\
                 <rect x=\"10\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#bbb\"/>\n",
                top - 7.0
            );
            for (line, (what, samples)) in of.iter().enumerate() {
                let colour = [
                    "#1b6ca8", "#7fb3d8", "#b8541a", "#e5a983", "#3a7d44", "#97c79f",
                ];
                let colour = colour[line % colour.len()];
                // The largest value of each two pixels.
                let mut points: BTreeMap<u64, f64> = BTreeMap::new();
                for (at, value) in samples {
                    let x = (at / end * WIDTH / 2.0) as u64 * 2;
                    let largest = points.entry(x).or_default();
                    *largest = largest.max(*value);
                }
                let points = points.iter().fold(String::new(), |mut text, (x, value)| {
                    let y = top + HEIGHT * (1.0 - value / largest);
                    let _ = write!(text, "{},{y:.0} ", 10 + x);
                    text
                });
                let _ = write!(
                    svg,
                    "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>\n\
                     <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{what}</text>\n",
                    WIDTH + 20.0,
                    top + 14.0 * (line as f64 + 1.0)
                );
            }
        }
        svg + "</svg>\n"
    }
}

/// Returns a process's memory in MiB, its threads and its file descriptors.
fn of_process(id: u32) -> Option<[f64; 3]> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let files = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count();
    Some([field("VmRSS:")? / 1024.0, field("Threads:")?, files as f64])
}

/// Returns the numbers of entries, of locks, and of statements since the server's start, which SQLite does
/// not count. `None` means that the server does not answer.
async fn counts(server: &Server) -> Option<Vec<i64>> {
    let url = server.url();
    let statements = match server.kind {
        Kind::Sqlite => None,
        Kind::Postgres => Some(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'",
        ),
        Kind::MariaDb => Some(
            "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
             WHERE variable_name = 'QUESTIONS'",
        ),
    };
    let rows = [
        "SELECT count(*) FROM perennial_entry",
        "SELECT count(*) FROM perennial_lock",
    ];
    let count = async {
        let mut connection = AnyConnection::connect(&url).await?;
        let mut counts = Vec::new();
        for sql in rows.into_iter().chain(statements) {
            counts.push(sqlx::query_scalar(sql).fetch_one(&mut connection).await?);
        }
        connection.close().await?;
        Ok::<_, sqlx::Error>(counts)
    };
    timeout(Duration::from_secs(1), count).await.ok()?.ok()
}
