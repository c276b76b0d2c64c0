//! Each step of the tutorial does what `docs/tutorial.md` says, and the listings there are those of the programs. Step 3
//! is step 2, twice. The steps from 8 on need PostgreSQL.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use perennial_testkit::{Db, Reply, request, until};
use tempfile::TempDir;

/// The program with the test that a reader writes in step 9.
#[path = "../src/bin/step-09.rs"]
#[allow(dead_code, reason = "only its test runs here")]
mod step_09;

/// A step as a process.
struct Shop {
    child: Child,
    address: SocketAddr,
}

impl Shop {
    /// Starts a program in a folder, where it finds the database of another one.
    fn start(program: &str, folder: &Path, database: &str) -> Self {
        let mut child = Command::new(program)
            .arg("0")
            .current_dir(folder)
            .env("DATABASE_URL", database)
            .env("STATUS_PASSWORD", "secret")
            .env_remove("PERENNIAL_MODE")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        // The log comes there, too.
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("http://")?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{program} prints no address"));
        Self { child, address }
    }

    async fn get(&self, path: &str) -> Reply {
        request(self.address, "GET", path, &[]).await
    }

    async fn post(&self, path: &str, form: &str) -> Reply {
        perennial_testkit::post(self.address, path, form).await
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `Cache-Status` says, without the rest of the interval.
fn status(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{reply:?}");
    let status = reply.headers.get("cache-status");
    let status = status.and_then(|it| it.to_str().ok()).unwrap_or("none");
    let status = status.trim_start_matches("perennial; ");
    match status.split_once("ttl=") {
        Some((_, ttl)) if ttl.starts_with('-') => "hit, stale",
        Some(_) => "hit",
        None => status,
    }
}

const STORED: &str = "fwd=miss; stored";
const REGENERATED: &str = "fwd=stale; stored";

#[tokio::test]
async fn step_1_generates_for_each_visitor() {
    let folder = TempDir::new().expect("a folder");
    let shop = Shop::start(env!("CARGO_BIN_EXE_step-01"), folder.path(), "");
    let page = shop.get("/best-sellers").await;
    assert_eq!(status(&page), "none");
    assert!(
        page.text().contains("<li>Middlemarch, sold 70 times"),
        "{page:?}"
    );
}

#[tokio::test]
async fn steps_2_and_3_generate_once_for_two_processes() {
    let folder = TempDir::new().expect("a folder");
    let start = || Shop::start(env!("CARGO_BIN_EXE_step-02"), folder.path(), "");
    let (one, other) = (start(), start());
    let first = one.get("/best-sellers").await;
    assert_eq!(status(&first), STORED);
    assert_eq!(status(&one.get("/best-sellers").await), "hit");
    let read = other.get("/best-sellers").await;
    assert_eq!((status(&read), read.text()), ("hit", first.text()));
    until("the page is stale after ten seconds", async || {
        status(&one.get("/best-sellers").await) == REGENERATED
    })
    .await;
    drop(one);
    drop(other);
    let restarted = start().get("/best-sellers").await;
    assert_ne!(status(&restarted), STORED);
}

#[tokio::test]
async fn step_4_shows_a_new_book_to_its_author_in_each_process() {
    let folder = TempDir::new().expect("a folder");
    let start = || Shop::start(env!("CARGO_BIN_EXE_step-04"), folder.path(), "");
    let (one, other) = (start(), start());
    for shop in [&one, &other] {
        shop.get("/books").await;
    }
    let added = one.post("/books", "title=Persuasion&price=7").await;
    assert_eq!(added.status, 303, "{added:?}");
    let cookie = added.headers["set-cookie"].to_str().expect("is text");
    let cookie = cookie.split(';').next().expect("a pair");
    let page = request(other.address, "GET", "/books", &[("cookie", cookie)]).await;
    assert!(page.text().contains("<li>Persuasion, 7 euros"), "{page:?}");
    let refused = one.post("/books", "title=Persuasion").await;
    assert_eq!(refused.status, 422, "{refused:?}");
}

#[tokio::test]
async fn step_5_knows_which_parameters_count() {
    let folder = TempDir::new().expect("a folder");
    let shop = Shop::start(env!("CARGO_BIN_EXE_step-05"), folder.path(), "");
    assert_eq!(status(&shop.get("/books?page=1").await), STORED);
    let page = shop.get("/books?utm_source=mail&page=1").await;
    assert_eq!(status(&page), "hit");
}

#[tokio::test]
async fn step_6_has_a_page_for_each_language() {
    let folder = TempDir::new().expect("a folder");
    let shop = Shop::start(env!("CARGO_BIN_EXE_step-06"), folder.path(), "");
    for (language, title, expected) in [
        ("de-AT,de;q=0.9", "Alle Bücher", STORED),
        ("de", "Alle Bücher", "hit"),
        ("fr", "All books", STORED),
    ] {
        let headers = [("accept-language", language)];
        let page = request(shop.address, "GET", "/books", &headers).await;
        assert!(page.text().contains(title), "{language}: {page:?}");
        assert_eq!(status(&page), expected, "{language}");
        let vary = page.headers.get_all("vary").iter();
        let vary: Vec<_> = vary.filter_map(|it| it.to_str().ok()).collect();
        assert!(vary.join(",").contains("accept-language"), "{vary:?}");
    }
}

#[tokio::test]
async fn step_7_greets_each_visitor_on_one_stored_page() {
    let folder = TempDir::new().expect("a folder");
    let shop = Shop::start(env!("CARGO_BIN_EXE_step-07"), folder.path(), "");
    shop.get("/books").await;
    for (cookie, name) in [
        ("name=Ann", "Ann"),
        ("a=b; name=Bob", "Bob"),
        ("", "stranger"),
    ] {
        let page = request(shop.address, "GET", "/books", &[("cookie", cookie)]).await;
        assert_eq!(status(&page), "hit", "{name}");
        assert!(
            page.text().contains(&format!("<p>Hello {name}\n")),
            "{page:?}"
        );
    }
    let login = shop.post("/login", "name=Ann").await;
    let cookie = login.headers["set-cookie"].to_str().expect("is text");
    assert!(cookie.starts_with("name=Ann;"), "{cookie}");
    assert_eq!(shop.post("/login", "name=a%3Bb").await.status, 422);
}

#[tokio::test]
async fn step_8_follows_its_table() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let start = || Shop::start(env!("CARGO_BIN_EXE_step-08"), folder.path(), db.url());
    let (one, other) = (start(), start());
    for shop in [&one, &other] {
        shop.get("/books").await;
        assert_eq!(status(&shop.get("/books").await), "hit");
    }
    db.execute("UPDATE book SET price = 10 WHERE title = 'Emma'")
        .await;
    for shop in [&one, &other] {
        until("each process shows the price", async || {
            shop.get("/books")
                .await
                .text()
                .contains("<li>Emma, 10 euros")
        })
        .await;
    }
    let fence = async || {
        let fence = "SELECT fence FROM perennial_entry WHERE name LIKE '/books%'";
        db.int(fence).await
    };
    // A page that was being generated while the row changed is generated once more.
    until("the list is settled", async || {
        let before = fence().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        status(&one.get("/books").await) == "hit" && fence().await == before
    })
    .await;
    let before = fence().await;
    db.execute("UPDATE book SET sold = sold + 1").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for shop in [&one, &other] {
        assert_eq!(status(&shop.get("/books").await), "hit");
    }
    assert_eq!(fence().await, before, "the list does not show sales");
}

/// The test of step 9 finds its database in the environment, so it runs in a process of its own.
#[tokio::test]
async fn step_9_has_a_test_that_passes() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let test = "step_09::tests::new_price_is_on_the_list_of_both_processes";
    let output = Command::new(std::env::current_exe().expect("is there"))
        .args(["--exact", test])
        .env("DATABASE_URL", db.url())
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn step_10_is_warm_before_its_first_visitor() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let shop = Shop::start(env!("CARGO_BIN_EXE_step-10"), folder.path(), db.url());
    for path in ["/best-sellers", "/books"] {
        assert_eq!(status(&shop.get(path).await), "hit", "{path}");
    }
    assert_eq!(shop.get("/admin/cache").await.status, 403);
    let password = [("x-status-password", "secret")];
    let page = request(shop.address, "GET", "/admin/cache", &password).await;
    assert!(page.text().contains("Hit ratio"), "{page:?}");
}

/// Each listing of a step is a part of its program.
#[test]
fn listings_of_the_tutorial_are_those_of_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tutorial = std::fs::read_to_string(root.join("../../docs/tutorial.md")).expect("is read");
    let mut listings = 0;
    for step in tutorial.split("\n## Step ").skip(1) {
        let number: u32 = step
            .split(':')
            .next()
            .expect("a number")
            .parse()
            .expect("one");
        let file = root.join(format!("src/bin/step-{number:02}.rs"));
        let program = std::fs::read_to_string(&file).unwrap_or_default();
        for listing in step.split("```rust\n").skip(1) {
            let listing = listing.split("```").next().expect("ends");
            assert!(
                program.contains(listing),
                "{} lacks\n{listing}",
                file.display()
            );
            listings += 1;
        }
    }
    assert!(listings > 15, "{listings} listings");
}
