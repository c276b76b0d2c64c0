//! A hit through the layer beside the same router with a handler that answers with the same static
//! body.
//!
//! `cargo bench --bench hit` measures both sides in turns and prints, for each kind of hit, the
//! medians, their ratio (below 1: the layer is faster) and the allocations of a request.

mod sides;

use std::{
    hint::black_box,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{Request, Response, header},
};
use bytes::Bytes;
use perennial::Perennial;
use sides::{PAGE, SIZES, Side, Sides, one_of_many, request, serve};
use tokio::runtime::{Handle, Runtime};

/// The amount of work; small when run as a test.
struct Extent {
    /// On each side.
    batches: usize,
    /// The requests of a batch.
    batch: usize,
    /// The number of pages of a large site.
    keys: usize,
}

static EXTENT: LazyLock<Extent> = LazyLock::new(|| {
    if std::env::args().any(|argument| argument == "--bench") {
        Extent {
            batches: 400,
            batch: 500,
            keys: 100_000,
        }
    } else {
        Extent {
            batches: 3,
            batch: 5,
            keys: 10,
        }
    }
});

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    // On tasks, as in a server.
    let _inside = runtime.enter();
    let site = || {
        // With room for the many.
        let builder = Perennial::builder().memory_capacity(1 << 30);
        let site = runtime.block_on(builder.open("sqlite::memory:"));
        site.expect("opens")
    };
    println!(
        "{:<32}  {:>9}  {:>9}  {:>5}  allocations",
        "", "bare", "layer", "ratio"
    );
    let page = |_| request(PAGE);
    for (name, size) in SIZES {
        let Sides {
            bare,
            mut layered,
            around,
        } = Sides::new(&site(), size);
        compare(name, &bare, &layered, 1, &page);
        compare(
            &format!("{name}, around the router"),
            &bare,
            &around,
            1,
            &page,
        );
        if size != SIZES[0].1 {
            continue;
        }
        compare(&format!("{name}, 8 tasks"), &bare, &layered, 8, &page);
        let etag = wake(&mut layered, page(0)).headers()[header::ETAG].clone();
        let revalidation = |_| {
            let mut request = request(PAGE);
            let headers = request.headers_mut();
            headers.insert(header::IF_NONE_MATCH, etag.clone());
            request
        };
        compare(&format!("{name}, a 304"), &bare, &layered, 1, &revalidation);
        let mut one = |keys: usize, name: &str| {
            // The store is asked once for each.
            for number in 0..keys {
                wake(&mut layered, request(&one_of_many(number)));
            }
            compare(name, &bare, &layered, 1, &|_| request(&one_of_many(0)));
        };
        one(1, "1 KiB, the only key");
        one(EXTENT.keys, "1 KiB, one of 100,000 keys");
        // No page is in the processor's cache.
        let any = |number: usize| request(&one_of_many(number * 7919 % EXTENT.keys));
        compare("1 KiB, any of 100,000 keys", &bare, &layered, 1, &any);
    }
    #[cfg(feature = "compression")]
    compressed(&site());
}

/// A page that browsers ask for compressed: by tower-http at each request, and by the layer once.
#[cfg(feature = "compression")]
fn compressed(site: &Perennial) {
    use perennial::{DAY, Refresh};
    use tower::Layer;
    use tower_http::compression::CompressionLayer;

    let request = |_| {
        let mut request = request(PAGE);
        let accepted = header::HeaderValue::from_static("gzip, deflate, br, zstd");
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT_ENCODING, accepted);
        request
    };
    let shop = sides::shop();
    let bare = CompressionLayer::new().layer(shop.clone());
    let mut layered = shop.layer(site.layer(Refresh::every(DAY)));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !wake(&mut layered, request(0))
        .headers()
        .contains_key(header::CONTENT_ENCODING)
    {
        assert!(Instant::now() < deadline, "is not compressed");
        thread::sleep(Duration::from_millis(10));
    }
    compare("64 KiB, in a coding", &bare, &layered, 1, &request);
}

/// A request that may have to wait: the first one for a page, and one after a pause.
fn wake<B>(app: &mut impl Side<B>, request: Request<Body>) -> Response<B> {
    let response = Handle::current().block_on(app.call(request));
    response.unwrap_or_else(|never| match never {})
}

/// Prints the time of a request on each side, with this number of concurrent tasks.
fn compare<A, B>(
    name: &str,
    bare: &impl Side<A>,
    layered: &impl Side<B>,
    tasks: usize,
    request: &(dyn Fn(usize) -> Request<Body> + Sync),
) where
    A: http_body::Body<Data = Bytes>,
    B: http_body::Body<Data = Bytes>,
{
    // After a pause a sync is due.
    wake(&mut layered.clone(), request(0));
    let mut times: Vec<_> = (0..EXTENT.batches)
        .map(|number| {
            let requests = || {
                let numbers = number * EXTENT.batch..(number + 1) * EXTENT.batch;
                numbers.map(request).collect()
            };
            (
                batch(bare, tasks, &requests),
                batch(layered, tasks, &requests),
            )
        })
        .collect();
    // Neighbours in time, so that a drifting speed of the machine affects both.
    let mut ratios: Vec<_> = times
        .iter()
        .map(|(bare, layered)| layered.as_secs_f64() / bare.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    times.sort_by_key(|(bare, _)| *bare);
    let bare_time = times[EXTENT.batches / 2].0;
    times.sort_by_key(|(_, layered)| *layered);
    println!(
        "{name:<32}  {bare_time:>9?}  {:>9?}  {:>5.2}  {} / {}",
        times[EXTENT.batches / 2].1,
        ratios[EXTENT.batches / 2],
        allocations(bare, request),
        allocations(layered, request),
    );
}

/// The time of a request, of many by each task.
fn batch<B>(
    app: &impl Side<B>,
    tasks: usize,
    requests: &(dyn Fn() -> Vec<Request<Body>> + Sync),
) -> Duration
where
    B: http_body::Body<Data = Bytes>,
{
    let runtime = Handle::current();
    let run = || {
        let _inside = runtime.enter();
        let (mut app, requests) = (app.clone(), requests());
        let start = Instant::now();
        for request in requests {
            black_box(serve(&mut app, request).expect("is a hit"));
        }
        start.elapsed() / EXTENT.batch as u32
    };
    if tasks == 1 {
        return run();
    }
    let total: Duration = thread::scope(|scope| {
        let tasks: Vec<_> = (0..tasks).map(|_| scope.spawn(run)).collect();
        tasks.into_iter().map(|it| it.join().expect("ran")).sum()
    });
    total / tasks as u32
}

/// Returns the allocations of a request, as a mean over a batch.
fn allocations<B>(app: &impl Side<B>, request: &dyn Fn(usize) -> Request<Body>) -> u64
where
    B: http_body::Body<Data = Bytes>,
{
    let mut app = app.clone();
    let requests: Vec<_> = (0..EXTENT.batch).map(request).collect();
    let info = allocation_counter::measure(|| {
        for request in requests {
            serve(&mut app, request).expect("is a hit");
        }
    });
    info.count_total / EXTENT.batch as u64
}
