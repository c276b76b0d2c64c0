//! A small site, to show how a site with Perennial is tested: `tests/site.rs`.
//!
//! The router is made by a function that takes the site and the shop's data. `main` gives it the
//! site's database; each test gives it a database in memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{Html, Redirect},
    routing::{get, post},
};
use perennial::{DAY, Perennial, Refresh};
use serde::{Deserialize, Serialize};

/// The data of the shop; a real shop has a pool here.
#[derive(Clone, Debug, Default)]
pub struct Shop(Arc<ShopData>);

#[derive(Debug, Default)]
struct ShopData {
    books: AtomicU32,
    closed: AtomicBool,
}

impl Shop {
    /// Adds a book.
    pub fn add_book(&self) {
        self.0.books.fetch_add(1, SeqCst);
    }

    /// Lets every query fail, or succeed again.
    pub fn close(&self, closed: bool) {
        self.0.closed.store(closed, SeqCst);
    }

    /// Counts the books.
    ///
    /// # Errors
    ///
    /// The shop is closed.
    pub fn books(&self) -> Result<u32, String> {
        if self.0.closed.load(SeqCst) {
            Err("the shop is closed".into())
        } else {
            Ok(self.0.books.load(SeqCst))
        }
    }
}

/// A typed value that pages share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// The number of books.
    pub books: u32,
}

/// The policy of the totals.
pub const TOTALS: Refresh = Refresh::every(DAY);

/// Returns the site's router.
pub fn app(site: &Perennial, shop: Shop) -> Router {
    let list = get(list).layer(site.layer(Refresh::every(30 * DAY)).tag("books"));
    let change = site.invalidate_on_success("books");
    let add = post(add).layer(change);
    let with_data = (site.clone(), shop);
    Router::new()
        .route("/books", list.merge(add))
        .route("/totals", get(totals))
        .with_state(with_data)
}

type Failure = (StatusCode, String);

async fn list(State((_, shop)): State<(Perennial, Shop)>) -> Result<Html<String>, Failure> {
    let books = shop.books();
    let books = books.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let form = r#"<form method="post"><button>Add a book</button></form>"#;
    Ok(Html(format!("<h1>{books} books</h1>\n{form}")))
}

async fn add(State((_, shop)): State<(Perennial, Shop)>) -> Redirect {
    shop.add_book();
    Redirect::to("/books")
}

async fn totals(State((site, shop)): State<(Perennial, Shop)>) -> Result<String, Failure> {
    let generate = async move || shop.books().map(|books| Totals { books });
    let totals = site.value("totals", TOTALS, generate).await;
    let totals = totals.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    Ok(format!("{} in all", totals.books))
}
