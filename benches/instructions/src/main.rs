//! Hits for a count of instructions, which does not depend on the load of the machine: see
//! `scripts/instructions`.

#[allow(dead_code, reason = "the benchmark of hits needs more of it")]
#[path = "../../sides/mod.rs"]
mod sides;

use bytes::Bytes;
use http_body::Body;
use perennial::Perennial;
use sides::{PAGE, SIZES, Side, Sides, request, serve};
use tokio::runtime::{Handle, Runtime};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let side = arguments.next().unwrap_or_default();
    let Some(requests) = arguments.next().and_then(|number| number.parse().ok()) else {
        println!("for scripts/instructions: bare, layer or around, and the number of requests");
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
        "bare" => run(&bare, requests),
        "layer" => run(&layered, requests),
        "around" => run(&around, requests),
        _ => panic!("bare, layer, or around"),
    }
}

fn run<B: Body<Data = Bytes>>(app: &impl Side<B>, requests: usize) {
    let mut app = app.clone();
    for _ in 0..requests {
        let request = || request(PAGE);
        if serve(&mut app, request()).is_none() {
            // The first request, or one after a pause, which syncs.
            let _ = Handle::current().block_on(app.call(request()));
        }
    }
}
