//! Logins by axum-login and sessions in the database by tower-sessions, around pages that are the same for
//! everybody, and beside those that are not.

use std::collections::HashMap;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header},
    routing::{get, post},
};
use axum_login::{AuthManagerLayerBuilder, AuthSession, AuthUser, AuthnBackend, UserId};
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

#[tokio::test(flavor = "multi_thread")]
async fn public_pages_are_stored_and_personal_ones_are_not() {
    let folder = Folder::default();
    let site = patient().open(&folder.url()).await.expect("opens");
    let pool = SqlitePool::connect(&folder.url()).await.expect("opens");
    let store = SqliteStore::new(pool);
    store.migrate().await.expect("makes its table");
    let sessions = SessionManagerLayer::new(store).with_secure(false);
    let users = Users([(7, User(7))].into());
    let login = AuthManagerLayerBuilder::new(users, sessions).build();

    // The handler of a public page reads nothing of the login, and says so.
    let public = site
        .layer(policy())
        .ignore_extension::<Login>()
        .ignore_extension::<Session>()
        .ignore_extension::<tower_cookies::Cookies>();
    let forgotten = site.layer(policy());
    let app = Router::new()
        .route("/book", get(async || "a book").layer(public))
        .route("/account", get(account).layer(forgotten))
        .route("/login", post(log_in))
        .layer(login);

    let request = Request::post("/login").body(Body::empty());
    let (head, _) = ask(&app, request.expect("a request")).await;
    assert_eq!(head.status(), StatusCode::NO_CONTENT);
    let cookie = head.headers()[header::SET_COOKIE].to_str().expect("text");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let page = async |path: &str, cookie: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(cookie) = cookie {
            request = request.header(header::COOKIE, cookie);
        }
        let request = request.body(Body::empty()).expect("a request");
        let (head, body) = ask(&app, request).await;
        let status = head.headers()["cache-status"].to_str().expect("text");
        (body, status.to_owned())
    };
    let (_, first) = page("/book", Some(&cookie)).await;
    assert!(first.contains("stored"), "{first}");
    for visitor in [None, Some(&*cookie)] {
        let (body, status) = page("/book", visitor).await;
        assert_eq!(body, "a book");
        assert!(status.contains("hit"), "{status}");
    }
    // A layer that was put around a personal page stores nothing.
    for (visitor, expected) in [(Some(&*cookie), "user Some(7)"), (None, "user None")] {
        let (body, status) = page("/account", visitor).await;
        assert_eq!(body, expected);
        assert!(status.contains("undeclared-extension"), "{status}");
    }
}
