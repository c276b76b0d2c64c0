//! A site with the status page behind a login: `operator` may change things, `guest` may look. The
//! password of both is `demo`.
//!
//! ```text
//! cargo run -p perennial-admin --example status
//! ```
//!
//! Then open <http://127.0.0.1:3000/books/1> a few times, and <http://127.0.0.1:3000/admin/cache>.

use std::time::{Duration, SystemTime};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use perennial::{Perennial, Refresh};
use perennial_admin::{Access, Admin, CancellationToken};

/// The header of each user, as a browser sends it after the login: `operator:demo`, `guest:demo`.
const USERS: [(&str, &str); 2] = [
    ("operator", "Basic b3BlcmF0b3I6ZGVtbw=="),
    ("guest", "Basic Z3Vlc3Q6ZGVtbw=="),
];

/// The user of a request, set by [`login`].
#[derive(Clone)]
struct User(&'static str);

/// Asks for the password. A real site has its session or its identity proxy here.
async fn login(mut request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION);
    let user = USERS
        .iter()
        .find(|(_, basic)| sent.is_some_and(|sent| sent == basic));
    let Some((name, _)) = user else {
        let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"status page\"")];
        return (
            StatusCode::UNAUTHORIZED,
            ask,
            "operator or guest, with the password demo",
        )
            .into_response();
    };
    request.extensions_mut().insert(User(name));
    next.run(request).await
}

fn access(request: &Parts) -> Access {
    match request.extensions.get() {
        Some(User("operator")) => Access::full("operator"),
        Some(User(name)) => Access::read_only(*name),
        None => Access::Forbidden,
    }
}

async fn book() -> Html<String> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    Html(format!(
        "<!doctype html><title>A book</title><h1>A book</h1><p>Generated at {now}"
    ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = std::env::args().nth(1);
    let site = Perennial::open(database.as_deref().unwrap_or("sqlite://status.db")).await?;
    let shutdown = CancellationToken::new();
    let books = site
        .layer(Refresh::every(Duration::from_secs(20)))
        .tag("books");
    let pages = Router::new().route("/books/{id}", get(book).layer(books));
    let status = Admin::new(site.clone(), shutdown.clone(), access).pages(pages.clone());
    let status = status.router().layer(middleware::from_fn(login));
    let app = pages.nest("/admin/cache", status);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/admin/cache", listener.local_addr()?);
    let stopped = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stopped.cancel();
    });
    let server = axum::serve(listener, app);
    server
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    site.shutdown().await;
    Ok(())
}
