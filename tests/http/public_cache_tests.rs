//! The public HTTP cache tests (https://cache-tests.fyi), through a gateway with a refresh layer.
//!
//! `PERENNIAL_TEST_CACHE_TESTS` names the folder of the npm package `http-cache-tests`, which
//! `scripts/cache-tests` installs. Without it, the test is skipped, unless `PERENNIAL_TEST_ALL` is
//! set.
//!
//! `public_cache_tests/expected.txt` has the result of each test. If a result changes for good, look at
//! why, and let `PERENNIAL_UPDATE=1` write the file again.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    env, fs,
    path::Path,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use perennial::{Perennial, Refresh};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::Command,
    sync::Mutex,
};
use tower::Layer;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/public_cache_tests");

/// One request of a visitor. The tests' origin answers by the visitor's headers, so this gateway
/// hands them to the generator, as no real gateway may.
///
/// The service runs twice for the first request whose response is not stored, and the tests count
/// what reaches the origin. So the second run gets the response of the first one.
#[derive(Clone)]
struct Visit {
    headers: HeaderMap,
    answer: Arc<Mutex<Option<Response<Bytes>>>>,
}

/// Sends requests to the origin at this URL.
#[derive(Clone)]
struct Origin {
    client: Client<HttpConnector, Body>,
    url: String,
}

impl Origin {
    async fn forward(self, mut request: Request) -> Response {
        let visit = request.extensions_mut().remove::<Visit>();
        let Visit { headers, answer } = visit.expect("each request is a visit");
        let mut answer = answer.lock().await;
        if let Some(response) = answer.take() {
            return response.map(Body::from);
        }
        *request.headers_mut() = headers;
        let path = request.uri().path_and_query().expect("has a path");
        *request.uri_mut() = format!("{}{path}", self.url).parse().expect("a URI");
        for name in [header::CONNECTION, HeaderName::from_static("keep-alive")] {
            request.headers_mut().remove(name);
        }
        let Ok(response) = self.client.request(request).await else {
            return StatusCode::BAD_GATEWAY.into_response();
        };
        let (mut head, body) = response.into_parts();
        // The body is no longer in chunks.
        head.headers.remove(header::TRANSFER_ENCODING);
        match body.collect().await {
            Ok(body) => {
                let response = Response::from_parts(head, body.to_bytes());
                *answer = Some(response.clone());
                response.map(Body::from)
            }
            Err(_) => StatusCode::BAD_GATEWAY.into_response(),
        }
    }
}

/// Starts a gateway in front of an origin and returns its URL.
async fn gateway(origin: String, folder: &Path) -> String {
    let database = format!("sqlite://{}", folder.join("gateway.db").display());
    // The long limits keep a busy machine from serving a stale page merely because the database, or a
    // permit, took too long.
    let builder = Perennial::builder()
        .database_patience(Duration::from_secs(30))
        .max_regenerations(1000);
    let site = builder.open(&database).await.expect("opens");
    // A default of one second: several tests expect that a cache keeps nothing for long by itself.
    let policy = Refresh::by_headers(Duration::from_secs(1))
        .leader_wait(Duration::from_secs(5))
        .cooldown(Duration::ZERO);
    let layer = site
        .layer(&policy)
        .share_extension::<Visit>()
        .invalidate_on_unsafe();
    // The origin closes each connection that has been idle for five seconds, possibly while the next request
    // is on its way. So no connection is reused.
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build_http();
    let origin = Origin {
        client,
        url: origin,
    };
    let service = layer.layer(tower::service_fn(move |request| {
        let origin = origin.clone();
        async move { Ok::<_, Infallible>(origin.forward(request).await) }
    }));
    let introduce = async |mut request: Request, next: Next| {
        let visit = Visit {
            headers: request.headers().clone(),
            answer: Arc::default(),
        };
        request.extensions_mut().insert(visit);
        next.run(request).await
    };
    let app = Router::new()
        .fallback_service(service)
        .layer(middleware::from_fn(introduce));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("has one"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// The tests' results by their ids: the kind and the result of each, and the message of a failure.
type Results = BTreeMap<String, (String, String)>;

fn results(text: &str) -> Results {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let results = lines.map(|line| {
        let mut words = line.split('\t');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (id, kind, result) = (word(), word(), word());
        (id, (format!("{kind}\t{result}"), word()))
    });
    results.collect()
}

fn count(results: &Results, result: &str) -> usize {
    let found = results.values().filter(|(it, _)| it == result);
    found.count()
}

/// Returns what has another result than expected, by the ids of the tests.
fn differences(expected: &Results, found: &Results) -> BTreeMap<String, String> {
    let ids = expected.keys().chain(found.keys());
    let differences = ids.filter_map(|id| {
        let [was, is] = [expected, found].map(|all| all.get(id).cloned().unwrap_or_default());
        let line = format!("{} became {} {}", was.0, is.0, is.1);
        (was.0 != is.0).then(|| (id.clone(), line))
    });
    differences.collect()
}

/// Runs all tests of the package once, through a new gateway.
async fn run(package: &Path) -> Results {
    let folder = TempDir::new().expect("is made");
    let mut server = Command::new("node")
        .arg(package.join("server/server.mjs"))
        .envs([
            ("npm_config_protocol", "http"),
            ("npm_config_port", "0"),
            ("npm_config_pidfile", "pid"),
        ])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node runs");
    let mut lines = BufReader::new(server.stdout.take().expect("is piped")).lines();
    let port = loop {
        let line = lines.next_line().await.expect("is read");
        let line = line.expect("the origin says where it listens");
        if let Some((_, url)) = line.split_once("Listening on ") {
            break url
                .trim_end_matches('/')
                .rsplit(':')
                .next()
                .map(str::to_owned);
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let origin = format!("http://127.0.0.1:{}", port.expect("has a port"));
    let cache = gateway(origin, folder.path()).await;

    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("node")
        .args(["--no-warnings", &format!("{SCRIPTS}/run.mjs")])
        .arg(package)
        .arg(&cache)
        .kill_on_drop(true)
        .output()
        .await
        .expect("node runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    results(&String::from_utf8(stdout).expect("is text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn public_cache_tests_have_their_expected_results() {
    let Some(package) = env::var_os("PERENNIAL_TEST_CACHE_TESTS") else {
        assert!(
            env::var_os("PERENNIAL_TEST_ALL").is_none(),
            "PERENNIAL_TEST_CACHE_TESTS is not set: scripts/cache-tests prints its value"
        );
        return;
    };
    let file = format!("{SCRIPTS}/expected.txt");
    let found = run(Path::new(&package)).await;
    if env::var_os("PERENNIAL_UPDATE").is_some() {
        let notes = fs::read_to_string(&file).unwrap_or_default();
        let notes = notes.lines().filter(|line| line.starts_with('#'));
        let notes: String = notes.map(|line| format!("{line}\n")).collect();
        let lines = found.iter();
        let lines: String = lines
            .map(|(id, (result, _))| format!("{id}\t{result}\n"))
            .collect();
        fs::write(&file, notes + &lines).expect("is written");
    }
    let expected = results(&fs::read_to_string(&file).expect("is read"));
    let mut changed = differences(&expected, &found);
    // The tests measure seconds, which a busy machine stretches. A real change shows in each run.
    for _ in 0..3 {
        if !changed.is_empty() {
            let again = differences(&expected, &run(Path::new(&package)).await);
            changed.retain(|id, _| again.contains_key(id));
        }
    }
    for (id, (result, message)) in &found {
        println!("{id}\t{result}\t{message}");
    }
    println!(
        "{} required tests pass, {} fail",
        count(&found, "required\tpass"),
        count(&found, "required\tfail")
    );
    assert!(changed.is_empty(), "{changed:#?}");
}
