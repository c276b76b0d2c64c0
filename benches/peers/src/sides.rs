//! The sides: the same page behind each cache.

use std::{
    convert::Infallible,
    fs::File,
    io::Write,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{HeaderValue, Request, Response, StatusCode, header},
    routing::get,
};
use axum_response_cache::CacheLayer;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use perennial::{
    Perennial, Refresh,
    layer::{RefreshLayer, RefreshService},
};
use tower::{BoxError, Layer, Service, ServiceBuilder};

pub const PATH: &str = "/best-sellers";

/// The interval of the pages: an hour, or the number of seconds in `INTERVAL`.
fn interval() -> Duration {
    let seconds = std::env::var("INTERVAL").ok();
    Duration::from_secs(seconds.map_or(3600, |seconds| seconds.parse().expect("seconds")))
}

/// The time for which a stale page may be served while it is generated.
const MAX_STALE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub enum Side {
    /// A handler that answers with the page.
    Bare,
    Perennial,
    AxumResponseCache,
    TowerHttpCache,
    /// The faster format; the default is JSON.
    Hitbox,
}

impl Side {
    pub const ALL: [Self; 5] = [
        Self::Bare,
        Self::Perennial,
        Self::AxumResponseCache,
        Self::TowerHttpCache,
        Self::Hitbox,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Perennial => "perennial",
            Self::AxumResponseCache => "axum-response-cache",
            Self::TowerHttpCache => "tower-http-cache",
            Self::Hitbox => "hitbox",
        }
    }

    pub async fn router(self, size: usize) -> Router {
        self.around(bare(size)).await
    }

    /// Returns the router with the cache around each route.
    pub async fn around(self, router: Router) -> Router {
        let router = match self {
            Self::Bare => router,
            Self::Perennial => router.layer(layer().await),
            Self::AxumResponseCache => router.layer(CacheLayer::with_lifespan(interval())),
            Self::TowerHttpCache => {
                use tower_http_cache::prelude::{CacheLayer, InMemoryBackend};
                let cache = CacheLayer::builder(InMemoryBackend::new(10_000))
                    .ttl(interval())
                    .stale_while_revalidate(MAX_STALE);
                let layers = ServiceBuilder::new()
                    .layer(HandleErrorLayer::new(failed))
                    .layer(cache.build())
                    .map_response(Synchronous::response);
                router.layer(layers)
            }
            Self::Hitbox => {
                use hitbox_http::{
                    extractors::{Method, path::PathExtractor},
                    predicates::{NeutralRequestPredicate, NeutralResponsePredicate},
                };
                let policy = hitbox::policy::PolicyConfig::builder()
                    .ttl(interval())
                    .build();
                let config = hitbox::Config::builder()
                    .request_predicate(NeutralRequestPredicate::new())
                    .response_predicate(NeutralResponsePredicate::new())
                    .extractor(Method::new().path("/{path}*"))
                    .policy(policy)
                    .build();
                let memory = hitbox_moka::MokaBackend::builder()
                    .max_entries(1000)
                    .value_format(hitbox_backend::format::BincodeFormat)
                    .build();
                let cache = hitbox_tower::Cache::builder()
                    .backend(memory)
                    .config(config);
                router.layer(cache.build())
            }
        };
        router.with_state(())
    }
}

/// A handler that answers with a page. With a file `GENERATIONS`, the handler takes 300 ms and adds a
/// line to the file.
fn bare(size: usize) -> Router {
    let body: &'static [u8] = vec![b'x'; size].leak();
    let generations = std::env::var("GENERATIONS").ok();
    // One of the caches stores nothing without a Cache-Control. nginx and Varnish take the two times
    // from here.
    let control = format!(
        "max-age={}, stale-while-revalidate={}",
        interval().as_secs(),
        MAX_STALE.as_secs()
    );
    let control = HeaderValue::try_from(control).expect("is a value");
    let page = get(async move || {
        if let Some(file) = &generations {
            let mut file = File::options()
                .append(true)
                .create(true)
                .open(file)
                .expect("opens");
            file.write_all(b"generated\n").expect("writes");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html")),
            (header::CACHE_CONTROL, control),
        ];
        (headers, body)
    });
    Router::new().route(PATH, page)
}

/// The layer with a database in memory, or with the one in `DATABASE`.
pub async fn layer() -> RefreshLayer {
    let database = std::env::var("DATABASE");
    let database = database.as_deref().unwrap_or("sqlite::memory:");
    let site = Perennial::open(database).await.expect("opens");
    site.layer(Refresh::every(interval()))
}

/// The layer around the router, which a hit does not reach.
pub async fn perennial_around(size: usize) -> RefreshService<Router> {
    layer().await.layer(bare(size).with_state(()))
}

/// axum-response-cache, the fastest of the others, also around the router.
pub fn axum_response_cache_around(
    size: usize,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone {
    CacheLayer::with_lifespan(interval()).layer(bare(size).with_state(()))
}

async fn failed(error: BoxError) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// A body for tower-http-cache, which does not take axum's.
pub struct Synchronous(Mutex<Body>);

impl Synchronous {
    fn response(response: Response<Body>) -> Response<Self> {
        response.map(|body| Self(Mutex::new(body)))
    }
}

impl http_body::Body for Synchronous {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let body = self.0.get_mut().expect("not poisoned");
        Pin::new(body).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().expect("not poisoned").size_hint()
    }
}
