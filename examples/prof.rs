//! tmp
use axum::{
    Router,
    body::Body,
    http::{Request, Response, header},
    routing::get,
};
use bytes::Bytes;
use http_body::Body as _;
use perennial::{DAY, Perennial, Refresh};
use std::{
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
};
use tower::Service;
fn request(path: &str) -> Request<Body> {
    let mut r = Request::new(Body::empty());
    *r.uri_mut() = path.parse().expect("p");
    r
}
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
    let rt = tokio::runtime::Runtime::new().expect("rt");
    let body: &'static [u8] = vec![b'x'; 1024].leak();
    let page = get(move || async move { ([(header::CONTENT_TYPE, "text/html")], body) });
    let mut app = Router::new().route("/page", page.clone());
    if std::env::args().nth(1).as_deref() == Some("layer") {
        let site = rt.block_on(Perennial::open("sqlite::memory:")).expect("o");
        app = Router::new().route("/page", page.layer(site.layer(Refresh::every(DAY))));
        rt.block_on(app.call(request("/page"))).expect("x");
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let mut app: Router = app.with_state(());
    let n: usize = std::env::args()
        .nth(2)
        .and_then(|n| n.parse().ok())
        .unwrap_or(10000);
    let t = std::time::Instant::now();
    for _ in 0..n {
        black_box(serve(&mut app, request("/page")));
    }
    println!("{:?}", t.elapsed() / n as u32);
}
