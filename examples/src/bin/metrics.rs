//! Metrics for Prometheus: a page behind Perennial, and `/metrics` beside it.
//!
//! ```text
//! cargo run -p perennial-examples --bin metrics
//! curl -s http://127.0.0.1:3000/slow http://127.0.0.1:3000/slow; curl -s http://127.0.0.1:3000/metrics
//! ```

use std::{error::Error, process::ExitCode, time::Duration};

use axum::{Router, routing::get};
use clap::Parser;
use example_common::{self as common, say};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use perennial::{Perennial, Refresh};

/// A page and its metrics.
#[derive(Parser)]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// The database.
    #[arg(long, default_value = "sqlite://metrics.db")]
    database: String,
}

/// The upper bounds of the buckets, in seconds: a histogram without buckets would be a summary,
/// which cannot be added up over processes.
const SECONDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

#[tokio::main]
async fn main() -> ExitCode {
    common::log();
    common::exit("metrics", run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    // The buckets have to be set before the site is opened, because a site describes its metrics
    // when it opens.
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?;
    let metrics = recorder.install_recorder()?;
    let listener = common::listen(&options.listen).await?;
    let site = Perennial::open(&options.database).await?;
    let slow = async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        "This page took a tenth of a second."
    };
    let refresh = Refresh::every(Duration::from_secs(10));
    let scraped = site.clone();
    let scrape = async move || {
        scraped.record_metrics();
        metrics.run_upkeep();
        metrics.render()
    };
    let app = Router::new()
        .route("/slow", get(slow).layer(site.layer(refresh)))
        .route("/metrics", get(scrape));
    say!("http://{}/slow and /metrics", listener.local_addr()?);
    let server = axum::serve(listener, app);
    server
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    site.shutdown().await;
    Ok(())
}
