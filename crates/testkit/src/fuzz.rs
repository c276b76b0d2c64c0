//! Random input: first the inputs of a corpus, then random ones.
//!
//! An input is text in lines, so that a failure can be read, and added to its corpus as it is printed. A corpus
//! has its inputs apart by empty lines; a line that begins with `#` says where an input is from.
//!
//! A run tries as many random inputs as proptest does by default, or for the seconds in
//! `PERENNIAL_FUZZ_SECONDS`; `scripts/fuzz` runs all targets for longer.

use std::{
    env,
    fmt::Debug,
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestRunner},
};

/// The longest time of a test, in virtual time: it is over at once where everything waits.
const VIRTUAL_HANG: Duration = Duration::from_secs(3600);

/// Tries the inputs of a corpus, and then random ones. Fails with the smallest input that it finds.
pub fn lines(
    corpus: &str,
    inputs: impl Strategy<Value = Vec<String>>,
    test: impl AsyncFn(&[String]),
) {
    for input in inputs_of(corpus) {
        println!("of the corpus:\n{}", input.join("\n"));
        run(test(&input));
    }
    each(inputs.prop_map(Lines), async move |input| {
        test(&input.0).await;
    });
}

/// An input that is printed as a corpus has it.
#[derive(Clone)]
struct Lines(Vec<String>);

impl Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}\n", self.0.join("\n"))
    }
}

fn inputs_of(corpus: &str) -> Vec<Vec<String>> {
    let mut inputs = vec![Vec::new()];
    for line in corpus.lines().filter(|line| !line.starts_with('#')) {
        match (line, inputs.last_mut()) {
            ("", _) | (_, None) => inputs.push(Vec::new()),
            (line, Some(input)) => input.push(line.to_owned()),
        }
    }
    inputs.retain(|input| !input.is_empty());
    inputs
}

/// Tries random values.
pub fn each<S: Strategy<Value: Debug>>(values: S, test: impl AsyncFn(S::Value)) {
    let seconds = env::var("PERENNIAL_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("is a number"));
    let (begun, mut tried) = (Instant::now(), 0_u64);
    loop {
        // A failure prints the smallest value that fails, and needs no file.
        let config = Config {
            failure_persistence: None,
            ..Config::default()
        };
        tried += u64::from(config.cases);
        let done = TestRunner::new(config).run(&values, |value| {
            run(test(value));
            Ok(())
        });
        done.unwrap_or_else(|failure| panic!("{failure}"));
        if begun.elapsed() >= Duration::from_secs(seconds) {
            println!("{tried} random inputs in {:.0?}", begun.elapsed());
            return;
        }
    }
}

/// Runs a test in virtual time.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let test = async { tokio::time::timeout(VIRTUAL_HANG, test).await };
    let answered = runtime.expect("starts").block_on(test);
    answered.expect("no hang");
}

/// Returns the headers of lines such as `etag: "v1"`. Lines that are not headers are left out. Each character of
/// a line stands for the byte with the number of its code point.
pub fn headers(lines: &[String]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(&bytes(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Returns the bytes of a text whose characters stand for bytes.
pub fn bytes(text: &str) -> Vec<u8> {
    text.chars().filter_map(|c| u8::try_from(c).ok()).collect()
}
