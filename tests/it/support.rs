//! The shared parts of the tests: an origin that counts, a site in this process, and visitors.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use perennial::{
    Builder, Perennial, Refresh,
    locks::{Lease, LockKind, LockName, Locks},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tower::{Service, ServiceExt};

/// Returns a number of rounds: all of them if every test is to run, or else the few of `cargo test`.
pub(crate) fn rounds(all: usize, few: usize) -> usize {
    match std::env::var_os("PERENNIAL_TEST_ALL") {
        Some(_) => all,
        None => few,
    }
}

/// The longest wait of a test for one event. A longer wait means that the test hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Returns true if the database failed, or did not answer in time.
pub(crate) fn is_database(error: &perennial::Error) -> bool {
    use perennial::ErrorKind::{Database, Failing, Timeout, Unreachable};
    matches!(error.kind(), Database | Failing | Timeout | Unreachable)
}

/// Returns the name of a page's lock.
pub(crate) fn page(key: &str) -> LockName {
    LockName::of(LockKind::Page, key)
}

/// Takes a lock that is free.
pub(crate) async fn taken(locks: &Locks, name: impl Into<LockName>) -> Lease {
    let lease = locks.try_lock(name).await.expect("answers");
    lease.expect("is free")
}

/// The settings of a site in a test that is not about limits: on a slow machine the site waits for
/// its database.
pub(crate) fn patient() -> Builder {
    Perennial::builder()
        .database_patience(HANG / 2)
        .statement_timeout(HANG / 2)
}

/// A policy whose regenerating visitor waits for the new version, on a slow machine too.
pub(crate) const fn every(interval: Duration) -> Refresh {
    Refresh::every(interval).soft_timeout(HANG)
}

/// A generator: each run answers `run N of /path?query` with the status, unless held.
#[derive(Clone, Default)]
pub(crate) struct Origin(Arc<OriginState>);

#[derive(Default)]
struct OriginState {
    begun: AtomicUsize,
    ended: AtomicUsize,
    held: watch::Sender<bool>,
    status: AtomicU16,
}

impl Origin {
    /// Every run waits from now on.
    pub(crate) fn hold(&self) {
        self.0.held.send_replace(true);
    }

    /// No run waits any more.
    pub(crate) fn let_go(&self) {
        self.0.held.send_replace(false);
    }

    pub(crate) fn status(&self, status: u16) {
        self.0.status.store(status, SeqCst);
    }

    /// The number of runs that have begun.
    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(SeqCst)
    }

    /// The number of runs that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.0.ended.load(SeqCst)
    }

    pub(crate) async fn run(&self, what: &str) -> (StatusCode, String) {
        let run = self.0.begun.fetch_add(1, SeqCst) + 1;
        let status = self.0.status.load(SeqCst);
        let go = self.0.held.subscribe().wait_for(|held| !held).await.is_ok();
        assert!(go, "the sender lives as long as the origin");
        self.0.ended.fetch_add(1, SeqCst);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        (status, format!("run {run} of {what}"))
    }

    /// A router that answers every path by a run.
    pub(crate) fn router(&self) -> Router {
        async fn run(State(origin): State<Origin>, request: Request) -> Response {
            origin.run(&request.uri().to_string()).await.into_response()
        }
        Router::new().fallback(run).with_state(self.clone())
    }

    pub(crate) async fn serve(&self) -> SocketAddr {
        serve(self.router()).await
    }
}

/// A port of this machine without a listener, reserved for as long as the socket lives.
pub(crate) fn nowhere() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// Serves on a port of this machine until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Serves the pages of an origin through a layer.
pub(crate) async fn serve_origin(
    site: &Perennial,
    policy: impl Into<Refresh>,
) -> (Origin, SocketAddr) {
    let origin = Origin::default();
    let address = serve(origin.router().layer(site.layer(policy))).await;
    (origin, address)
}

/// A folder for a database, gone with the value.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("site.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    pub(crate) async fn site(&self) -> Perennial {
        patient().open(&self.url()).await.expect("opens")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) took: Duration,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The first value of a header; empty: the header is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }

    /// The N of `run N of …`.
    pub(crate) fn run(&self) -> usize {
        self.text()
            .strip_prefix("run ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|run| run.parse().ok())
            .unwrap_or_else(|| panic!("not of a run: {self:?}"))
    }
}

/// A place where visitors ask.
pub(crate) trait Ask {
    /// Sends a request; the head and the whole body of the answer.
    fn ask(self, request: Request) -> impl Future<Output = (http::response::Parts, Bytes)> + Send;
}

/// Makes a request on a connection of its own.
impl Ask for SocketAddr {
    async fn ask(self, request: Request) -> (http::response::Parts, Bytes) {
        let stream = TcpStream::connect(self).await.expect("connects");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("speaks HTTP");
        tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        let (head, body) = answer.expect("an answer").into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        (head, body)
    }
}

/// Calls a service in the same process.
impl<S> Ask for &S
where
    S: Service<Request, Response: IntoResponse + Send, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync,
{
    async fn ask(self, request: Request) -> (http::response::Parts, Bytes) {
        let Ok(response) = self.clone().oneshot(request).await;
        let (head, body) = response.into_response().into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        (head, body)
    }
}

pub(crate) async fn get(address: impl Ask, path: &str) -> Reply {
    request(address, "GET", path, &[]).await
}

pub(crate) async fn post(address: impl Ask, path: &str, form: &str) -> Reply {
    let form_type = ("content-type", "application/x-www-form-urlencoded");
    exchange(address, "POST", path, &[form_type], form).await
}

/// Makes a payment, which has this key.
pub(crate) async fn pay(address: SocketAddr, key: &str) -> Reply {
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    exchange(address, "POST", "/pay", &headers, "cents=1990").await
}

pub(crate) async fn request(
    address: impl Ask,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Reply {
    exchange(address, method, path, headers, "").await
}

pub(crate) async fn exchange(
    address: impl Ask,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let asked = Instant::now();
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned()));
    let exchange = address.ask(request.expect("a request"));
    let (head, body) = tokio::time::timeout(HANG, exchange)
        .await
        .unwrap_or_else(|_| panic!("{method} {path} hangs"));
    Reply {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
        took: asked.elapsed(),
    }
}

/// Visitors who arrive at once.
pub(crate) struct Crowd(JoinSet<Reply>);

impl Crowd {
    /// Makes `count` requests, to the addresses in turn.
    pub(crate) fn visit(
        count: usize,
        addresses: &[impl Ask + Copy + Send + 'static],
        path: &str,
    ) -> Self {
        let mut crowd = Self(JoinSet::new());
        for &address in addresses.iter().cycle().take(count) {
            crowd.another(address, path);
        }
        crowd
    }

    pub(crate) fn another(&mut self, address: impl Ask + Send + 'static, path: &str) {
        let path = path.to_owned();
        self.0.spawn(async move { get(address, &path).await });
    }

    /// Returns the first answers.
    pub(crate) async fn first(&mut self, count: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        while replies.len() < count {
            let reply = self.0.join_next().await.expect("so many have come");
            replies.push(reply.expect("an answer"));
        }
        replies
    }

    /// Returns the remaining answers.
    pub(crate) async fn rest(self) -> Vec<Reply> {
        self.0.join_all().await
    }
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < HANG, "never came about: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Polls a future this many times, at each wake-up, and drops it; `None` if it was not done by
/// then.
pub(crate) async fn cut_off<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        let poll = future.as_mut().poll(cx).map(Some);
        if left == 0 && poll.is_pending() {
            // The future is dropped without a wake-up.
            return std::task::Poll::Ready(None);
        }
        poll
    })
    .await
}
