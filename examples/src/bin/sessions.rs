//! A shop with three kinds of login: a session, a cookie and a token. Visitors without a login
//! share the front page, and each logged-in visitor has a page of their own. Both pages have the
//! same list of books, which takes a second to generate. All visitors share the page about the
//! shop.
//!
//! ```text
//! cargo run -p perennial-examples --bin sessions
//! curl -i http://127.0.0.1:3000/                         # waits for the list, then hits
//! curl -c jar -d name=Anna http://127.0.0.1:3000/login
//! curl -i -b jar http://127.0.0.1:3000/                  # Anna's own, at once
//! curl -b jar -d title=Emma http://127.0.0.1:3000/books  # both pages regenerate
//! curl -i -H 'authorization: Bearer Ben' http://127.0.0.1:3000/
//! curl -i -b jar http://127.0.0.1:3000/about             # no login on this page
//! ```
//!
//! `cache-status` says `hit`, or `fwd=bypass; detail=bypass-if` for Anna and Ben.

use std::{
    convert::Infallible,
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Form, Router,
    extract::{OptionalFromRequestParts, Request, State},
    http::{StatusCode, header::AUTHORIZATION, request::Parts},
    middleware::{Next, from_fn},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use clap::Parser;
use example_common::{self as common, say};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use perennial::{Perennial, Refresh};
use serde::Deserialize;
use tower_cookies::{Cookie, Cookies};
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
    /// The time after which a page and the list regenerate.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10m")]
    every: Duration,
}

const LIST: &str = "list-of-books";

/// The name of the cookie for a login without a session.
const REMEMBER: &str = "remember";

/// A visitor with a login.
#[derive(Clone)]
struct User(String);

#[derive(Clone)]
struct Shop {
    site: Perennial,
    every: Refresh,
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
    let every = Refresh::every(options.every);
    // The handler generates a shared page without the session and the cookies: always the page of
    // a visitor without a login.
    let builder = Perennial::builder()
        .ignore_extension::<Session>()
        .ignore_extension::<Cookies>();
    let site = builder.open(&options.database).await?;
    let of_anonymous = site
        .layer(&every)
        .bypass_if(|parts| parts.extensions.get::<User>().is_some());
    // A request with a login may generate this page, too, because the handler does not see the
    // login. `bypass_if` with `false` says that this is intended: every request may get this page.
    // Without it, a request with a token would cause a warning.
    let of_all = site
        .layer(&every)
        .ignore_extension::<User>()
        .bypass_if(|_| false);
    let shop = Shop {
        site,
        every,
        books: Arc::new(Mutex::new(vec!["Persuasion".into(), "Ulysses".into()])),
        work: options.work,
    };
    // Sessions in memory end with the process. Several processes would store sessions and books in
    // a database.
    let sessions = SessionManagerLayer::new(MemoryStore::default()).with_secure(false);
    let app = Router::new()
        .route("/", get(front).layer(of_anonymous))
        .route("/about", get(about).layer(of_all))
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

/// Finds the user by a session, by the cookie `remember` or by a token. In this shop a name is its
/// own proof; a real site asks for more.
impl<S: Sync> OptionalFromRequestParts<S> for User {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        if let Some(user) = parts.extensions.get::<Self>() {
            return Ok(Some(user.clone()));
        }
        if let Some(session) = parts.extensions.get::<Session>()
            && let Ok(Some(name)) = session.get("name").await
        {
            return Ok(Some(Self(name)));
        }
        let cookies = parts.extensions.get::<Cookies>();
        let cookie = cookies.and_then(|cookies| cookies.get(REMEMBER));
        if let Some(cookie) = cookie {
            return Ok(Some(Self(cookie.value().to_owned())));
        }
        let authorization = parts.headers.get(AUTHORIZATION);
        let token = authorization.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
        Ok(token.map(|name| Self(name.to_owned())))
    }
}

/// Adds the user to the request for `bypass_if`, as `bypass_if` cannot await the session.
async fn recognise(user: Option<User>, mut request: Request, next: Next) -> Response {
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// The front page, with a greeting for a visitor with a login.
async fn front(State(shop): State<Shop>, user: Option<User>) -> Result<Html<String>, Failure> {
    let books = Arc::clone(&shop.books);
    let list = move || async move {
        tokio::time::sleep(shop.work).await;
        let books = books.lock().unwrap_or_else(PoisonError::into_inner);
        let items = books
            .iter()
            .map(|title| format!("<li>{}</li>", escaped(title)));
        Ok::<_, Infallible>(format!("<ul>{}</ul>", items.collect::<String>()))
    };
    let list = shop.site.content(LIST, &shop.every, list).await?;
    Ok(page("Books", user, &list.text()))
}

/// The page about the shop.
async fn about(user: Option<User>) -> Html<String> {
    page("About", user, "<p>Books, old and new.")
}

fn page(title: &str, user: Option<User>, text: &str) -> Html<String> {
    let greeting = match user {
        Some(User(name)) => {
            format!("Welcome, {}. <form method=post action=/logout><button>Log out</button></form>", escaped(&name))
        }
        None => "<form method=post action=/login><input name=name placeholder=name><label><input type=checkbox name=remember>Remember me</label><button>Log in</button></form>".to_owned(),
    };
    Html(format!(
        "<!doctype html><title>{title}</title><h1>{title}</h1>{greeting}{text}"
    ))
}

#[derive(Deserialize)]
struct Login {
    name: String,
    /// Any text, from a checkbox.
    remember: Option<String>,
}

/// Logs a visitor in, by a session or by a cookie.
async fn login(session: Session, cookies: Cookies, form: Form<Login>) -> Result<Redirect, Failure> {
    let Form(Login { name, remember }) = form;
    if remember.is_some() {
        // `tower-cookies` decodes the values of cookies, but does not encode them.
        let name = utf8_percent_encode(&name, NON_ALPHANUMERIC).to_string();
        let cookie = Cookie::build((REMEMBER, name)).path("/").http_only(true);
        cookies.add(cookie.permanent().build());
    } else {
        // A new session id for the visitor that the session now belongs to.
        session.cycle_id().await?;
        session.insert("name", name).await?;
    }
    Ok(Redirect::to("/"))
}

async fn logout(session: Session, cookies: Cookies) -> Result<Redirect, Failure> {
    // A login by the cookie has no session.
    if session.id().is_some() {
        session.flush().await?;
    }
    cookies.remove(Cookie::build(REMEMBER).path("/").build());
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
struct Book {
    title: String,
}

/// Adds a book. The list changes, and the page that contains the list.
async fn add(
    State(shop): State<Shop>,
    user: Option<User>,
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
