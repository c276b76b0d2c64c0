//! The gateway as a program passes on uncached requests, and drains after a signal.

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{any, get as route},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use perennial_testkit::{
    Folder, Origin, get, nowhere,
    program::{Gateway, example},
    request, serve, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_away_or_slow_is_a_502_or_a_504() {
    let (_held, away) = nowhere();
    let slow = Origin::default();
    slow.hold();
    for (origin, options, status) in [
        (away, "--every 1h --retry-after 1ms", 502),
        (slow.serve().await, "--every 1h --timeout 200ms", 504),
    ] {
        let folder = Folder::new();
        let gateway = Gateway::start(origin, &folder.url(), options);
        for method in ["GET", "POST"] {
            let reply = request(gateway.address, method, "/", &[]).await;
            assert_eq!(reply.status, status, "{method}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_with_a_named_cookie_gets_the_origins_own_answer() {
    let folder = Folder::new();
    let app = Router::new().fallback(async |request: Request| {
        let cookie = request.headers().get(header::COOKIE);
        cookie.map_or("nobody".into(), |cookie| {
            cookie.to_str().expect("text").to_owned()
        })
    });
    let options = "--every 1h --bypass-cookie session --bypass-cookie remember";
    let gateway = Gateway::start(serve(app).await, &folder.url(), options);
    for (cookie, seen) in [
        ("theme=dark; session=ann", "theme=dark; session=ann"),
        ("remember=ben", "remember=ben"),
        ("sessions=1; theme=session", "nobody"),
    ] {
        let headers = [("cookie", cookie)];
        let answer = request(gateway.address, "GET", "/", &headers).await;
        assert_eq!(answer.text(), seen);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_query_and_host_are_as_the_options_say() {
    let folder = Folder::new();
    let app = Router::new().fallback(|request: Request| async move {
        let host = request.headers()[header::HOST].to_str().expect("text");
        format!("{host}{}", request.uri())
    });
    let options = "--every 1h --host shop.test --query id --bypass-path /cart";
    let gateway = Gateway::start(serve(app).await, &folder.url(), options);
    for (path, seen, status) in [
        (
            "/a?utm_source=b&id=7",
            "shop.test/a?id=7",
            "fwd=miss; stored",
        ),
        ("/a?id=7&utm_source=c", "shop.test/a?id=7", "hit"),
        ("/cart/7?a=b", "shop.test/cart/7?a=b", "fwd=bypass"),
    ] {
        let answer = get(gateway.address, path).await;
        assert_eq!(answer.text(), seen);
        let status_of = answer.header("cache-status");
        assert!(status_of.contains(status), "{path}: {status_of}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_headers_come_through_and_hop_by_hop_headers_do_not() {
    let folder = Folder::new();
    let app = Router::new()
        .route(
            "/kept",
            route(async || {
                let headers = [
                    ("x-own", "a"),
                    ("connection", "x-hop"),
                    ("x-hop", "b"),
                    ("keep-alive", "c"),
                ];
                (StatusCode::NOT_FOUND, headers, "not here")
            }),
        )
        .route(
            "/passed",
            any(async |request: Request| {
                let seen = format!(
                    "{:?} {:?}",
                    request.method(),
                    request.headers().get("x-forwarded-for").is_some()
                );
                (
                    [("x-own", "a"), ("connection", "x-hop"), ("x-hop", "b")],
                    seen,
                )
                    .into_response()
            }),
        );
    let gateway = Gateway::start(serve(app).await, &folder.url(), "--every 1h");
    for _ in 0..2 {
        let reply = get(gateway.address, "/kept").await;
        assert_eq!((reply.status, reply.text()), (404, "not here"));
        assert_eq!(reply.headers["x-own"], "a");
        assert!(!reply.headers.contains_key("x-hop") && !reply.headers.contains_key("keep-alive"));
    }
    let reply = request(gateway.address, "PUT", "/passed", &[]).await;
    assert_eq!(reply.text(), "PUT true");
    assert!(!reply.headers.contains_key("x-hop"));
    // The generator's request belongs to no visitor.
    assert_eq!(get(gateway.address, "/passed").await.text(), "GET false");
}

#[tokio::test(flavor = "multi_thread")]
async fn unstored_response_is_streamed() {
    let folder = Folder::new();
    let app = Router::new().route(
        "/",
        any(async || {
            let (mut writer, reader) = tokio::io::duplex(64);
            tokio::spawn(async move {
                writer.write_all(b"first").await.expect("is read");
                // Nothing follows: a reader that waits for the end hangs.
                std::future::pending::<()>().await;
            });
            Body::from_stream(tokio_util::io::ReaderStream::new(reader))
        }),
    );
    let gateway = Gateway::start(serve(app).await, &folder.url(), "--every 1h");
    let mut visitor = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connects");
    visitor
        .write_all(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n")
        .await
        .expect("asks");
    let mut seen = String::new();
    until("the beginning arrives", async || {
        let mut chunk = [0; 1024];
        let read = visitor.read(&mut chunk).await.expect("reads");
        seen.push_str(std::str::from_utf8(&chunk[..read]).expect("text"));
        seen.contains("first")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_without_an_upgrade_or_for_h2c_is_no_upgrade() {
    let folder = Folder::new();
    let app = Router::new()
        .fallback(async |request: Request| format!("{:?}", request.headers().get(header::UPGRADE)));
    let gateway = Gateway::start(serve(app).await, &folder.url(), "--every 1h");
    for (connection, upgrade, passed_on) in [
        ("upgrade, http2-settings", "h2c", "None"),
        ("upgrade", "echo, H2C", "None"),
        ("keep-alive", "echo", "None"),
        ("x-upgrade", "echo", "None"),
        ("x", "echo", "Some(\"echo\")"),
    ] {
        let second = if connection == "x" { "Upgrade" } else { "x" };
        let headers = [
            ("connection", connection),
            ("connection", second),
            ("upgrade", upgrade),
        ];
        let reply = request(gateway.address, "POST", "/", &headers).await;
        assert_eq!(reply.text(), passed_on, "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_is_tunnelled() {
    let folder = Folder::new();
    let app = Router::new().route(
        "/",
        route(async |request: Request| {
            tokio::spawn(async move {
                let upgraded = hyper::upgrade::on(request).await.expect("is upgraded");
                let mut stream = hyper_util::rt::TokioIo::new(upgraded);
                let mut asked = [0; 4];
                stream.read_exact(&mut asked).await.expect("reads");
                stream.write_all(&asked).await.expect("writes");
            });
            let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")];
            (StatusCode::SWITCHING_PROTOCOLS, headers)
        }),
    );
    let gateway = Gateway::start(serve(app).await, &folder.url(), "--every 1h");
    let mut visitor = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connects");
    let asked = b"GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    visitor.write_all(asked).await.expect("asks");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(visitor.read_u8().await.expect("reads"));
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    visitor.write_all(b"ping").await.expect("writes");
    let mut echo = [0; 4];
    visitor.read_exact(&mut echo).await.expect("reads");
    assert_eq!(&echo, b"ping");
}

#[test]
fn unusable_option_is_refused_in_one_line() {
    let folder = Folder::new();
    let database = folder.url();
    let a_folder = format!("sqlite://{}", folder.path().display());
    let unopened = "unable to open database file";
    for (origin, database, every, said) in [
        ("ftp://x", &*database, "1s", "http://127.0.0.1:9000"),
        ("http://127.0.0.1:1", &database, "soon", "--every"),
        ("http://127.0.0.1:1", "redis://x", "1s", "sqlite://site.db"),
        ("http://127.0.0.1:1", &a_folder, "1s", unopened),
        (
            "http://127.0.0.1:1",
            "sqlite:///no/such/a.db",
            "1s",
            unopened,
        ),
    ] {
        let output = std::process::Command::new(example("gateway"))
            .args(["--listen", "127.0.0.1:0", "--origin", origin])
            .args(["--database", database, "--every", every])
            .output()
            .expect("runs");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success() && error.contains(said), "{error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_that_honours_the_origin_lets_changes_through() {
    let origin = Origin::default();
    let address = serve(writable(&origin)).await;
    for (options, stale) in [
        ("--every 1h --wait 60s --honour-origin", true),
        ("--every 1h --wait 60s", false),
    ] {
        let folder = Folder::new();
        let gateway = Gateway::start(address, &folder.url(), options);
        let read = async |page| get(gateway.address, page).await.run();
        let before = [read("/a").await, read("/b").await];
        let location = [("x-location", "/b")];
        let put = request(gateway.address, "PUT", "/a", &location).await;
        assert_eq!(
            (put.status, put.headers["location"].as_bytes()),
            (200, &b"/b"[..])
        );
        if stale {
            let new = async || read("/a").await > before[1] && read("/b").await > before[1];
            until("both are regenerated", new).await;
        }
        let after = [read("/a").await, read("/b").await];
        assert_eq!(after.map(|run| run > before[1]), [stale; 2], "{options}");
    }
}

/// A site that answers a PUT with the header `location` of its `x-location`.
fn writable(origin: &Origin) -> Router {
    let origin = origin.clone();
    Router::new().fallback(async move |request: Request| {
        match request.headers().get("x-location") {
            Some(page) => [(header::LOCATION, page.clone())].into_response(),
            None => origin.run(&request.uri().to_string()).await.into_response(),
        }
    })
}
