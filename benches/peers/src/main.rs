//! Hits of Perennial and of other caches that are Tower layers, each configured by its
//! documentation, on the same axum router.
//!
//! `cargo run --release` in this folder measures all of them in turns in one process and prints a
//! table; `cargo run --release -- serve SIDE ADDRESS` serves one over HTTP, for `scripts/bench`. The
//! other commands measure what their modules say. They are one program, together with Perennial's own
//! benchmarks in the folder above, because each further program would compile the engine's generic code again.

mod cold;
mod contents;
#[path = "../../database.rs"]
mod database;
#[path = "../../fleet.rs"]
mod fleet;
#[path = "../../hit.rs"]
mod hit;
mod sides;
#[path = "../../site.rs"]
mod site;
mod tiers;

use std::{
    convert::Infallible,
    fmt::Debug,
    pin::Pin,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use tower::{Service, ServiceBuilder};
use tower_http::compression::CompressionLayer;

use sides::{PATH, Side};

/// The length and the number of the turns of each side.
const TURN: Duration = Duration::from_millis(50);
const TURNS: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure(),
        ["serve", name, address] => serve(name, address),
        ["cold"] => cold::measure(),
        ["contents"] => contents::measure(),
        // As cargo calls them.
        ["database", "--bench"] => database::main(),
        ["fleet", "--bench"] => fleet::main(),
        ["hit", "--bench"] => hit::main(),
        ["site", "--bench"] => site::main(),
        ["tiers"] => tiers::measure(),
        _ => eprintln!(
            "usage: no argument, to measure all sides; cold, contents or tiers; database, fleet, hit or site with --bench; or serve SIDE ADDRESS, where SIDE is one of: {}, around, compressed, precompressed",
            Side::ALL.map(Side::name).join(", ")
        ),
    }
}

#[tokio::main]
async fn serve(name: &str, address: &str) {
    let size = std::env::var("SIZE").ok();
    let size = size.and_then(|size| size.parse().ok()).unwrap_or(1 << 10);
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.expect("the address is free");
    let app = match name {
        "around" => {
            let service = ServiceBuilder::new()
                .map_response(|response: Response<_>| response.map(Body::new))
                .service(sides::perennial_around(size).await);
            let serving = axum::serve(listener, tower::make::Shared::new(service));
            return serving.await.expect("serves");
        }
        "compressed" => perennial_sides::shop(1 << 16).layer(CompressionLayer::new()),
        "precompressed" => perennial_sides::shop(1 << 16).layer(sides::layer().await),
        name => {
            let side = Side::ALL.into_iter().find(|side| side.name() == name);
            let side = side.unwrap_or_else(|| panic!("there is no side {name}"));
            side.router(size).await
        }
    };
    axum::serve(listener, app).await.expect("serves");
}

#[tokio::main]
async fn measure() {
    println!("| | 1 KiB | | 64 KiB | | 1 MiB | |");
    println!("|---|---|---|---|---|---|---|");
    let mut columns = Vec::new();
    for size in [1 << 10, 1 << 16, 1 << 20] {
        let mut apps = Vec::new();
        for side in Side::ALL {
            apps.push(turns(side.router(size).await, size).await);
        }
        apps.push(turns(sides::perennial_around(size).await, size).await);
        apps.push(turns(sides::axum_response_cache_around(size), size).await);
        let mut times = vec![Vec::new(); apps.len()];
        for _ in 0..TURNS {
            for (turn, times) in apps.iter_mut().zip(&mut times) {
                times.push(turn().await);
            }
        }
        columns.push(times);
    }
    let around = [Side::Perennial, Side::AxumResponseCache];
    let around = around.map(|side| format!("{}, around the router", side.name()));
    let names = Side::ALL.map(|side| side.name().to_owned()).into_iter();
    for (number, name) in names.chain(around).enumerate() {
        let mut row = format!("| {name} |");
        for times in &columns {
            let ratio = |i: usize| times[number][i].as_secs_f64() / times[0][i].as_secs_f64();
            let ratios = (0..TURNS).map(ratio).collect();
            let times = times[number].clone();
            row += &format!(
                " {:.2?} | {:.2} |",
                median(times, Duration::cmp),
                median(ratios, f64::total_cmp)
            );
        }
        println!("{row}");
    }
}

fn median<T: Copy>(mut values: Vec<T>, by: impl FnMut(&T, &T) -> std::cmp::Ordering) -> T {
    values.sort_by(by);
    values[values.len() / 2]
}

type Measure = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Duration>>>>;

/// Returns the turns of a side, once its page is stored.
async fn turns<S, B>(mut app: S, size: usize) -> Measure
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + 'static,
    B: http_body::Body<Data = Bytes, Error: Debug> + Unpin + 'static,
{
    for _ in 0..3 {
        let response = ask(&mut app).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().contains_key(header::CONTENT_TYPE));
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes().len(), size);
        // One of the caches stores a response in a task of its own, after it has answered.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Box::new(move || {
        let app = app.clone();
        Box::pin(turn(app))
    })
}

/// Returns the time of a request, as a mean over a turn.
async fn turn<S, B>(mut app: S) -> Duration
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: Debug> + Unpin,
{
    let start = Instant::now();
    let mut requests = 0;
    while start.elapsed() < TURN {
        // The clock is read after each request, on every side, so the reading costs all sides the same.
        for _ in 0..20 {
            let mut body = ask(&mut app).await.into_body();
            while let Some(frame) = body.frame().await {
                std::hint::black_box(frame.expect("a frame"));
            }
            requests += 1;
            if start.elapsed() > TURN {
                break;
            }
        }
    }
    start.elapsed() / requests
}

async fn ask<S, B>(app: &mut S) -> Response<B>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = PATH.parse().expect("a path");
    app.call(request)
        .await
        .unwrap_or_else(|never| match never {})
}
