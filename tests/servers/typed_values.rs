//! A typed value on each database.

use std::{convert::Infallible, sync::Arc};

use perennial::{DAY, Refresh};
use perennial_testkit::{Db, on_each_database};
use serde::{Deserialize, Serialize};

on_each_database! {
    a_value_comes_back_unchanged
}

const DAILY: Refresh = Refresh::every(DAY);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Book {
    title: String,
    stars: f64,
}

fn book() -> Book {
    Book {
        title: "Middlemarch".into(),
        stars: 4.5,
    }
}

async fn a_value_comes_back_unchanged(db: Db) {
    let generate = async || Ok::<_, Infallible>(book());
    let site = db.site().await;
    let first: Arc<Book> = site.value("book", DAILY, generate).await.expect("is made");
    let again = site.value::<Book, _, _>("book", &DAILY, generate).await;
    assert!(
        Arc::ptr_eq(&first, &again.expect("a hit")),
        "a hit decodes nothing"
    );
    assert_eq!(*first, book());
    let stored = site.stored_response("book").await.expect("answers");
    let stored = stored.expect("is stored");
    assert_eq!(stored.headers()["content-type"], "application/json");
    assert_eq!(&**stored.body(), br#"{"title":"Middlemarch","stars":4.5}"#);
}
