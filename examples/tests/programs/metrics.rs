//! A scrape of the example.

use perennial_testkit::{self, Folder, program::Program};

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
