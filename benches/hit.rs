//! A hit through the layer beside the same router with a handler that answers with the same static body.
//!
//! `cargo bench --bench hit` prints criterion's figures of each side, then both sides measured in turns: the medians, their
//! ratio (below 1: the layer is faster) and the allocations of a request.

use std::{
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, header},
    routing::{MethodRouter, get},
};
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use http_body::Body as _;
use perennial::{DAY, Perennial, Refresh};
use tokio::runtime::Runtime;
use tower::Service;

const SIZES: [(&str, usize); 2] = [("1 KiB", 1 << 10), ("1 MiB", 1 << 20)];
/// Batches on each side, and the requests of a batch.
const BATCHES: usize = 400;
const BATCH: u32 = 500;

/// A page as a handler that does nothing else answers with it.
fn page(size: usize) -> MethodRouter {
    let body: &'static [u8] = vec![b'x'; size].leak();
    get(move || async move { ([(header::CONTENT_TYPE, "text/html")], body) })
}

struct Sides {
    bare: Router,
    layered: Router,
}

impl Sides {
    fn new(site: &Perennial, name: &str, size: usize) -> Self {
        let path = path(name);
        let layer = site.layer(Refresh::every(DAY));
        Self {
            bare: router(&path, page(size)),
            layered: router(&path, page(size).layer(layer)),
        }
    }
}

/// As a server has it: with its state, so that nothing is left to be made for each request.
fn router(path: &str, page: MethodRouter) -> Router {
    Router::new().route(path, page).with_state(())
}

fn path(name: &str) -> String {
    format!("/{}", name.replace(' ', "-"))
}

fn request(path: &str) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    request
}

/// One request and its whole body; neither side ever waits.
fn serve(app: &mut Router, request: Request<Body>) -> usize {
    let mut context = Context::from_waker(Waker::noop());
    let mut response = pin!(app.call(request));
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        panic!("not a hit");
    };
    let mut length = 0;
    let mut body = pin!(Response::into_body(response));
    while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
        length += frame.into_data().map_or(0, |data: Bytes| data.len());
    }
    length
}

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let site = runtime
        .block_on(Perennial::open("sqlite::memory:"))
        .expect("opens");
    // As a server's tasks are.
    let _inside = runtime.enter();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut table = String::new();
    for (name, size) in SIZES {
        let mut sides = Sides::new(&site, name, size);
        let path = path(name);
        // The layer's first request generates; from then on it hits. One after a longer silence asks what has been invalidated.
        let wake = |layered: &mut Router| {
            let response = runtime.block_on(layered.call(request(&path)));
            response.expect("infallible");
        };
        wake(&mut sides.layered);
        assert_eq!(serve(&mut sides.layered, request(&path)), size);

        let mut group = criterion.benchmark_group("hit");
        group.bench_function(BenchmarkId::new("bare handler", name), |bencher| {
            bencher.iter(|| serve(&mut sides.bare, request(&path)));
        });
        wake(&mut sides.layered);
        group.bench_function(BenchmarkId::new("through the layer", name), |bencher| {
            bencher.iter(|| serve(&mut sides.layered, request(&path)));
        });
        group.finish();
        wake(&mut sides.layered);
        table.push_str(&compare(name, &mut sides, &path));
    }
    println!(
        "{:>8}  {:>12}  {:>12}  {:>6}  allocations",
        "body", "bare", "layer", "ratio"
    );
    println!("{table}");
}

fn compare(name: &str, sides: &mut Sides, path: &str) -> String {
    let batch = |app: &mut Router| {
        let start = Instant::now();
        for _ in 0..BATCH {
            black_box(serve(app, request(path)));
        }
        start.elapsed() / BATCH
    };
    let mut times: Vec<_> = (0..BATCHES)
        .map(|_| (batch(&mut sides.bare), batch(&mut sides.layered)))
        .collect();
    times.sort_by_key(|(bare, _)| *bare);
    let bare = times[BATCHES / 2].0;
    times.sort_by_key(|(_, layered)| *layered);
    let layered = times[BATCHES / 2].1;
    // Neighbours in time, so that a machine whose speed drifts changes both.
    let mut ratios: Vec<_> = times
        .iter()
        .map(|(bare, layered)| layered.as_secs_f64() / bare.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let allocations = |app: &mut Router| {
        let request = request(path);
        allocation_counter::measure(|| {
            serve(app, request);
        })
        .count_total
    };
    format!(
        "{name:>8}  {bare:>12?}  {layered:>12?}  {:>6.2}  {} / {}\n",
        ratios[BATCHES / 2],
        allocations(&mut sides.bare),
        allocations(&mut sides.layered),
    )
}
