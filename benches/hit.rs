//! A hit through the layer beside handlers without it.
//!
//! `cargo bench --bench hit` measures both sides in turns, on one thread or on a thread for each
//! processor, pinned, by the processor time of the threads. It prints, for each kind of hit, the
//! medians, their ratio (below 1: the layer is faster) and the allocations of a request.

use std::{
    hint::black_box,
    sync::{Barrier, LazyLock},
    thread,
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, Response, header},
};
use bytes::Bytes;
use perennial::Perennial;
use perennial_sides::{PAGE, SIZES, Side, Sides, map, one_of_many, request, serve, with_headers};
use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use tokio::runtime::{Handle, Runtime};

/// The amount of work; small when run as a test.
struct Extent {
    /// On each side.
    batches: usize,
    /// The requests of a batch.
    batch: usize,
    /// The number of pages of a large site.
    keys: usize,
    compressions: usize,
}

static EXTENT: LazyLock<Extent> = LazyLock::new(|| {
    if std::env::args().any(|argument| argument == "--bench") {
        Extent {
            batches: 400,
            batch: 500,
            keys: 100_000,
            compressions: 5,
        }
    } else {
        Extent {
            batches: 20,
            batch: 5,
            keys: 10,
            compressions: 1,
        }
    }
});

pub(crate) fn main() {
    let runtime = Runtime::new().expect("a runtime");
    // On tasks, as in a server.
    let _inside = runtime.enter();
    let open = |url: &str| {
        // With room for the many.
        let builder = Perennial::builder().memory_capacity(1 << 30);
        runtime.block_on(builder.open(url)).expect("opens")
    };
    let site = || open("sqlite::memory:");
    println!(
        "{:<36}  {:<26}  {:>9}  {:>9}  {:>5}  allocations",
        "a hit", "beside", "without", "layer", "ratio"
    );
    let page = |_| request(PAGE);
    for (name, size) in SIZES {
        let Sides {
            bare,
            mut layered,
            around,
        } = Sides::new(&site(), size);
        let headers = wake(&mut layered, page(0)).headers().clone();
        let same = [(with_headers(&headers, size), layered.clone())];
        compare(name, "a handler with the same headers", &same, &page);
        compare(name, BARE, &[(bare.clone(), layered)], &page);
        let name = format!("{name}, around the router");
        compare(&name, BARE, &[(bare, around)], &page);
    }
    let size = SIZES[0].1;
    let Sides {
        bare, mut layered, ..
    } = Sides::new(&site(), size);
    let processors = processors();
    let shared = vec![(bare.clone(), layered.clone()); processors.len()];
    let own: Vec<_> = processors
        .iter()
        .map(|_| {
            let Sides { bare, layered, .. } = Sides::new(&site(), size);
            (bare, layered)
        })
        .collect();
    let threads = own.len();
    compare(
        &format!("1 KiB, {threads} threads, one page"),
        BARE,
        &shared,
        &page,
    );
    compare(
        &format!("1 KiB, {threads} threads, an app each"),
        BARE,
        &own,
        &page,
    );
    let etag = wake(&mut layered, page(0)).headers()[header::ETAG].clone();
    let revalidation = |_| {
        let mut request = request(PAGE);
        let headers = request.headers_mut();
        headers.insert(header::IF_NONE_MATCH, etag.clone());
        request
    };
    let sides = [(bare, layered)];
    compare("1 KiB, a 304", BARE, &sides, &revalidation);
    // The memory that the database itself takes must not be counted.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("site.db");
    many(&open(&format!("sqlite://{}", file.display())), size);
    holes(&site);
    compressed(&site);
}

/// A page of 64 KiB with one hole beside the same page without it: what remains is what the filling costs.
fn holes(site: &dyn Fn() -> Perennial) {
    let (whole, with_hole) = perennial_sides::with_hole(&site(), &site(), SIZES[1].1);
    let mut sides = [(whole, with_hole)];
    wake(&mut sides[0].0, request(PAGE));
    wake(&mut sides[0].1, request(PAGE));
    let page = |_| request(PAGE);
    compare(
        "64 KiB with one hole, filled",
        "the same page without a hole",
        &sides,
        &page,
    );
}

const BARE: &str = "a bare handler";

/// Many pages, whose memory is not in the processor's cache, beside a handler with as many in a map.
fn many(site: &Perennial, size: usize) {
    let Sides { mut layered, .. } = Sides::new(site, size);
    let headers = wake(&mut layered, request(&one_of_many(0)))
        .headers()
        .clone();
    let before = resident();
    // The store is asked once for each.
    for number in 0..EXTENT.keys {
        wake(&mut layered, request(&one_of_many(number)));
    }
    let memory = resident().saturating_sub(before) / EXTENT.keys as u64;
    let sides = [(map(EXTENT.keys, &headers, size), layered)];
    let beside = &format!("a handler with a map of {} pages", EXTENT.keys);
    let compare = |name: &str, number: &(dyn Fn(usize) -> usize + Sync)| {
        let request = |visit| request(&one_of_many(number(visit)));
        compare(name, beside, &sides, &request);
    };
    compare("1 KiB, one of the pages", &|_| 0);
    compare("1 KiB, any of the pages", &|visit| {
        visit * 7919 % EXTENT.keys
    });
    let popular = popular(EXTENT.keys);
    compare("1 KiB, keys by Zipf's law", &|visit| {
        popular[visit % popular.len()]
    });
    let weight = site.stats().memory_bytes / EXTENT.keys as u64;
    println!("memory of a page of 1 KiB: {memory} bytes; counted for `memory_capacity`: {weight}");
}

/// Returns numbers below `count`, the number n as often as 1 / (n + 1).
fn popular(count: usize) -> Vec<usize> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (0..count)
        .map(|n| {
            sum += 1.0 / (n + 1) as f64;
            sum
        })
        .collect();
    // The fractional parts of multiples of the golden ratio: spread evenly, and the same in each
    // run.
    let visits = (0..1 << 18).map(|visit| f64::from(visit) * 0.618_033_988_749_895 % 1.0);
    let number = |part: f64| sums.partition_point(|it| *it < part * sum);
    visits.map(number).collect()
}

/// Returns the memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// A page that browsers ask for compressed: by tower-http at each request, and by the layer once.
fn compressed(site: &dyn Fn() -> Perennial) {
    use perennial::{DAY, Refresh};
    use tower::Layer;
    use tower_http::compression::CompressionLayer;

    let request = |_| {
        let mut request = request(PAGE);
        let accepted = header::HeaderValue::from_static("gzip, deflate, br");
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT_ENCODING, accepted);
        request
    };
    let shop = perennial_sides::shop(1 << 16);
    let bare = CompressionLayer::new().layer(shop.clone());
    let mut layered = shop.layer(site().layer(Refresh::every(DAY)));
    until_compressed(&mut layered, &request);
    let sides = [(bare, layered)];
    compare_in(
        EXTENT.batches / 20,
        "64 KiB, stored compressed",
        "a handler inside tower-http's `CompressionLayer`, which compresses each time",
        &sides,
        &request,
    );
    let (_, mut joined) = perennial_sides::with_hole(&site(), &site(), 1 << 16);
    until_compressed(&mut joined, &request);
    let plain = perennial::Perennial::builder().mode(perennial::Mode::Off);
    let plain = Handle::current().block_on(plain.open("sqlite::memory:"));
    let (_, each_time) = perennial_sides::with_hole(&site(), &plain.expect("opens"), 1 << 16);
    let each_time = CompressionLayer::new().layer(each_time);
    compare_in(
        EXTENT.batches / 20,
        "64 KiB with a hole, pieces joined",
        "the page made and compressed by tower-http each time",
        &[(each_time, joined)],
        &request,
    );
    for (name, size) in SIZES {
        let times = (0..EXTENT.compressions).map(|_| {
            let mut app = perennial_sides::shop(size).layer(site().layer(Refresh::every(DAY)));
            until_compressed(&mut app, &request)
        });
        let mut times: Vec<_> = times.collect();
        times.sort();
        let time = times[times.len() / 2];
        println!("{name}: {time:.0?} until the first compressed response");
    }
}

/// Returns the time from the first response, which is not compressed, to the first compressed one.
fn until_compressed<B>(
    app: &mut impl Side<B>,
    request: &dyn Fn(usize) -> Request<Body>,
) -> Duration {
    use std::time::Instant;

    wake(app, request(0));
    let begun = Instant::now();
    while !wake(app, request(0))
        .headers()
        .contains_key(header::CONTENT_ENCODING)
    {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "is not compressed"
        );
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// A request that may have to wait: the first one for a page, and one after a pause.
fn wake<B>(app: &mut impl Side<B>, request: Request<Body>) -> Response<B> {
    let response = Handle::current().block_on(app.call(request));
    response.unwrap_or_else(|never| match never {})
}

/// Prints the processor time of a request on each side, with a thread for each pair of sides.
fn compare<A, B>(
    name: &str,
    beside: &str,
    sides: &[(impl Side<A>, impl Side<B>)],
    request: &(dyn Fn(usize) -> Request<Body> + Sync),
) where
    A: http_body::Body<Data = Bytes>,
    B: http_body::Body<Data = Bytes>,
{
    compare_in(EXTENT.batches, name, beside, sides, request);
}

/// The same in fewer batches, for a side that takes a thousand times as long.
fn compare_in<A, B>(
    batches: usize,
    name: &str,
    beside: &str,
    sides: &[(impl Side<A>, impl Side<B>)],
    request: &(dyn Fn(usize) -> Request<Body> + Sync),
) where
    A: http_body::Body<Data = Bytes>,
    B: http_body::Body<Data = Bytes>,
{
    let runtime = Handle::current();
    let (processors, all_there) = (processors(), Barrier::new(sides.len()));
    let run = |(thread, (bare, layered)): (usize, &(_, _))| {
        let _inside = runtime.enter();
        pin_to(processors[thread % processors.len()]);
        let batches = (0..batches).map(|number| {
            // After a pause, the next request starts a sync. That request must not be part of the
            // measurement; a batch on a slow side takes long enough to count as a pause.
            wake(&mut Clone::clone(layered), request(0));
            let requests = || {
                let numbers = number * EXTENT.batch..(number + 1) * EXTENT.batch;
                numbers.map(request).collect()
            };
            let without = batch(bare, requests(), &all_there);
            wake(&mut Clone::clone(layered), request(0));
            (without, batch(layered, requests(), &all_there))
        });
        batches.collect::<Vec<_>>()
    };
    let times: Vec<_> = thread::scope(|scope| {
        let threads = sides
            .iter()
            .enumerate()
            .map(|side| scope.spawn(move || run(side)));
        let threads: Vec<_> = threads.collect();
        let done = threads.into_iter().map(|it| it.join().expect("ran"));
        done.flatten().collect()
    });
    // Each ratio is of two batches that ran one after the other, so that a change in the machine's
    // speed affects both.
    let ratio = |(bare, layered): &(Duration, Duration)| {
        (layered.as_secs_f64() / bare.as_secs_f64() * 1e6) as u64
    };
    let (bare, layered) = &sides[0];
    println!(
        "{name:<36}  {beside:<26}  {:>9?}  {:>9?}  {:>5.2}  {} / {}",
        median(times.iter().map(|(bare, _)| *bare)),
        median(times.iter().map(|(_, layered)| *layered)),
        median(times.iter().map(ratio)) as f64 / 1e6,
        allocations(bare, request),
        allocations(layered, request),
    );
}

fn median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort();
    values[values.len() / 2]
}

/// Returns the processor time of a request.
fn batch<B>(app: &impl Side<B>, requests: Vec<Request<Body>>, all_there: &Barrier) -> Duration
where
    B: http_body::Body<Data = Bytes>,
{
    let mut app = app.clone();
    all_there.wait();
    let start = processor_time();
    for request in requests {
        black_box(serve(&mut app, request).expect("is a hit"));
    }
    (processor_time() - start) / EXTENT.batch as u32
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processors that this process may use.
fn processors() -> Vec<usize> {
    let mine = sched_getaffinity(None).expect("a thread has processors");
    (0..CpuSet::MAX_CPU).filter(|it| mine.is_set(*it)).collect()
}

/// Keeps this thread on one processor.
fn pin_to(processor: usize) {
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).expect("is one of them");
}

/// Returns the allocations of a request, as a mean over a batch.
fn allocations<B>(app: &impl Side<B>, request: &dyn Fn(usize) -> Request<Body>) -> u64
where
    B: http_body::Body<Data = Bytes>,
{
    let mut app = app.clone();
    // After a pause a sync is due.
    wake(&mut app, request(0));
    let requests: Vec<_> = (0..EXTENT.batch).map(request).collect();
    let info = allocation_counter::measure(|| {
        for request in requests {
            serve(&mut app, request).expect("is a hit");
        }
    });
    info.count_total / EXTENT.batch as u64
}
