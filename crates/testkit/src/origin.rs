//! A generator that counts its runs, and servers of this machine for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use perennial::{Perennial, Refresh};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

/// A generator: each run answers `run N of /path?query` with the status, unless held.
#[derive(Clone, Default)]
pub struct Origin(Arc<OriginState>);

#[derive(Default)]
struct OriginState {
    begun: AtomicUsize,
    ended: AtomicUsize,
    held: watch::Sender<bool>,
    status: AtomicU16,
}

impl Origin {
    /// Every run waits from now on.
    pub fn hold(&self) {
        self.0.held.send_replace(true);
    }

    /// No run waits any more.
    pub fn let_go(&self) {
        self.0.held.send_replace(false);
    }

    /// Each run answers with this status from now on.
    pub fn status(&self, status: u16) {
        self.0.status.store(status, SeqCst);
    }

    /// The number of runs that have begun.
    pub fn begun(&self) -> usize {
        self.0.begun.load(SeqCst)
    }

    /// The number of runs that have ended.
    pub fn ended(&self) -> usize {
        self.0.ended.load(SeqCst)
    }

    /// Runs once, and names `what`.
    pub async fn run(&self, what: &str) -> (StatusCode, String) {
        let run = self.0.begun.fetch_add(1, SeqCst) + 1;
        let status = self.0.status.load(SeqCst);
        let go = self.0.held.subscribe().wait_for(|held| !held).await.is_ok();
        assert!(go, "the sender lives as long as the origin");
        self.0.ended.fetch_add(1, SeqCst);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        (status, format!("run {run} of {what}"))
    }

    /// Returns a router that answers a request for any path with a new run of the origin.
    pub fn router(&self) -> Router {
        async fn run(State(origin): State<Origin>, request: Request) -> Response {
            origin.run(&request.uri().to_string()).await.into_response()
        }
        Router::new().fallback(run).with_state(self.clone())
    }

    /// Serves the origin without a cache.
    pub async fn serve(&self) -> SocketAddr {
        serve(self.router()).await
    }
}

/// A port of this machine without a listener, reserved for as long as the socket lives.
pub fn nowhere() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// Serves on a port of this machine until the test ends.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Serves the pages of an origin through a layer.
pub async fn serve_origin(site: &Perennial, policy: impl Into<Refresh>) -> (Origin, SocketAddr) {
    let origin = Origin::default();
    let address = serve(origin.router().layer(site.layer(policy))).await;
    (origin, address)
}
