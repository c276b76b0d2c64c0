//! The sides of a comparison: a page from a bare handler, and the same page through the layer.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header, request::Parts},
    response::Html,
    routing::{MethodRouter, get},
};
use bytes::Bytes;
use perennial::{
    DAY, Perennial, Refresh,
    layer::{Holes, RefreshService},
};
use tower::{Layer, Service};

pub const SIZES: [(&str, usize); 3] = [("1 KiB", 1 << 10), ("64 KiB", 1 << 16), ("1 MiB", 1 << 20)];

/// The path of the single page; `PAGES` is the route of the many pages.
pub const PAGE: &str = "/best-sellers";
const PAGES: &str = "/books/{number}";

pub struct Sides {
    pub bare: Router,
    /// The layer on the route.
    pub layered: Router,
    /// The layer stands around the router, which a hit does not reach.
    pub around: RefreshService<Router>,
}

impl Sides {
    pub fn new(site: &Perennial, size: usize) -> Self {
        let layer = site.layer(Refresh::every(DAY)).max_keys(usize::MAX);
        let bare = router(page(size));
        Self {
            around: layer.layer(bare.clone()),
            layered: router(page(size).layer(layer)),
            bare,
        }
    }
}

/// A handler that answers with the headers that a hit would have.
pub fn with_headers(headers: &HeaderMap, size: usize) -> Router {
    let page = (copied(headers), Bytes::from(vec![b'x'; size]));
    router(get(move || {
        let response = whole(&page);
        async { response }
    }))
}

/// Makes the response in the cheapest way.
fn whole((headers, body): &(HeaderMap, Bytes)) -> Response<Body> {
    let mut response = Response::new(Body::from(body.clone()));
    *response.headers_mut() = headers.clone();
    response
}

/// A handler with a map of its own, which has this number of pages with these headers.
pub fn map(pages: usize, headers: &HeaderMap, size: usize) -> Router {
    let body = vec![b'x'; size];
    // Each page has memory of its own, as if from a store.
    let page = |number| {
        let page = (copied(headers), Bytes::copy_from_slice(&body));
        (one_of_many(number), page)
    };
    let pages: HashMap<String, (HeaderMap, Bytes)> = (0..pages).map(page).collect();
    let pages = Arc::new(pages);
    router(get(move |uri: Uri| {
        let page = pages.get(uri.path()).map(whole);
        async { page.ok_or(StatusCode::NOT_FOUND) }
    }))
}

fn copied(headers: &HeaderMap) -> HeaderMap {
    let values = headers.iter().map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_bytes());
        (name.clone(), value.expect("is one"))
    });
    values.collect()
}

/// A handler that does nothing but answer with the page.
fn page(size: usize) -> MethodRouter {
    let body: &'static [u8] = vec![b'x'; size].leak();
    get(move || async move { ([(header::CONTENT_TYPE, "text/html")], body) })
}

/// A page of a shop through the layer: as it is, and with a greeting of the visitor.
pub fn with_hole(plain: &Perennial, site: &Perennial, size: usize) -> (Router, Router) {
    let page = shop_text(size);
    let whole = {
        let page = page.clone();
        get(async move || Html(page.clone())).layer(plain.layer(Refresh::every(DAY)))
    };
    let greeting = async |_: Parts| Ok::<_, Infallible>("Ann".to_owned());
    let layer = site.layer(Refresh::every(DAY)).hole("greeting", greeting);
    let filled = get(async move |holes: Holes| {
        let (before, after) = page.split_at(page.find("</article>").expect("is there"));
        Html(format!("{before}{}{after}", holes.text("greeting")))
    });
    (router(whole), router(filled.layer(layer)))
}

/// A typical page of a shop.
pub fn shop(size: usize) -> Router {
    let body: &'static str = shop_text(size).leak();
    router(get(async move || {
        ([(header::CONTENT_TYPE, "text/html")], body)
    }))
}

fn shop_text(size: usize) -> String {
    let books = (0..1 + size as u64 / 160).map(|book| {
        let (author, price) = (book * 7919 % 613, book * 104_729 % 9973);
        format!(
            "<article class=\"book\" id=\"b{book}\"><a href=\"/books/{book}\"><h2>The book of {author} and {price}</h2></a>\
             <p class=\"author\">by author number {author}</p><p class=\"price\">{}.{:02} EUR</p></article>\n",
            price / 100,
            price % 100,
        )
    });
    let mut shop: String = books.collect();
    shop.truncate(size);
    assert_eq!(shop.len(), size);
    shop
}

/// The service as in a server: with its state, so that nothing is created for each request.
fn router(page: MethodRouter) -> Router {
    let router = Router::new().route(PAGE, page.clone()).route(PAGES, page);
    router.with_state(())
}

pub fn one_of_many(number: usize) -> String {
    PAGES.replace("{number}", &number.to_string())
}

pub fn request(path: &str) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    request
}

/// A service that answers the requests of the measurement.
pub trait Side<B>:
    Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Sync
{
}

impl<B, S> Side<B> for S where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Sync
{
}

/// Makes a request, and returns the length of its body; `None` if the request has to wait.
#[inline(never)]
pub fn serve<B>(app: &mut impl Side<B>, request: Request<Body>) -> Option<usize>
where
    B: http_body::Body<Data = Bytes>,
{
    let mut context = Context::from_waker(Waker::noop());
    let mut response = pin!(app.call(request));
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        return None;
    };
    let mut length = 0;
    let mut body = pin!(Response::into_body(response));
    while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
        length += frame.into_data().map_or(0, |data: Bytes| data.len());
    }
    Some(length)
}
