//! Visitors: requests over a connection or to a service of this process, and crowds of them.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{body::Body, extract::Request, http::HeaderMap, response::IntoResponse};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::Instant};
use tower::{Service, ServiceExt};

use crate::HANG;

/// An answer with its whole body.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status, 200 for instance.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The time from the request to the end of the body.
    pub took: Duration,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The first value of a header; empty: the header is missing.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }

    /// The N of `run N of …`.
    pub fn run(&self) -> usize {
        self.text()
            .strip_prefix("run ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|run| run.parse().ok())
            .unwrap_or_else(|| panic!("not of a run: {self:?}"))
    }
}

/// A place where visitors ask.
pub trait Ask {
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

/// Makes a GET request.
pub async fn get(address: impl Ask, path: &str) -> Reply {
    request(address, "GET", path, &[]).await
}

/// Sends a form.
pub async fn post(address: impl Ask, path: &str, form: &str) -> Reply {
    let form_type = ("content-type", "application/x-www-form-urlencoded");
    exchange(address, "POST", path, &[form_type], form).await
}

/// Makes a payment, which has this key.
pub async fn pay(address: SocketAddr, key: &str) -> Reply {
    let headers = [
        ("idempotency-key", key),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    exchange(address, "POST", "/pay", &headers, "cents=1990").await
}

/// Makes a request without a body.
pub async fn request(
    address: impl Ask,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Reply {
    exchange(address, method, path, headers, "").await
}

/// Makes a request with a body.
pub async fn exchange(
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
pub struct Crowd(JoinSet<Reply>);

impl Crowd {
    /// Makes `count` requests, to the addresses in turn.
    pub fn visit(count: usize, addresses: &[impl Ask + Copy + Send + 'static], path: &str) -> Self {
        let mut crowd = Self(JoinSet::new());
        for &address in addresses.iter().cycle().take(count) {
            crowd.another(address, path);
        }
        crowd
    }

    /// Adds a visitor.
    pub fn another(&mut self, address: impl Ask + Send + 'static, path: &str) {
        let path = path.to_owned();
        self.0.spawn(async move { get(address, &path).await });
    }

    /// Returns the first answers.
    pub async fn first(&mut self, count: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        while replies.len() < count {
            let reply = self.0.join_next().await.expect("so many have come");
            replies.push(reply.expect("an answer"));
        }
        replies
    }

    /// Returns the remaining answers.
    pub async fn rest(self) -> Vec<Reply> {
        self.0.join_all().await
    }
}
