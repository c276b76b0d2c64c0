//! Metrics by the facade: each figure once, no series by visitors.

use std::{collections::BTreeSet, time::Duration};

use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    routing::{get, post},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use perennial::{Perennial, Refresh};
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_testing::{self, advance};

use perennial_testkit::request;

const INTERVAL: Duration = Duration::from_secs(60);

/// Returns the names and labels of all series, and the value of each.
fn scrape(site: &Perennial, handle: &PrometheusHandle) -> Vec<(String, f64)> {
    site.record_metrics();
    let text = handle.render();
    let series = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let series = series.filter_map(|line| line.rsplit_once(' '));
    series
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_figure_is_recorded_and_no_visitor_makes_a_series() {
    let recorder = PrometheusBuilder::new();
    let recorder = recorder
        .set_buckets(&[0.1, 1.0])
        .expect("has buckets")
        .build_recorder();
    let handle = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);

    let builder = Perennial::builder().memory_capacity(1 << 20);
    let site = perennial_testing::Database::new()
        .open(builder)
        .expect("opens");
    let page = async |Path(id): Path<String>| match &*id {
        "bad" => Err(StatusCode::INTERNAL_SERVER_ERROR),
        _ => Ok("page"),
    };
    let layer = site.layer(Refresh::every(INTERVAL).in_background());
    let once = IdempotencyLayer::new(&site.locks(), |_| Some(Scope::public()));
    let app = Router::new()
        .route("/p/{id}", get(page).layer(layer))
        .route("/pay", post(async || "paid").layer(once));
    for path in ["/p/a", "/p/a", "/p/b", "/p/bad"] {
        perennial_testkit::get(&app, path).await;
    }
    advance(INTERVAL + Duration::from_secs(5)).await;
    perennial_testkit::get(&app, "/p/a").await;
    for _ in 0..3 {
        let paid = request(&app, "POST", "/pay", &[("idempotency-key", "\"k\"")]).await;
        assert_eq!(paid.status, 200);
    }
    site.invalidate_tag("t").await.expect("is stored");
    site.purge_tag("gone").await.expect("is stored");
    let lease = site.locks().lock("x").await.expect("is free");
    assert!(site.locks().try_lock("x").await.expect("answers").is_none());
    lease.release().await.expect("is released");
    advance(Duration::from_secs(1)).await;

    let series = scrape(&site, &handle);
    let value = |name: &str| {
        let found = series.iter().find(|(it, _)| it == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {series:#?}"))
            .1
    };
    assert_eq!(
        value("perennial_requests_total{result=\"hit\",detail=\"\"}"),
        1.0
    );
    assert_eq!(
        value("perennial_requests_total{result=\"stale\",detail=\"\"}"),
        1.0
    );
    assert_eq!(value("perennial_stale_age_seconds_sum"), 5.0);
    let regenerations = |reason: &str, outcome: &str| {
        value(&format!(
            "perennial_regenerations_total{{layer=\"/p/{{id}}\",reason=\"{reason}\",outcome=\"{outcome}\",detail=\"\"}}"
        ))
    };
    assert_eq!(regenerations("miss", "stored"), 2.0);
    assert_eq!(regenerations("stale", "renewed"), 1.0);
    assert_eq!(regenerations("miss", "failed"), 1.0);
    assert_eq!(value("perennial_invalidations_total{scope=\"tag\"}"), 1.0);
    assert_eq!(value("perennial_invalidations_total{scope=\"purge\"}"), 1.0);
    assert_eq!(
        value("perennial_locks_total{kind=\"lock\",result=\"contended\"}"),
        1.0
    );
    assert_eq!(value("perennial_idempotent_replays_total"), 2.0);
    let publish = "operation=\"publish\",outcome=\"ok\"";
    let publish = format!("perennial_database_operation_duration_seconds_count{{{publish}}}");
    assert_eq!(value(&publish), 3.0);
    assert_eq!(value("perennial_memory_limit_bytes"), f64::from(1 << 20));
    assert_eq!(value("perennial_database_available"), 1.0);

    // Memory is full long before the last page, so this counts evictions, too.
    let names = |series: Vec<(String, f64)>| series.into_iter().map(|(name, _)| name).collect();
    let before: BTreeSet<String> = names(series);
    for n in 0..3_000 {
        perennial_testkit::get(&app, &format!("/p/{n}?q={n}")).await;
    }
    let after = scrape(&site, &handle);
    let evictions = after
        .iter()
        .find(|(name, _)| name == "perennial_memory_evictions_total");
    assert!(evictions.is_some_and(|(_, count)| *count > 1000.0));
    let new: Vec<_> = names(after).difference(&before).cloned().collect();
    assert_eq!(new, [""; 0], "series by visitors");
}
