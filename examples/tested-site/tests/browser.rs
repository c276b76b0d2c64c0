//! Two processes over one database, in a real browser: who changes a page sees the change. Skipped
//! without chromedriver, unless PERENNIAL_TEST_ALL is set.

use std::time::{Duration, Instant};

use axum::{Router, extract::Request, http::Method};
use perennial::{Mode, Perennial};
use perennial_testkit_browser::Driver;
use tempfile::TempDir;
use tested_site::{Shop, app};
use thirtyfour::prelude::*;
use tower::ServiceExt;

/// Longer than anything that is waited for.
const HANG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn author_of_a_book_sees_it_though_another_process_answers() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    let shop = Shop::default();
    let process = async || {
        let site = Perennial::builder()
            .mode(Mode::On)
            .read_own_writes()
            .open(&url)
            .await;
        app(&site.expect("opens"), shop.clone())
    };
    let (changing, reading) = (process().await, process().await);
    // A balancer that gives the form to one process, and the page to the other one.
    let balanced = move |request: Request| {
        let process = match *request.method() {
            Method::GET => reading.clone(),
            _ => changing.clone(),
        };
        process.oneshot(request)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let page = format!("http://{}/books", listener.local_addr().expect("has one"));
    let balancer = Router::new().fallback(balanced);
    tokio::spawn(async move { axum::serve(listener, balancer).await });

    let browser = driver.browser().await;
    browser.goto(&page).await.expect("opens");
    let title = async || {
        // The page may be gone between the two steps.
        let title = browser.find(By::Tag("h1")).await.ok()?;
        title.text().await.ok()
    };
    let begun = Instant::now();
    for books in 0..5 {
        // If the page after a click were the old list, it would stay for ever, because the browser
        // does not ask for it again.
        let expected = format!("{books} books");
        while title().await.as_ref() != Some(&expected) {
            assert!(begun.elapsed() < HANG, "{expected} never came");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let button = browser.find(By::Tag("button")).await.expect("is there");
        button.click().await.expect("is clicked");
    }
    browser.quit().await.expect("ends");
}
