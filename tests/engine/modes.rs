//! The modes: without a cache, and for development.

use std::time::Duration;

use perennial::{DAY, Mode, Perennial, Refresh};

use perennial_testkit::{Origin, Reply, get, virtual_time::origin_behind};

fn open(database: &perennial_testing::Database, mode: Mode) -> Perennial {
    let builder = Perennial::builder().mode(mode);
    database.open(builder).expect("opens")
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let value = reply.headers.get(name)?;
    Some(value.to_str().expect("text"))
}

#[tokio::test(start_paused = true)]
async fn off_stores_and_serves_nothing() {
    let database = perennial_testing::Database::new();
    let (_, on) = origin_behind(&open(&database, Mode::On), Refresh::every(DAY));
    assert_eq!(get(on, "/").await.run(), 1);
    let site = open(&database, Mode::Off);
    let (origin, off) = origin_behind(&site, Refresh::every(DAY));
    for run in 1..4 {
        let reply = get(off, "/").await;
        assert_eq!(reply.run(), run, "not what is stored");
        assert_eq!(
            header(&reply, "cache-status"),
            Some("perennial; fwd=bypass; detail=off")
        );
    }
    assert_eq!(origin.begun(), 3);
    for number in 0..3 {
        let content = site.content("part", Refresh::every(DAY), async move || {
            Ok::<_, String>(number.to_string())
        });
        assert_eq!(content.await.expect("is made").text(), number.to_string());
    }
    let failed = site.content("part", Refresh::every(DAY), async || Err::<&str, _>("no"));
    assert_eq!(
        failed.await.expect_err("fails").kind(),
        perennial::ErrorKind::Generator
    );
    assert_eq!(database.generations("part"), 0);
    assert_eq!(database.generations("/"), 1);
    // Locks work as usual.
    let lease = site.locks().try_lock("a").await.expect("answers");
    assert!(lease.is_some() && site.locks().try_lock("a").await.expect("answers").is_none());
}

#[tokio::test(start_paused = true)]
async fn development_shows_new_versions_and_failures() {
    /// The runs by which the first version of a page is compared, each of which makes another page here.
    const COMPARED: usize = 2;
    let database = perennial_testing::Database::new();
    let site = open(&database, Mode::Development);
    let (origin, address) = origin_behind(&site, Refresh::every(DAY).in_background());
    for _ in 0..2 {
        assert_eq!(get(address, "/").await.run(), 1);
    }
    perennial_testing::advance(DAY).await;
    let stale = get(address, "/").await;
    assert_eq!(
        stale.run(),
        2 + COMPARED,
        "the visitor waits for the new version"
    );

    perennial_testing::advance(DAY).await;
    origin.status(500);
    for run in 3 + COMPARED..6 + COMPARED {
        let failed = get(address, "/").await;
        assert_eq!((failed.status, failed.run()), (500, run), "no cooldown");
        let status = header(&failed, "cache-status").expect("is there");
        assert!(status.ends_with("; detail=failed"), "{status}");
    }
    origin.status(200);
    assert_eq!(get(address, "/").await.run(), 6 + COMPARED);

    let told = site.content("part", Refresh::every(Duration::ZERO), async || {
        Ok::<_, String>("text")
    });
    assert_eq!(told.await.expect("is made").text(), "text");
    let failed = site.content("part", Refresh::every(Duration::ZERO), async || {
        Err::<&str, _>("x")
    });
    assert!(
        failed
            .await
            .expect_err("the failure, and not the old text")
            .kind()
            == perennial::ErrorKind::Generator
    );
}

#[test]
fn a_wrong_mode_in_the_environment_is_an_error() {
    // In a process of its own, as the environment belongs to all tests.
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", "modes::opens_by_the_environment", "--ignored"])
        .env("PERENNIAL_MODE", "dev")
        .output()
        .expect("runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{printed}");
    assert!(
        printed.contains("write one of on, off, development"),
        "{printed}"
    );
}

#[tokio::test(start_paused = true)]
#[ignore = "run by the test before, with another environment"]
async fn opens_by_the_environment() {
    let database = perennial_testing::Database::new();
    if let Err(error) = database.open(Perennial::builder()) {
        panic!("{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_build_is_a_revision() {
    let database = perennial_testing::Database::new();
    let builder = Perennial::builder().revision_of_executable();
    let site = database.open(builder).expect("opens");
    let origin = Origin::default();
    let app = origin.router().layer(site.layer(Refresh::every(DAY)));
    get(&app, "/").await;
    let entry = site.entry("/").await.expect("answers").expect("is stored");
    assert_eq!(entry.revision.expect("has one").len(), 32);
}
