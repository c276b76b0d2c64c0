//! A shop with logins: visitors without one share a page, and each logged-in visitor has a page of
//! their own. Both have the same list of books, which takes a second to make.
//!
//! ```text
//! cargo run -p perennial-examples --bin sessions
//! curl -i http://127.0.0.1:3000/                         # waits for the list, then hits
//! curl -c jar -d name=Anna http://127.0.0.1:3000/login
//! curl -i -b jar http://127.0.0.1:3000/                  # Anna's own, at once
//! curl -b jar -d title=Emma http://127.0.0.1:3000/books  # both pages regenerate
//! ```
//!
//! `cache-status` says `hit`, or `fwd=bypass; detail=bypass-if` for Anna.

use std::{
    convert::Infallible,
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Form, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use clap::Parser;
use perennial::{Perennial, Refresh};
use perennial_examples::{self as common, say};
use serde::Deserialize;
use tower_cookies::Cookies;
use tower_sessions::{MemoryStore, Session, SessionManagerLayer};

/// A shop with logins.
#[derive(Parser)]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// The database, as in sqlite://site.db or postgres://user:password@host/database
    #[arg(long, default_value = "sqlite://sessions.db")]
    database: String,
    /// The time that the list of books takes.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s")]
    work: Duration,
}

const EVERY: Refresh = Refresh::every(Duration::from_secs(600));
const LIST: &str = "list-of-books";

/// The visitor, in the extensions of a request with a login.
#[derive(Clone)]
struct User(String);

#[derive(Clone)]
struct Shop {
    site: Perennial,
    books: Arc<Mutex<Vec<String>>>,
    work: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    common::log();
    common::exit("sessions", run(&options).await)
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await?;
    let site = Perennial::open(&options.database).await?;
    // The handler cannot read the session, so a request without a login may share a page.
    let shared = site
        .layer(EVERY)
        .bypass_if(|parts| parts.extensions.get::<User>().is_some())
        .ignore_extension::<Session>()
        .ignore_extension::<Cookies>();
    let shop = Shop {
        site,
        books: Arc::new(Mutex::new(vec!["Persuasion".into(), "Ulysses".into()])),
        work: options.work,
    };
    // Sessions in memory end with the process. Several processes would keep them in a database.
    let sessions = SessionManagerLayer::new(MemoryStore::default()).with_secure(false);
    let app = Router::new()
        .route("/", get(front).layer(shared))
        .route("/login", post(login))
        .route("/logout", post(logout))
        .route("/books", post(add))
        .with_state(shop)
        .layer(from_fn(recognise))
        .layer(sessions);

    let address = listener.local_addr()?;
    say!("http://{address} has a front page, and a login: POST name=Anna to /login");
    axum::serve(listener, app)
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    Ok(())
}

/// Adds the user of the session to the request.
async fn recognise(session: Session, mut request: Request, next: Next) -> Response {
    if let Ok(Some(name)) = session.get("name").await {
        request.extensions_mut().insert(User(name));
    }
    next.run(request).await
}

/// The front page, with a greeting for a visitor with a login.
async fn front(
    State(shop): State<Shop>,
    user: Option<Extension<User>>,
) -> Result<Html<String>, Failure> {
    let books = Arc::clone(&shop.books);
    let list = move || async move {
        tokio::time::sleep(shop.work).await;
        let books = books.lock().unwrap_or_else(PoisonError::into_inner);
        let items = books
            .iter()
            .map(|title| format!("<li>{}</li>", escaped(title)));
        Ok::<_, Infallible>(format!("<ul>{}</ul>", items.collect::<String>()))
    };
    let list = shop.site.content(LIST, &EVERY, list).await?;
    let greeting = match user {
        Some(Extension(User(name))) => {
            format!("Welcome, {}. <form method=post action=/logout><button>Log out</button></form>", escaped(&name))
        }
        None => "<form method=post action=/login><input name=name placeholder=name><button>Log in</button></form>".to_owned(),
    };
    Ok(Html(format!(
        "<!doctype html><title>Books</title><h1>Books</h1>{greeting}{}",
        list.text()
    )))
}

#[derive(Deserialize)]
struct Login {
    name: String,
}

/// Logs in whoever says who they are; a real site asks for more.
async fn login(session: Session, Form(Login { name }): Form<Login>) -> Result<Redirect, Failure> {
    // A new session id for the visitor that the session now belongs to.
    session.cycle_id().await?;
    session.insert("name", name).await?;
    Ok(Redirect::to("/"))
}

async fn logout(session: Session) -> Result<Redirect, Failure> {
    session.flush().await?;
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
struct Book {
    title: String,
}

/// Adds a book. The list changes, and the page that contains the list.
async fn add(
    State(shop): State<Shop>,
    user: Option<Extension<User>>,
    Form(Book { title }): Form<Book>,
) -> Result<Response, Failure> {
    if user.is_none() {
        return Ok(StatusCode::UNAUTHORIZED.into_response());
    }
    let books = shop.books.lock();
    books.unwrap_or_else(PoisonError::into_inner).push(title);
    shop.site.invalidate(LIST).await?;
    shop.site.invalidate("/").await?;
    Ok(Redirect::to("/").into_response())
}

/// Returns a text of a visitor as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

struct Failure;

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        tracing::error!(%error, "a request fails");
        Self
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
