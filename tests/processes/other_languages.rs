//! Programs in other languages respect the locks: the Python module of `docs/foreign`.

use std::{
    convert::Infallible,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use perennial::locks::Locks;

use perennial_testkit::{Contender, Db, on_each_database, taken, until};

use crate::lock_contention::contender_of;

on_each_database! {
    one_of_two_languages_wins_each_round
    a_lease_of_another_language_is_respected_and_the_other_way_round
    hard_names_are_the_same_in_every_language
    python_keeps_a_lease_for_longer_than_its_length
    python_invalidates_a_page
    python_refuses_a_transaction_and_releases_twice
}

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/");

/// A Python with the drivers. Without one, tests that need it are skipped where skipping is
/// allowed.
pub(crate) fn python() -> Option<String> {
    let named = std::env::var("PERENNIAL_TEST_PYTHON").ok();
    let pythons = ["python3".to_owned(), "/usr/bin/python3".to_owned()];
    let found = named.into_iter().chain(pythons).find(|python| {
        let script = format!("{FOLDER}contender.py");
        let checked = Command::new(python)
            .arg(script)
            .stderr(std::process::Stdio::null())
            .status();
        checked.is_ok_and(|status| status.success())
    });
    if found.is_none() {
        assert!(
            std::env::var_os("PERENNIAL_TEST_ALL").is_none(),
            "there is no Python with psycopg2 and PyMySQL, and nothing may be skipped"
        );
        eprintln!(
            "SKIPPED: there is no Python with psycopg2 and PyMySQL; scripts/test installs one"
        );
    }
    found
}

pub(crate) fn in_python(python: &str, db: &Db) -> Contender {
    let script = format!("{FOLDER}contender.py");
    Contender::run(Command::new(python).args([&*script, db.url()]))
}

async fn locks(db: &Db) -> Locks {
    Locks::with_pool(db.database().await).await.expect("opens")
}

fn told(contender: &mut Contender, what: &str) -> String {
    contender.tell(what);
    contender.said().concat()
}

async fn one_of_two_languages_wins_each_round(db: Db) {
    const ROUNDS: usize = 24;
    let Some(python) = python() else { return };
    let _locks = locks(&db).await;
    let mut contenders = [
        contender_of(&db),
        in_python(&python, &db),
        contender_of(&db),
        in_python(&python, &db),
    ];
    let mut wins = [0; 4];
    // The client that starts first wins. The clients take turns at this, and the head start is long
    // enough on any machine.
    let mut ahead = [Duration::from_millis(16); 4];
    let mut last = 0;
    for round in 0..ROUNDS {
        // Each name is tried three times: the first time it has no row yet, and then its lease has
        // expired.
        let name = format!("round {}", round / 3);
        let what = format!("try {name}");
        let first = round % contenders.len();
        contenders[first].tell(&what);
        tokio::time::sleep(ahead[first]).await;
        for (number, contender) in contenders.iter_mut().enumerate() {
            if number != first {
                contender.tell(&what);
            }
        }
        let mut won = Vec::new();
        for (number, contender) in contenders.iter_mut().enumerate() {
            for fence in contender.said() {
                won.push((number, fence.parse::<i64>().expect("a fence")));
            }
        }
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        let (winner, fence) = won[0];
        wins[winner] += 1;
        ahead[first] = match winner == first {
            true => ahead[first] / 2,
            false => ahead[first] * 2,
        }
        .max(Duration::from_millis(1));
        assert!(
            round % 3 == 0 || fence > last,
            "round {round}: {fence} after {last}"
        );
        last = fence;
        let expire = format!("UPDATE perennial_lock SET expires_at = 1 WHERE name = '{name}'");
        assert_eq!(db.execute(&expire).await, 1);
    }
    let by_language = [wins[0] + wins[2], wins[1] + wins[3]];
    assert!(by_language.iter().all(|wins| *wins > 0), "{by_language:?}");
}

async fn a_lease_of_another_language_is_respected_and_the_other_way_round(db: Db) {
    let Some(python) = python() else { return };
    let locks = locks(&db).await;
    let mut python = in_python(&python, &db);
    db.execute("CREATE TABLE document (fence BIGINT NOT NULL)")
        .await;
    db.execute("INSERT INTO document VALUES (0)").await;

    let first: i64 = told(&mut python, "try a").parse().expect("a fence");
    assert!(locks.try_lock("a").await.expect("answers").is_none());
    let attempt = locks
        .lock("a")
        .wait(Duration::from_millis(100))
        .action("write");
    let error = attempt.await.expect_err("is taken").to_string();
    assert!(
        error.contains("\"a python\" has held it for") && error.contains("\"a test\""),
        "{error}"
    );
    assert_eq!(told(&mut python, "extend a"), "True");
    assert_eq!(told(&mut python, "write a"), "True");
    assert_eq!(told(&mut python, "release a"), "True");

    let lease = taken(&locks, "a").await;
    assert!(lease.fence().0 > first);
    assert_eq!(told(&mut python, "try a"), "");
    // A client neither extends nor releases a lost lock.
    assert_eq!(told(&mut python, "extend a"), "False");
    assert_eq!(told(&mut python, "release a"), "False");
    let write = format!(
        "UPDATE document SET fence = {0} WHERE fence <= {0}",
        lease.fence()
    );
    assert_eq!(db.execute(&write).await, 1);
    assert_eq!(
        told(&mut python, "write a"),
        "False",
        "a later fence has written"
    );
    lease.extend().await.expect("is ours");
    lease.release().await.expect("is ours");

    // Any client may take a lock whose lease has expired.
    let over = Instant::now() + Duration::from_millis(450);
    assert!(told(&mut python, "brief b").parse::<i64>().is_ok());
    let lease = locks.lock("b").await.expect("is free in time");
    assert!(Instant::now() > over);
    assert_eq!(told(&mut python, "extend b"), "False");
    assert!(locks.break_lock("b", None).await.expect("answers"));
    let fence: i64 = told(&mut python, "try b").parse().expect("a fence");
    assert!(fence > lease.fence().0);
    lease.release().await.expect_err("was broken");
}

async fn python_keeps_a_lease_for_longer_than_its_length(db: Db) {
    let Some(python) = python() else { return };
    let locks = locks(&db).await;
    let mut python = in_python(&python, &db);
    let expiry = async || db.int("SELECT expires_at FROM perennial_lock").await;
    told(&mut python, "keep a");
    let first = expiry().await;
    until("it outlives its length of 2 s", async || {
        expiry().await > first.map(|first| first + 2_000_000)
    })
    .await;
    assert_eq!(told(&mut python, "stop a"), "False");
    assert!(locks.break_lock("a", None).await.expect("answers"));
    told(&mut python, "keep b");
    assert!(locks.break_lock("b", None).await.expect("answers"));
    until("the loss is noticed", async || {
        told(&mut python, "stop b") == "True"
    })
    .await;
}

async fn python_invalidates_a_page(db: Db) {
    let Some(python) = python() else { return };
    let site = db.site().await;
    let mut python = in_python(&python, &db);
    let policy = perennial::Refresh::every(perennial::DAY);
    let runs = Arc::new(AtomicU32::new(0));
    let content = async || {
        let runs = Arc::clone(&runs);
        let run = async move || Ok::<_, Infallible>(runs.fetch_add(1, SeqCst).to_string());
        let content = site.content("a long name/\u{e4}", &policy, run);
        content.await.expect("is served").to_string()
    };
    for target in [
        "key:a long name/\u{e4}",
        "prefix:a long",
        "purged:a long name/\u{e4}",
    ] {
        let before = content().await;
        told(&mut python, &format!("invalidate {target}"));
        until("it is generated again", async || content().await > before).await;
    }
}

async fn python_refuses_a_transaction_and_releases_twice(db: Db) {
    let Some(python) = python() else { return };
    let _made = locks(&db).await;
    let mut python = in_python(&python, &db);
    told(&mut python, "begin it");
    let said = told(&mut python, "refused a");
    assert!(said.contains("transaction"), "{said}");
    told(&mut python, "rollback it");
    assert_ne!(told(&mut python, "try a"), "");
    for _ in 0..2 {
        assert_eq!(told(&mut python, "release a"), "True");
    }
}

async fn hard_names_are_the_same_in_every_language(db: Db) {
    let Some(python) = python() else { return };
    let locks = locks(&db).await;
    let mut python = in_python(&python, &db);
    let long = "lang".repeat(60);
    let wide = "ä€😀".repeat(40);
    let cut = format!("{}😀{}", "x".repeat(126), "y".repeat(80));
    for name in [
        "a",
        "A",
        "ä",
        "it's",
        "\"`$(false)`\\",
        "%2F/a",
        "' OR 1=1 --",
        &long,
        &wide,
        &cut,
        &"z".repeat(180),
        &"z".repeat(181),
    ] {
        let lease = locks
            .try_lock(name)
            .await
            .expect("answers")
            .expect("is its own");
        assert_eq!(told(&mut python, &format!("try {name}")), "", "{name}");
        lease.release().await.expect("is ours");
        assert_ne!(told(&mut python, &format!("try {name}")), "", "{name}");
        assert!(
            locks.try_lock(name).await.expect("answers").is_none(),
            "{name}"
        );
    }
}
