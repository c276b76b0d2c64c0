//! A scrape of the example, and the documents' dashboard and alerts in a Prometheus that scrapes it.

use std::{
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use perennial_testkit::{Folder, program::Program, until};
use serde_json::Value;

#[tokio::test]
async fn example_is_scraped() {
    let folder = Folder::new();
    let program = Program::start("metrics", &folder.url(), "");
    for _ in 0..3 {
        assert_eq!(
            perennial_testkit::get(program.address, "/slow")
                .await
                .status,
            200
        );
    }
    let reply = perennial_testkit::get(program.address, "/metrics").await;
    for line in [
        "# TYPE perennial_regeneration_duration_seconds histogram",
        "perennial_requests_total{result=\"hit\",detail=\"\"} 2",
        "perennial_regenerations_total{layer=\"/slow\",reason=\"miss\",outcome=\"stored\",detail=\"\"} 1",
        "perennial_regeneration_duration_seconds_bucket{layer=\"/slow\",outcome=\"ok\",le=\"0.05\"} 0",
    ] {
        assert!(reply.text().contains(line), "{line} in {}", reply.text());
    }
}

/// A Prometheus that scrapes one program each second, with the alerts of the documents.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    fn start(folder: &Path, scraped: SocketAddr) -> Option<Self> {
        let monitoring = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: ['{monitoring}/alerts.yml']\n\
             scrape_configs: [{{ job_name: shop, static_configs: [{{ targets: ['{scraped}'] }}] }}]\n"
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).expect("is written");
        // Prometheus has to be told a port. Another process could take the port before Prometheus does, but
        // the system hands out a port again only after many others.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("has one");
        drop(listener);
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, address }),
            Err(_) => {
                let all = std::env::var_os("PERENNIAL_TEST_ALL");
                assert!(
                    all.is_none(),
                    "prometheus is missing: as in apt-get install prometheus"
                );
                eprintln!("skipped: there is no prometheus");
                None
            }
        }
    }

    /// Returns `data` of an answer; null while Prometheus starts.
    async fn ask(&self, path: &str) -> Value {
        if TcpStream::connect(self.address).is_err() {
            return Value::Null;
        }
        let reply = perennial_testkit::get(self.address, path).await;
        let answer = serde_json::from_str::<Value>(reply.text());
        answer.map_or(Value::Null, |mut answer| answer["data"].take())
    }

    /// Returns the number of series that an expression has now.
    async fn series(&self, expression: &str) -> usize {
        let query = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let data = self.ask(&format!("/api/v1/query?query={query}")).await;
        data["result"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each panel of the dashboard shows something, and each alert is evaluated without an error.
#[tokio::test]
async fn dashboard_and_alerts_work_in_a_running_prometheus() {
    let folder = Folder::new();
    let program = Program::start("metrics", &folder.url(), "");
    let Some(prometheus) = Prometheus::start(folder.path(), program.address) else {
        return;
    };
    let dashboard = include_str!("../../../docs/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(dashboard).expect("is JSON");
    let panels = dashboard["panels"].as_array().expect("has panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<String> = targets
        .map(|target| {
            let expression = target["expr"].as_str().expect("has an expression");
            let expression = expression.replace("$__rate_interval", "30s");
            expression.replace("$job", "shop")
        })
        .collect();
    assert!(expressions.len() > 10, "{expressions:?}");
    for expression in &expressions {
        until(expression, async || {
            // Hits, and every ten seconds a regeneration, during which the other visitor gets the old page.
            for _ in 0..5 {
                let visit = || perennial_testkit::get(program.address, "/slow");
                tokio::join!(visit(), visit());
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            prometheus.series(expression).await > 0
        })
        .await;
    }
    until("each alert is evaluated", async || {
        let data = prometheus.ask("/api/v1/rules").await;
        let groups = data["groups"].as_array().into_iter().flatten();
        let rules: Vec<_> = groups
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        let failed = rules.iter().find(|rule| rule["health"] == "err");
        assert_eq!(failed, None);
        rules.len() >= 6 && rules.iter().all(|rule| rule["health"] == "ok")
    })
    .await;
}
