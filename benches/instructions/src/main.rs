//! Hits for a count of instructions, which does not depend on the load of the machine: see
//! `scripts/instructions`.

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use perennial::Perennial;
use perennial_sides::{PAGE, SIZES, Side, Sides, one_of_many, request, serve};
use tokio::runtime::{Handle, Runtime};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let side = arguments.next().unwrap_or_default();
    let Some(requests) = arguments.next().and_then(|number| number.parse().ok()) else {
        println!(
            "for scripts/instructions: bare, layer, around or cold, and the number of requests"
        );
        return;
    };
    let runtime = Runtime::new().expect("a runtime");
    let site = runtime
        .block_on(Perennial::open("sqlite::memory:"))
        .expect("opens");
    let _inside = runtime.enter();
    let (_, size) = SIZES[0];
    let Sides {
        bare,
        layered,
        around,
    } = Sides::new(&site, size);
    match &*side {
        "bare" => run(&bare, requests, page),
        "layer" => run(&layered, requests, page),
        "around" => run(&around, requests, page),
        "cold" => run(&layered, requests, |number| one_of_many(number % PAGES)),
        _ => panic!("bare, layer, around or cold"),
    }
}

/// More pages than a thread has headers of.
const PAGES: usize = 200;

fn page(_: usize) -> String {
    PAGE.to_owned()
}

fn run<B: Body<Data = Bytes>>(app: &impl Side<B>, requests: usize, path: impl Fn(usize) -> String) {
    let mut app = app.clone();
    // The first request for each page is not counted.
    for number in 0..PAGES {
        let _ = Handle::current().block_on(app.call(request(&path(number))));
    }
    // Within the first second of its life, a page has no `Last-Modified`, because it may change
    // once more within that second. The usual hit comes later.
    std::thread::sleep(Duration::from_secs(1));
    for number in 0..requests {
        let request = || request(&path(number));
        if serve(&mut app, request()).is_none() {
            // A request after a pause, which syncs.
            let _ = Handle::current().block_on(app.call(request()));
        }
    }
}
