//! The first answer of a process and its memory, by the number of invalidated names in its
//! database: `cargo bench --bench invalidations [NAMES…]`.

use std::time::{Duration, Instant};

use perennial::{DAY, Perennial, Refresh};
use sqlx::{AssertSqlSafe, SqlitePool};

const POLICY: Refresh = Refresh::every(DAY);

fn main() {
    let counts = std::env::args()
        .skip(1)
        .filter_map(|count| count.parse().ok());
    let mut counts: Vec<u32> = counts.collect();
    if counts.is_empty() {
        // As a test, the benchmark only has to run.
        counts = if std::env::args().any(|argument| argument == "--bench") {
            vec![0, 100_000, 1_000_000, 10_000_000]
        } else {
            vec![0, 1000]
        };
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("|      names | first answer | saved | more memory | names a minute later |");
    println!("|-----------:|-------------:|------:|------------:|---------------------:|");
    for count in counts {
        runtime.block_on(measure(count));
    }
}

async fn measure(count: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    // An earlier process has made the tables and a page.
    let before = Perennial::open(&url).await.expect("opens");
    visit(&before).await;
    before.shutdown().await;
    drop(before);
    let pool = SqlitePool::connect(&url).await.expect("opens");
    let insert = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO perennial_invalidation SELECT 'tag:product-' || i, i FROM n WHERE i <= {count}"
    );
    sqlx::query(AssertSqlSafe(insert))
        .execute(&pool)
        .await
        .expect("inserts");

    let memory = resident();
    let site = Perennial::open(&url).await.expect("opens");
    let begun = Instant::now();
    visit(&site).await;
    let took = begun.elapsed();
    let more = resident().saturating_sub(memory);
    let saved: i64 = sqlx::query_scalar("SELECT count(*) FROM perennial_entry")
        .fetch_one(&pool)
        .await
        .expect("counts");
    let waited = Instant::now();
    let mut left = i64::from(count);
    while waited.elapsed() < Duration::from_secs(60) && left > i64::from(count.min(99_999)) {
        visit(&site).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        left = sqlx::query_scalar("SELECT count(*) FROM perennial_invalidation")
            .fetch_one(&pool)
            .await
            .expect("counts");
    }
    println!(
        "| {count:>10} | {:>9.0} ms | {saved:>5} | {:>8.1} MB | {left:>20} |",
        took.as_secs_f64() * 1e3,
        more as f64 / 1e6
    );
}

async fn visit(site: &Perennial) {
    let generate = || async { Ok::<_, std::io::Error>("<ol>…</ol>") };
    let content = site.content("sidebar/top-10", &POLICY, generate).await;
    content.expect("is generated");
}

/// Returns the memory of this process, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_usize) * 4096
}
