//! A client for HTTP on this machine.

use std::{net::SocketAddr, time::Duration};

use axum::{
    body::Bytes,
    http::{Method, Request, StatusCode, header},
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::Result;

/// The longest time of a request.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct Client(legacy::Client<HttpConnector, Empty<Bytes>>);

impl Client {
    pub(crate) fn new() -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    pub(crate) async fn get(&self, to: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
        self.send(Method::GET, to, path, None).await
    }

    /// Posts with this `Idempotency-Key`.
    pub(crate) async fn post(
        &self,
        to: SocketAddr,
        path: &str,
        key: Option<&str>,
    ) -> Result<(StatusCode, String)> {
        self.send(Method::POST, to, path, key).await
    }

    async fn send(
        &self,
        method: Method,
        to: SocketAddr,
        path: &str,
        key: Option<&str>,
    ) -> Result<(StatusCode, String)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{to}{path}"))
            // The processes serve the same site.
            .header(header::HOST, "shop.example");
        let request = match key {
            Some(key) => request.header("idempotency-key", format!("\"{key}\"")),
            None => request,
        };
        let exchange = async {
            let response = self.0.request(request.body(Empty::new())?).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        tokio::time::timeout(LIMIT, exchange)
            .await
            .map_err(|_| format!("no answer in {LIMIT:?}"))?
    }
}
