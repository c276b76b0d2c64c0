//! Logins by axum-login and sessions in the database by tower-sessions, around pages that are the same for
//! everybody, and beside those that are not.

use std::collections::HashMap;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header, request::Parts},
    routing::{get, post},
};
use axum_login::{AuthManagerLayerBuilder, AuthSession, AuthUser, AuthnBackend, UserId};
use perennial::{Perennial, layer::Holes};
use stacks::{Folder, ask, patient, policy};
use tower_sessions::{Session, SessionManagerLayer};
use tower_sessions_sqlx_store::{SqliteStore, sqlx::SqlitePool};

#[derive(Clone, Debug)]
struct User(i64);

impl AuthUser for User {
    type Id = i64;

    fn id(&self) -> i64 {
        self.0
    }

    fn session_auth_hash(&self) -> &[u8] {
        b"the hash of a password"
    }
}

#[derive(Clone, Default)]
struct Users(HashMap<i64, User>);

impl AuthnBackend for Users {
    type User = User;
    type Credentials = i64;
    type Error = std::convert::Infallible;

    async fn authenticate(&self, id: i64) -> Result<Option<User>, Self::Error> {
        Ok(self.0.get(&id).cloned())
    }

    async fn get_user(&self, id: &UserId<Self>) -> Result<Option<User>, Self::Error> {
        Ok(self.0.get(id).cloned())
    }
}

type Login = AuthSession<Users>;

async fn log_in(mut login: Login) -> StatusCode {
    let user = login.authenticate(7).await.expect("never fails");
    login
        .login(&user.expect("is there"))
        .await
        .expect("is stored");
    StatusCode::NO_CONTENT
}

async fn account(login: Login) -> String {
    format!("user {:?}", login.user.map(|user| user.0))
}

/// An application whose visitors log in by a POST of `/login`.
struct Application {
    folder: Folder,
    site: Perennial,
}

impl Application {
    async fn new() -> Self {
        let folder = Folder::default();
        let site = patient().open(&folder.url()).await.expect("opens");
        Self { folder, site }
    }

    /// Adds the login around these routes.
    async fn around(&self, routes: Router) -> Router {
        let pool = SqlitePool::connect(&self.folder.url())
            .await
            .expect("opens");
        let store = SqliteStore::new(pool);
        store.migrate().await.expect("makes its table");
        let sessions = SessionManagerLayer::new(store).with_secure(false);
        let users = Users([(7, User(7))].into());
        let login = AuthManagerLayerBuilder::new(users, sessions).build();
        routes.route("/login", post(log_in)).layer(login)
    }
}

/// Returns the cookie of a visitor who logs in.
async fn logged_in(app: &Router) -> String {
    let request = Request::post("/login").body(Body::empty());
    let (head, _) = ask(app, request.expect("a request")).await;
    assert_eq!(head.status(), StatusCode::NO_CONTENT);
    let cookie = head.headers()[header::SET_COOKIE].to_str().expect("text");
    cookie.split(';').next().expect("a pair").to_owned()
}

/// Returns a page and its `Cache-Status`.
async fn page(app: &Router, path: &str, cookie: Option<&str>) -> (String, String) {
    let mut request = Request::get(path);
    if let Some(cookie) = cookie {
        request = request.header(header::COOKIE, cookie);
    }
    let request = request.body(Body::empty()).expect("a request");
    let (head, body) = ask(app, request).await;
    let status = head.headers()["cache-status"].to_str().expect("text");
    (body, status.to_owned())
}

/// The page is generated once, and its hole knows who is logged in, and counts the visits in the session.
#[tokio::test(flavor = "multi_thread")]
async fn hole_greets_who_is_logged_in_and_keeps_what_it_writes_into_the_session() {
    async fn greeting(visitor: Parts) -> Result<String, tower_sessions::session::Error> {
        let login: Option<&Login> = visitor.extensions.get();
        let Some(user) = login.and_then(|login| login.user.as_ref()) else {
            return Ok("stranger".to_owned());
        };
        let session: &Session = visitor.extensions.get().expect("is around the layer");
        let visits = session.get("visits").await?.unwrap_or(0) + 1;
        session.insert("visits", visits).await?;
        Ok(format!("user {} for the {visits}. time", user.0))
    }
    let application = Application::new().await;
    let layer = application
        .site
        .layer(policy())
        .ignore_extension::<Login>()
        .ignore_extension::<Session>()
        .ignore_extension::<tower_cookies::Cookies>()
        .hole("greeting", greeting);
    let book = async |holes: Holes| format!("a book for {}", holes.text("greeting"));
    let routes = Router::new().route("/book", get(book).layer(layer));
    let app = application.around(routes).await;
    let cookie = logged_in(&app).await;
    for visit in 1..4 {
        let (body, status) = page(&app, "/book", Some(&cookie)).await;
        assert_eq!(body, format!("a book for user 7 for the {visit}. time"));
        assert_eq!(status.contains("hit"), visit > 1, "{status}");
        let (body, status) = page(&app, "/book", None).await;
        assert_eq!(body, "a book for stranger");
        assert!(status.contains("hit"), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn public_pages_are_stored_and_personal_ones_are_not() {
    let application = Application::new().await;
    let site = &application.site;
    // The handler of a public page does not read the login, and this layer declares that by
    // `ignore_extension`.
    let public = site
        .layer(policy())
        .ignore_extension::<Login>()
        .ignore_extension::<Session>()
        .ignore_extension::<tower_cookies::Cookies>();
    let forgotten = site.layer(policy());
    let routes = Router::new()
        .route("/book", get(async || "a book").layer(public))
        .route("/account", get(account).layer(forgotten));
    let app = application.around(routes).await;
    let cookie = logged_in(&app).await;
    let (_, first) = page(&app, "/book", Some(&cookie)).await;
    assert!(first.contains("stored"), "{first}");
    for visitor in [None, Some(&*cookie)] {
        let (body, status) = page(&app, "/book", visitor).await;
        assert_eq!(body, "a book");
        assert!(status.contains("hit"), "{status}");
    }
    // A layer that was put around a personal page stores nothing.
    for (visitor, expected) in [(Some(&*cookie), "user Some(7)"), (None, "user None")] {
        let (body, status) = page(&app, "/account", visitor).await;
        assert_eq!(body, expected);
        assert!(status.contains("undeclared-extension"), "{status}");
    }
}
