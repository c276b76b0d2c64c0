//! What the applications of the stacks have in common: a page with a price, and a visitor.

use std::{path::PathBuf, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response},
};
use perennial::{
    Builder, DAY, Perennial, Refresh,
    driver::Engine,
    sql::{ColumnType, Trigger},
};
use tempfile::TempDir;
use tower::ServiceExt;

/// The application's table.
pub const TABLE: &str = "CREATE TABLE product (id INTEGER PRIMARY KEY, price BIGINT NOT NULL)";
/// Its row.
pub const ROW: &str = "INSERT INTO product (id, price) VALUES (7, 10)";
/// The price on the page.
pub const PRICE: &str = "SELECT price FROM product WHERE id = 7";
/// The change that the page follows.
pub const CHANGE: &str = "UPDATE product SET price = 12 WHERE id = 7";
/// A change that nobody names.
pub const SILENT_CHANGE: &str = "UPDATE product SET price = 13 WHERE id = 7";

/// Returns a migration with the triggers for the table.
pub fn triggers() -> String {
    let trigger = Trigger::on("product").column("id", ColumnType::Integer);
    let trigger = trigger.tag("product-{id}").columns(["price"]);
    let statements = trigger.create(Engine::Sqlite).expect("is valid");
    format!("-- A migration.\n{};\n", statements.join(";\n"))
}

/// The tag of the page.
pub const TAG: &str = "product-7";

/// A folder for the application's SQLite file.
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }
}

impl Folder {
    pub fn file(&self) -> PathBuf {
        self.0.path().join("shop.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}?mode=rwc", self.file().display())
    }
}

/// The settings of a site on a machine that may be slow.
pub fn patient() -> Builder {
    Perennial::builder()
        .database_patience(Duration::from_secs(30))
        .statement_timeout(Duration::from_secs(30))
}

/// The page's policy: without an invalidation, it stays for a month.
pub fn policy() -> Refresh {
    Refresh::every(30 * DAY).leader_wait(Duration::from_secs(60))
}

/// Asks for a page.
pub async fn ask(app: &Router, request: Request<Body>) -> (Response<()>, String) {
    let response = app.clone().oneshot(request).await.expect("never fails");
    let (head, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.expect("is whole");
    let body = String::from_utf8(body.to_vec()).expect("is text");
    (Response::from_parts(head, ()), body)
}

/// Visits a path.
pub async fn visit(app: &Router, path: &str) -> String {
    let request = Request::get(path).body(Body::empty());
    ask(app, request.expect("a request")).await.1
}

/// Visits a path until it shows this.
pub async fn shows(app: &Router, path: &str, expected: &str) {
    let begun = std::time::Instant::now();
    while visit(app, path).await != expected {
        assert!(begun.elapsed() < Duration::from_secs(60), "{expected}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
