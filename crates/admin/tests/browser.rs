//! The pages in a real browser: every button, hostile keys, the stream, and the shutdown with an
//! open page. Skipped without chromedriver, unless PERENNIAL_TEST_ALL is set.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{Request, StatusCode},
    response::Html,
    routing::get,
};
use perennial::{DAY, Perennial, Refresh};
use perennial_admin::{Access, Admin, CancellationToken};
use perennial_testkit_browser::{Driver, View};
use tempfile::TempDir;
use thirtyfour::prelude::*;
use tower::ServiceExt;

/// Longer than anything that is waited for.
const HANG: Duration = Duration::from_secs(60);

const SCRIPT: &str =
    "part/<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">";

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < HANG, "never came about: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A page of the browser.
struct Page {
    browser: WebDriver,
    base: String,
}

impl Page {
    async fn open(&self, path: &str) {
        let url = format!("{}{path}", self.base);
        self.browser.goto(url).await.expect("opens");
    }

    async fn shows(&self, text: &str) {
        until(text, async || {
            let source = self.browser.source().await.unwrap_or_default();
            source.contains(text)
        })
        .await;
    }

    /// Clicks the button with this text, or the link.
    async fn click(&self, text: &str) {
        let path =
            format!("//button[normalize-space()='{text}'] | //a[normalize-space()='{text}']");
        let found = self.browser.find(By::XPath(path)).await;
        let found = found.unwrap_or_else(|error| panic!("no button {text}: {error}"));
        found.click().await.expect("is clicked");
    }

    async fn stored_pages(&self) -> u64 {
        // One script finds the element and reads it, because the stream may replace the element
        // between two commands.
        let number = "return document.getElementById('stored-pages').textContent";
        let number = self.browser.execute(number, Vec::new()).await;
        let text: String = number.expect("is there").convert().expect("a text");
        text.parse().expect("a number")
    }
}

/// Adds the status page to the pages of a site, and serves both.
async fn serve(
    site: &Perennial,
    pages: Router,
    shutdown: &CancellationToken,
) -> (String, tokio::task::JoinHandle<std::io::Result<()>>) {
    let status = Admin::new(site.clone(), shutdown.clone(), |_| Access::full("operator"));
    let status = status.pages(pages.clone());
    let app = pages.nest("/status", status.router());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    let ends = shutdown.clone().cancelled_owned();
    let server = axum::serve(listener, app).with_graceful_shutdown(ends);
    let server = tokio::spawn(async move { server.await });
    (format!("http://{address}"), server)
}

/// A site with something in every list, and keys, tags and errors longer than a phone is wide.
#[tokio::test(flavor = "multi_thread")]
async fn pages_fit_phones_tablets_and_desktops_by_day_and_by_night() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    let site = Perennial::open(&url).await.expect("opens");
    let shutdown = CancellationToken::new();
    let visits = Arc::new(AtomicUsize::new(0));
    let book = async move |Path(id): Path<String>| {
        let visit = visits.fetch_add(1, Relaxed);
        if id == "broken" && visit > 10 {
            return Err(StatusCode::INTERNAL_SERVER_ERROR);
        }
        tokio::time::sleep(Duration::from_millis(visit as u64 % 7 * 5)).await;
        Ok(Html(format!("<h1>{id}</h1><p>{visit}</p>")))
    };
    let layer = site.layer(Refresh::every(Duration::from_secs(2)));
    let long = "a-very-long-name-".repeat(12);
    let books = layer.tag("books").tag(&*long);
    let pages = Router::new().route("/books/{id}", get(book).layer(books));
    let (base, server) = serve(&site, pages.clone(), &shutdown).await;
    for round in 0..3 {
        for id in (1..30)
            .map(|id| id.to_string())
            .chain([long.clone(), "broken".to_owned()])
        {
            let request = Request::get(format!("/books/{id}")).body(Body::empty());
            let response = pages.clone().oneshot(request.expect("a request")).await;
            response.expect("answers");
        }
        if round == 0 {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
    let lease = site
        .locks()
        .lock(&*long)
        .action("imports the catalogue of a publisher");
    let lease = lease.await.expect("is free");

    let page = Page {
        browser: driver.browser().await,
        base,
    };
    for (name, path) in [
        ("overview", "/status"),
        ("entries", "/status/entries"),
        ("entry", "/status/entry?key=/books/1"),
        ("long-entry", &format!("/status/entry?key=/books/{long}")),
        ("locks", "/status/locks"),
        ("explain", "/status/explain?path=/books/1"),
    ] {
        page.open(path).await;
        if name == "overview" {
            page.shows("data-connected").await;
        }
        for view in View::all() {
            view.fits(&page.browser, name).await;
        }
    }
    page.browser.clone().quit().await.expect("ends");
    lease.release().await.expect("is released");
    shutdown.cancel();
    server.await.expect("no panic").expect("no error");
    site.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_button_works_in_a_browser() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    let site = Perennial::open(&url).await.expect("opens");
    let shutdown = CancellationToken::new();
    let book = async |Path(id): Path<String>| {
        Html(format!(
            "<h1>Book</h1><script>parent.x=1</script>{}",
            id.len()
        ))
    };
    let books = site.layer(Refresh::every(DAY)).tag("books");
    let pages = Router::new().route("/books/{id}", get(book).layer(books));
    let (base, server) = serve(&site, pages, &shutdown).await;

    let page = Page {
        browser: driver.browser().await,
        base,
    };
    let hostile = [
        SCRIPT.to_owned(),
        "part/right\u{202e}left \" ' & </td>".to_owned(),
        format!("part/{}", "ü".repeat(2000)),
    ];
    let policy = Refresh::every(DAY);
    for key in &hostile {
        let content = site.content(key, &policy, async || Ok::<_, String>("text"));
        content.await.expect("is stored");
    }

    // The overview counts while it is open.
    page.open("/books/1").await;
    page.open("/status").await;
    page.shows("data-connected").await;
    let before = page.stored_pages().await;
    let address = page.base.trim_start_matches("http://");
    let visitor = tokio::net::TcpStream::connect(address)
        .await
        .expect("connects");
    let request = b"GET /books/2 HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    visitor.writable().await.expect("is writable");
    assert_eq!(visitor.try_write(request).expect("is sent"), request.len());
    until("the new page is counted", async || {
        page.stored_pages().await == before + 1
    })
    .await;
    site.invalidate_tag("seen at once")
        .await
        .expect("is stored");
    page.shows("invalidated tag:seen at once").await;

    // The buttons of an entry.
    page.click("Entries").await;
    page.click("/books/1").await;
    page.shows("Regenerate now").await;
    page.click("Regenerate now").await;
    page.shows("There is a new version").await;
    page.click("Invalidate").await;
    page.shows("Invalidated: the next request").await;
    page.shows("◐ stale").await;
    page.click("Purge…").await;
    page.shows("Purge removes").await;
    page.click("Purge").await;
    page.shows("Nothing is stored under this key.").await;
    assert!(site.entry("/books/1").await.expect("answers").is_none());

    // Keys that contain markup are shown as text, and the buttons act on exactly these keys.
    page.open("/status/entries?prefix=part/").await;
    let links = page
        .browser
        .find_all(By::Css("td.key a"))
        .await
        .expect("are there");
    assert_eq!(links.len(), hostile.len());
    for key in &hostile {
        page.open("/status/entries?prefix=part/").await;
        let shown: String = perennial::entries::visible(key).chars().take(40).collect();
        let links = page
            .browser
            .find_all(By::Css("td.key a"))
            .await
            .expect("are there");
        let mut link = None;
        for found in links {
            if found.text().await.expect("has a text").starts_with(&shown) {
                link = Some(found);
            }
        }
        link.expect("is listed").click().await.expect("is clicked");
        page.shows("Regenerate now").await;
        page.click("Invalidate").await;
        page.shows("Invalidated: the next request").await;
        let title = page.browser.title().await.expect("has one");
        assert_eq!(title, "Entry – Perennial", "no script of a key has run");
        let entry = site.entry(key).await.expect("answers").expect("is stored");
        assert_eq!(entry.state.as_str(), "stale");
    }

    // Many at once, with their number first.
    page.open("/books/2").await;
    page.open("/status/entries").await;
    let tag = page
        .browser
        .find_all(By::Css("form[action$='/many'] input[name=name]"))
        .await;
    let tag = &tag.expect("are there")[1];
    tag.send_keys("books").await.expect("is typed");
    tag.send_keys(Key::Enter).await.expect("is sent");
    page.shows("Stored entries that match: 1.").await;
    page.click("Invalidate").await;
    page.shows("Invalidated: the next request").await;

    // A lock, as a phone shows it.
    let lease = site
        .locks()
        .lock("import")
        .action("reads a file")
        .await
        .expect("is free");
    let _ = page.browser.set_window_rect(0, 0, 400, 800).await;
    page.open("/status/locks").await;
    page.shows("reads a file").await;
    page.click("Break…").await;
    page.shows("may still be at work").await;
    page.click("Break the lock").await;
    page.shows("The lock was taken from its holder.").await;
    tokio::time::timeout(HANG, lease.lost())
        .await
        .expect("is lost");

    // The open stream of the overview does not hold up the shutdown.
    page.open("/status").await;
    page.shows("data-connected").await;
    shutdown.cancel();
    let ended = tokio::time::timeout(HANG, server).await;
    ended
        .expect("ends in time")
        .expect("no panic")
        .expect("no error");
    page.browser.quit().await.expect("ends");
    site.shutdown().await;
}
