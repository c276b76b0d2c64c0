//! A stored text and a stored value, as a handler asks for them, beside moka's. `cargo run --release -- contents`
//! prints a table.

use std::{
    convert::Infallible,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use perennial::{DAY, Perennial};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 9;

/// Prints the table.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn measure() {
    println!(
        "| a hit, read as text or by reference | `moka::future::Cache::get_with` of an `Arc<String>` | `site.content` | `site.value` of a `Vec<String>` |"
    );
    println!("|---|---|---|---|");
    let site = Perennial::open("sqlite::memory:").await.expect("opens");
    for (name, size) in [
        ("1 KiB", 1 << 10),
        ("64 KiB", 64 << 10),
        ("2.7 MB", 2_700_000),
    ] {
        let text = Arc::new("é".repeat(size / 2));
        let moka = moka::future::Cache::new(1 << 30);
        let key = format!("text of {name}");
        let (mut of_moka, mut of_content, mut of_value) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            of_moka.push(
                per_call(async || {
                    let text = moka
                        .get_with_by_ref(&key, async { Arc::clone(&text) })
                        .await;
                    black_box(text.as_str().len())
                })
                .await,
            );
            of_content.push(
                per_call(async || {
                    let text = Arc::clone(&text);
                    let generate = async move || Ok::<_, Infallible>((*text).clone());
                    let content = site.content(&key, DAY, generate).await.expect("is made");
                    black_box(content.text().len())
                })
                .await,
            );
            of_value.push(
                per_call(async || {
                    let text = Arc::clone(&text);
                    let generate = async move || Ok::<_, Infallible>(vec![(*text).clone()]);
                    let key = format!("value of {name}");
                    let value = site.value(&key, DAY, generate).await.expect("is made");
                    black_box(value[0].len())
                })
                .await,
            );
        }
        println!(
            "| {name} | {:?} | {:?} | {:?} |",
            median(of_moka),
            median(of_content),
            median(of_value)
        );
    }
}

async fn per_call(call: impl AsyncFn() -> usize) -> Duration {
    // The first call generates.
    call().await;
    let begun = Instant::now();
    for _ in 0..CALLS {
        call().await;
    }
    begun.elapsed() / CALLS
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
