//! Perennial in front of any site, in any language: a reverse proxy that stores the site's pages.
//!
//! ```text
//! cargo run --release -p perennial-examples --bin gateway -- --origin http://127.0.0.1:9000 --every 10m
//! curl -i http://127.0.0.1:9070/
//! ```
//!
//! Several gateways may share a database; on a server with `--features postgres` or `mysql`, and
//! `--database` with its URL.

use std::{convert::Infallible, error::Error, net::SocketAddr, process::ExitCode, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use clap::Parser;
use example_common::{self as common, say};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use perennial::{Key, Perennial, Refresh};
use tokio::time::timeout;
use tower::Layer;

/// Keeps the pages of a site in a database and regenerates each when it is stale.
#[derive(Parser)]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:9070")]
    listen: String,
    /// The site, as in http://127.0.0.1:9000; without TLS.
    #[arg(long, value_parser = origin)]
    origin: Origin,
    /// The database, as in sqlite://site.db or postgres://user:password@host/database; several
    /// gateways may share it.
    #[arg(long, default_value = "sqlite://gateway.db")]
    database: String,
    /// The age at which a page becomes stale.
    #[arg(long, value_parser = humantime::parse_duration)]
    every: Duration,
    /// The site's own headers replace this age: CDN-Cache-Control, Cache-Control or Expires, as for
    /// any shared cache. A successful POST, PUT, DELETE … makes its page stale, and the pages in
    /// its Location and Content-Location.
    #[arg(long)]
    honour_origin: bool,
    /// The time that the request which regenerates waits for the new version.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s", conflicts_with = "in_background")]
    wait: Duration,
    /// Gives the old version at once also to the request that starts the regeneration.
    #[arg(long)]
    in_background: bool,
    /// The time by which a crashed gateway delays the next regeneration.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "15s")]
    lease: Duration,
    /// The time limit of the site's answer.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s")]
    timeout: Duration,
    /// The time after a failure without another try, in which visitors of a page without an old
    /// version get 503 [default: --every, within 3s to 30s].
    #[arg(long, value_parser = humantime::parse_duration)]
    retry_after: Option<Duration>,
    /// A cookie of visitors who have pages of their own, such as a session's: their requests go to the
    /// site as they are. May be given several times.
    #[arg(long, value_name = "NAME")]
    bypass_cookie: Vec<String>,
    /// The beginning of paths that are never stored, such as /cart: their requests go to the site as
    /// they are. May be given several times.
    #[arg(long, value_name = "PATH")]
    bypass_path: Vec<String>,
    /// A parameter of the query that pages depend on; all others are ignored. May be given several
    /// times [default: all].
    #[arg(long, value_name = "NAME")]
    query: Vec<String>,
    /// The Host that the site gets, such as www.example.org, for its links and redirects [default:
    /// that of --origin].
    #[arg(long)]
    host: Option<HeaderValue>,
    /// The time that other requests wait for a page's first version.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    follower_wait: Duration,
}

impl Options {
    fn policy(&self) -> Refresh {
        let policy = if self.honour_origin {
            Refresh::by_headers(self.every)
        } else {
            Refresh::every(self.every)
        };
        let policy = policy
            .leader_wait(self.wait)
            .lease_duration(self.lease)
            // The proxy's own limit comes first, with a 504.
            .generator_timeout(self.timeout + Duration::from_secs(1))
            .follower_wait(self.follower_wait);
        let policy = match self.retry_after {
            Some(cooldown) => policy.cooldown(cooldown),
            None => policy,
        };
        if self.in_background {
            policy.in_background()
        } else {
            policy
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    common::log();
    common::exit("gateway", run(options).await)
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let site = Perennial::open(&options.database).await?;
    let proxy = Proxy::new(
        options.origin.clone(),
        options.host.clone(),
        options.timeout,
    );
    let layer = site.layer(options.policy());
    let layer = if options.honour_origin {
        layer.invalidate_on_unsafe()
    } else {
        layer
    };
    let (cookies, paths) = (options.bypass_cookie, options.bypass_path);
    let layer = layer.bypass_if(move |parts| {
        let path = parts.uri.path();
        paths.iter().any(|begin| path.starts_with(begin))
            || cookies.iter().any(|name| has_cookie(&parts.headers, name))
    });
    let names: Vec<_> = options.query.iter().map(String::as_str).collect();
    let layer = if names.is_empty() {
        layer
    } else {
        layer.key(Key::new().query(names))
    };
    let kept = layer.layer(tower::service_fn(move |request| {
        let proxy = proxy.clone();
        async move { Ok::<_, Infallible>(proxy.forward(request).await) }
    }));
    let app = Router::new().fallback_service(kept);

    let listener = common::listen(&options.listen).await?;
    say!(
        "http://{} in front of {}, kept in {}",
        listener.local_addr()?,
        options.origin.0,
        common::without_password(&options.database)
    );
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app)
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    site.shutdown().await;
    Ok(())
}

fn has_cookie(headers: &HeaderMap, name: &str) -> bool {
    let lines = headers.get_all(header::COOKIE).iter();
    let mut cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    cookies.any(|cookie| {
        let its_name = cookie
            .split(|byte| *byte == b'=')
            .next()
            .unwrap_or_default();
        its_name.trim_ascii() == name.as_bytes()
    })
}

/// The site's scheme, authority and the beginning of each path.
#[derive(Clone)]
struct Origin(String);

fn origin(text: &str) -> Result<Origin, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    if uri.scheme_str() == Some("https") {
        return Err(
            "this gateway speaks to the site without TLS, in its own network: write http://".into(),
        );
    }
    if uri.scheme_str() != Some("http") || uri.authority().is_none() || uri.query().is_some() {
        return Err("write it as in http://127.0.0.1:9000".into());
    }
    Ok(Origin(text.trim_end_matches('/').to_owned()))
}

#[derive(Clone)]
struct Proxy {
    client: Client<HttpConnector, Body>,
    origin: Origin,
    host: Option<HeaderValue>,
    limit: Duration,
}

impl Proxy {
    fn new(origin: Origin, host: Option<HeaderValue>, limit: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(limit.min(Duration::from_secs(5))));
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            origin,
            host,
            limit,
        }
    }

    async fn forward(&self, mut request: Request) -> Response {
        let path = request.uri().path_and_query().map_or("", |it| it.as_str());
        if !path.starts_with('/') {
            return plain(StatusCode::BAD_REQUEST, &"this is no proxy for other sites");
        }
        *request.uri_mut() = match format!("{}{path}", self.origin.0).parse() {
            Ok(uri) => uri,
            Err(error) => return plain(StatusCode::BAD_REQUEST, &error),
        };
        let visitor = request
            .extensions()
            .get::<ConnectInfo<SocketAddr>>()
            .copied();
        let upgrade = upgrade_of(request.headers());
        remove_hop_by_hop(request.headers_mut());
        introduce(request.headers_mut(), visitor);
        if let Some(host) = &self.host {
            request.headers_mut().insert(header::HOST, host.clone());
        }
        let theirs = upgrade.map(|protocol| {
            request_upgrade(request.headers_mut(), protocol);
            hyper::upgrade::on(&mut request)
        });

        let mut response = match timeout(self.limit, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let cause = error
                    .source()
                    .map_or_else(|| error.to_string(), |it| it.to_string());
                tracing::warn!("{} does not answer: {cause}", self.origin.0);
                return plain(StatusCode::BAD_GATEWAY, &"the site does not answer");
            }
            Err(_) => {
                tracing::warn!("{} took longer than {:?}", self.origin.0, self.limit);
                return plain(
                    StatusCode::GATEWAY_TIMEOUT,
                    &"the site takes too long to answer",
                );
            }
        };
        match (theirs, upgrade_of(response.headers())) {
            (Some(theirs), Some(protocol))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS =>
            {
                tokio::spawn(tunnel(theirs, hyper::upgrade::on(&mut response)));
                remove_hop_by_hop(response.headers_mut());
                request_upgrade(response.headers_mut(), protocol);
            }
            _ => remove_hop_by_hop(response.headers_mut()),
        }
        response.map(Body::new)
    }
}

fn plain(status: StatusCode, message: &dyn std::fmt::Display) -> Response {
    (status, format!("{message}\n")).into_response()
}

/// Adds the visitor's address and the original host for the site.
fn introduce(headers: &mut HeaderMap, visitor: Option<ConnectInfo<SocketAddr>>) {
    if let Some(host) = headers.remove(header::HOST) {
        headers.insert("x-forwarded-host", host);
    }
    if let Some(ConnectInfo(address)) = visitor
        && let Ok(address) = HeaderValue::try_from(address.ip().to_string())
    {
        headers.append("x-forwarded-for", address);
        headers.insert("x-forwarded-proto", HeaderValue::from_static("http"));
    }
}

/// RFC 9110 §7.6.1.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in nominated {
        headers.remove(name);
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        headers.remove(name);
    }
}

/// Returns the protocol of an upgrade, except h2c, whose requests would pass the tunnel unseen (RFC
/// 9113 §3.1 has removed that upgrade).
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let names = |field, name: &str| {
        let lines = headers.get_all(field).into_iter();
        let mut members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
        members.any(|member| member.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
    };
    let asks = names(header::CONNECTION, "upgrade") && !names(header::UPGRADE, "h2c");
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

fn request_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

async fn tunnel(theirs: hyper::upgrade::OnUpgrade, ours: hyper::upgrade::OnUpgrade) {
    if let (Ok(theirs), Ok(ours)) = tokio::join!(theirs, ours) {
        let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
        // Either side may close the tunnel.
        let _ = tokio::io::copy_bidirectional(&mut theirs, &mut ours).await;
    }
}
