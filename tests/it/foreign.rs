//! Programs in other languages respect the locks: the Python module and the shell script of
//! `examples/foreign`.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use perennial::locks::Locks;

use crate::{
    databases::Db,
    herd::Contender,
    support::{Folder, HANG, until},
};

on_each_database! {
    one_of_three_languages_wins_each_round
    a_lease_of_another_language_is_respected_and_the_other_way_round
    a_shell_runs_a_command_under_a_lock
    hard_names_are_the_same_in_every_language
}

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign/");
const LOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/foreign/lock.sh");

/// A Python with the drivers. Without one, tests that need it are skipped where skipping is
/// allowed.
fn python() -> Option<String> {
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

fn in_python(python: &str, db: &Db) -> Contender {
    let script = format!("{FOLDER}contender.py");
    Contender::run(Command::new(python).args([&*script, db.url()]))
}

fn in_shell(db: &Db) -> Contender {
    let script = format!("{FOLDER}contender.sh");
    Contender::run(Command::new("bash").args([&*script, db.url()]))
}

async fn locks(db: &Db) -> Locks {
    Locks::new(db.database().await).await.expect("opens")
}

fn told(contender: &mut Contender, what: &str) -> String {
    contender.tell(what);
    contender.said().concat()
}

async fn one_of_three_languages_wins_each_round(db: Db) {
    const ROUNDS: usize = 60;
    let Some(python) = python() else { return };
    let _locks = locks(&db).await;
    let mut contenders = [
        Contender::start(db.url()),
        in_python(&python, &db),
        in_shell(&db),
        Contender::start(db.url()),
        in_python(&python, &db),
    ];
    let mut wins = [0; 5];
    // The client that starts first wins every other time, on any machine: its head start is long
    // enough.
    let mut ahead = [Duration::from_millis(16); 5];
    let mut last = 0;
    for round in 0..ROUNDS {
        // Each name three times: fresh, and then expired.
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
    let by_language = [wins[0] + wins[3], wins[1] + wins[4], wins[2]];
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

    let lease = locks
        .try_lock("a")
        .await
        .expect("answers")
        .expect("is free");
    assert!(lease.fence() > first);
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
    assert!(locks.break_lock("b").await.expect("answers"));
    let fence: i64 = told(&mut python, "try b").parse().expect("a fence");
    assert!(fence > lease.fence());
    lease.release().await.expect_err("was broken");
}

/// The script, under bash.
fn lock(db: &Db, name: &str, rest: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("bash");
    command
        .args([LOCK, db.url(), name])
        .args(rest)
        .kill_on_drop(true);
    command
}

/// Waits until the lock's lease is extended.
async fn extended(db: &Db, name: &str) {
    let expiry = format!("SELECT expires_at FROM perennial_lock WHERE name = '{name}'");
    let mut first = None;
    until("it is extended", async || {
        let expiry = db.int(&expiry).await;
        first = first.or(expiry);
        expiry > first
    })
    .await;
}

async fn command_is_run_alone(db: &Db, locks: &Locks) {
    let ran = lock(
        db,
        "job",
        &["--", "sh", "-c", "echo $PERENNIAL_FENCE; exit 7"],
    )
    .output();
    let ran = ran.await.expect("runs");
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    let fence: i64 = String::from_utf8_lossy(&ran.stdout)
        .trim()
        .parse()
        .expect("a fence");

    let lease = locks
        .try_lock("job")
        .await
        .expect("answers")
        .expect("was released");
    assert!(lease.fence() > fence);
    let refused = lock(db, "job", &["--", "true"])
        .output()
        .await
        .expect("runs");
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("job is held"),
        "{refused:?}"
    );
    let waiting = lock(db, "job", &["--wait", "30", "--", "sleep", "60"]).spawn();
    let mut waiting = waiting.expect("starts");
    lease.release().await.expect("is ours");
    until("the script has it", async || {
        let info = locks.inspect("job").await.expect("answers");
        let holder = info.and_then(|info| info.holder);
        holder.is_some_and(|holder| holder.label.starts_with("shell ") && holder.action == "sleep")
    })
    .await;
    waiting.kill().await.expect("is alive");
}

/// The lease is extended for as long as the command runs.
async fn command_is_stopped_when_the_lock_is_lost(db: &Db, locks: &Locks) {
    let mut long = lock(db, "long", &["--lease", "12", "--", "sleep", "120"])
        .spawn()
        .expect("starts");
    extended(db, "long").await;
    assert!(locks.try_lock("long").await.expect("answers").is_none());
    assert!(locks.break_lock("long").await.expect("answers"));
    assert_eq!(long.wait().await.expect("ends").code(), Some(74));
}

/// After lock.sh is killed, the lock is held for as long as its command runs, and not longer.
async fn command_keeps_the_lock_of_a_killed_script(db: &Db, locks: &Locks) {
    let folder = Folder::new();
    let end = folder.path().join("end");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", end.display());
    let mut killed = lock(db, "killed", &["--lease", "9", "--", "sh", "-c", &wait])
        .spawn()
        .expect("starts");
    extended(db, "killed").await;
    killed.kill().await.expect("is alive");
    // An extension may be under way.
    extended(db, "killed").await;
    extended(db, "killed").await;
    let taken = locks.try_lock("killed").await.expect("answers");
    assert!(taken.is_none(), "the command runs");
    std::fs::write(end, "").expect("is written");
    let free = locks.lock("killed").wait(HANG).await;
    drop(free.expect("is free in time"));
}

async fn a_shell_runs_a_command_under_a_lock(db: Db) {
    let locks = locks(&db).await;
    tokio::join!(
        command_is_run_alone(&db, &locks),
        command_is_stopped_when_the_lock_is_lost(&db, &locks),
        command_keeps_the_lock_of_a_killed_script(&db, &locks),
    );

    // Errors are different from a held lock.
    let nowhere = tokio::process::Command::new("bash")
        .args([LOCK, "sqlite:/no/such/file.db", "job", "--", "true"])
        .output();
    assert_eq!(nowhere.await.expect("runs").status.code(), Some(69));
    let wrong = lock(&db, "job", &["--lease", "1.5", "--", "true"]).output();
    assert_eq!(wrong.await.expect("runs").status.code(), Some(64));
    db.execute("ALTER TABLE perennial_lock RENAME TO elsewhere")
        .await;
    let away = lock(&db, "job", &["--", "true"])
        .output()
        .await
        .expect("runs");
    assert_eq!(away.status.code(), Some(69), "{away:?}");
    db.execute("ALTER TABLE elsewhere RENAME TO perennial_lock")
        .await;

    let held = lock(&db, "held", &["--hold", "60", "--", "true"]).status();
    assert!(held.await.expect("runs").success());
    let again = lock(&db, "held", &["--", "true"])
        .output()
        .await
        .expect("runs");
    assert_eq!(again.status.code(), Some(75));
    let held = locks.inspect("held").await.expect("answers");
    assert!(held.is_some_and(|held| held.remaining <= Duration::from_secs(60)));
    assert!(locks.break_lock("held").await.expect("answers"));
    let again = lock(&db, "held", &["--", "true"]).status();
    assert!(again.await.expect("runs").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warning_is_no_fence_and_a_client_that_hangs_loses_the_lock() {
    use std::os::unix::fs::PermissionsExt;

    let (db, folder) = (Db::sqlite().await.expect("is there"), Folder::new());
    let locks = locks(&db).await;
    let real = Command::new("sh")
        .args(["-c", "command -v sqlite3"])
        .output();
    let real = String::from_utf8(real.expect("runs").stdout).expect("text");
    let (client, hangs) = (folder.path().join("sqlite3"), folder.path().join("hangs"));
    let script = format!(
        "#!/bin/sh\necho 'WARNING: 1 of 2' >&2\n[ ! -e {} ] || exec sleep 600\nexec {} \"$@\"\n",
        hangs.display(),
        real.trim(),
    );
    std::fs::write(&client, script).expect("is written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&client, executable).expect("are set");
    let lock = |rest: &[&str]| {
        let mut command = lock(&db, "job", rest);
        let path = std::env::var("PATH").expect("is set");
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        command
    };

    let lease = locks.try_lock("job").await.expect("answers");
    let lease = lease.expect("is free");
    let refused = lock(&["--", "true"]).output().await.expect("runs");
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    lease.release().await.expect("is ours");

    let mut held = lock(&["--lease", "3", "--", "sleep", "600"])
        .spawn()
        .expect("starts");
    until("it is held", async || {
        let info = locks.inspect("job").await.expect("answers");
        info.is_some_and(|info| info.holder.is_some())
    })
    .await;
    std::fs::write(&hangs, "").expect("is written");
    let ended = tokio::time::timeout(HANG, held.wait()).await;
    assert_eq!(ended.expect("in time").expect("ends").code(), Some(74));
}

async fn hard_names_are_the_same_in_every_language(db: Db) {
    let Some(python) = python() else { return };
    let locks = locks(&db).await;
    let (mut python, mut shell) = (in_python(&python, &db), in_shell(&db));
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
        assert_eq!(told(&mut shell, &format!("try {name}")), "", "{name}");
        lease.release().await.expect("is ours");
        assert_ne!(told(&mut shell, &format!("try {name}")), "", "{name}");
        assert!(
            locks.try_lock(name).await.expect("answers").is_none(),
            "{name}"
        );
        assert_eq!(told(&mut python, &format!("try {name}")), "", "{name}");
        assert!(locks.break_lock(name).await.expect("answers"));
        assert_ne!(told(&mut python, &format!("try {name}")), "", "{name}");
        assert!(
            locks.try_lock(name).await.expect("answers").is_none(),
            "{name}"
        );
    }
}
