//! The command line as a user runs it, beside a running site: on SQLite, and on the servers whose
//! URLs are in the environment.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use perennial::{DAY, Generation, Perennial, Refresh};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything that is waited for.
const HANG: Duration = Duration::from_secs(60);

/// A key with control characters, upon which a terminal would act.
const HOSTILE: &str = "part/\u{1b}[2Jred\u{202e}\r\nx";

/// A database with a site's tables, under a prefix of its own.
struct Db {
    url: String,
    prefix: String,
    _folder: TempDir,
}

impl Db {
    /// Returns a database of each kind that is there.
    fn all() -> Vec<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let servers =
            ["POSTGRES", "MYSQL"].map(|it| std::env::var(format!("PERENNIAL_TEST_{it}_URL")));
        if std::env::var_os("PERENNIAL_TEST_ALL").is_some() {
            assert!(
                servers.iter().all(Result::is_ok),
                "the servers' URLs are missing"
            );
        }
        let urls = servers.into_iter().flatten().chain(["sqlite".to_owned()]);
        let made = urls.map(|url| {
            let folder = TempDir::new().expect("a folder");
            let file = folder.path().join("site.db");
            let number = NEXT.fetch_add(1, Relaxed);
            Self {
                url: match &*url {
                    "sqlite" => format!("sqlite://{}", file.display()),
                    _ => url,
                },
                prefix: format!("cli_{}_{number}_", std::process::id()),
                _folder: folder,
            }
        });
        made.collect()
    }

    async fn site(&self) -> Perennial {
        let builder = Perennial::builder().table_prefix(&*self.prefix);
        builder.open(&self.url).await.expect("opens")
    }

    async fn connection(&self) -> sqlx::AnyConnection {
        use sqlx::Connection;
        sqlx::any::install_default_drivers();
        let connection = sqlx::AnyConnection::connect(&self.url).await;
        connection.expect("connects")
    }

    /// Runs SQL by the client program of the database, where it is installed.
    fn run_by_client(&self, sql: &str) {
        let url = &self.url;
        let mut command = if url.starts_with("postgres") {
            let mut command = Command::new("psql");
            command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url]);
            command
        } else if url.starts_with("mysql") {
            let (_, rest) = url.split_once('@').expect("names a user");
            let (server, database) = rest.split_once('/').expect("names a database");
            let (host, port) = server.split_once(':').expect("a port");
            let mut command = Command::new("mariadb");
            command.args(["-h", host, "-P", port, "-u", "perennial", database]);
            command
        } else {
            let mut command = Command::new("sqlite3");
            command.args(["-bail", url.strip_prefix("sqlite://").expect("a file")]);
            command
        };
        let command = command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut client) = command.spawn() else {
            let all = std::env::var_os("PERENNIAL_TEST_ALL");
            assert!(all.is_none(), "the client program of {url} is missing");
            return;
        };
        let mut input = client.stdin.take().expect("is piped");
        input.write_all(sql.as_bytes()).expect("is read");
        drop(input);
        let output = client.wait_with_output().expect("ends");
        assert!(output.status.success(), "{output:?}");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perennial"));
        command
            .args(["--table-prefix", &self.prefix])
            .args(arguments)
            .env("DATABASE_URL", &self.url)
            .stdin(Stdio::null());
        command
    }

    /// Runs to the end; the output and the exit status.
    fn run(&self, arguments: &[&str]) -> (String, i32) {
        shown(&self.command(arguments).output().expect("runs"))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (text, status) = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(status, 0, "{text}");
        let value: Value = serde_json::from_str(&text).expect("is JSON");
        assert_eq!(value["schema"], 1);
        value
    }
}

fn shown(output: &Output) -> (String, i32) {
    let texts = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    (texts.concat(), output.status.code().unwrap_or(-1))
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < HANG, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn store(site: &Perennial, key: &str) {
    let policy = Refresh::every(DAY);
    let content = site.content(key, &policy, async || Ok::<_, String>("a body"));
    content.await.expect("is stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_is_listed_and_harmless() {
    for db in Db::all() {
        let site = db.site().await;
        for key in ["part/a", "part/b", HOSTILE] {
            store(&site, key).await;
        }
        site.share_stats();
        let is_listed = async || site.processes().await.expect("answers").len() == 1;
        while !is_listed().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let lease = site
            .locks()
            .lock(HOSTILE)
            .action(HOSTILE)
            .await
            .expect("is free");
        for arguments in [
            &["status"][..],
            &["entries"],
            &["show", HOSTILE],
            &["history", HOSTILE],
            &["locks"],
            &["entries", "--prefix", "part/", "--limit", "1"],
        ] {
            let (text, status) = db.run(arguments);
            assert_eq!(status, 0, "{arguments:?}: {text}");
            let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.contains(acts), "{arguments:?}: {text:?}");
        }
        let entries = db.json(&["entries"]);
        assert_eq!(entries["entries"].as_array().map(Vec::len), Some(3));
        let entry = db.json(&["show", "part/a"]);
        assert_eq!(entry["state"], "fresh");
        // The body has six bytes, and the metadata are counted as well.
        assert!(entry["bytes"].as_u64() > Some(6), "{entry}");
        assert_eq!(
            db.json(&["history", HOSTILE])["history"][0]["reason"],
            "miss"
        );
        let status = db.json(&["status"]);
        let held = status["held"].as_array().map(Vec::len);
        assert_eq!((&status["pages"], held), (&3.into(), Some(1)));
        assert_eq!(status["processes"].as_array().map(Vec::len), Some(1));
        let first = db.json(&["entries", "--limit", "1"]);
        let next = first["next"].as_str().expect("there are more");
        let rest = db.json(&["entries", "--from", next]);
        assert_eq!(rest["entries"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            db.json(&["entries", "--state", "stale"])["entries"],
            Value::Array(Vec::new())
        );
        assert_eq!(
            db.run(&["show", "part/a", "--body"]),
            ("a body".to_owned(), 0)
        );
        assert_eq!(db.run(&["show", "nowhere"]).1, 3);
        drop(lease);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn database_that_fails_is_an_error_and_no_empty_site() {
    sqlx::any::install_default_drivers();
    for db in Db::all() {
        let site = db.site().await;
        store(&site, "part/a").await;
        let mut connection = db.connection().await;
        // The column is renamed to make the commands fail. If the table were removed, they would make it again.
        let renamed = format!("ALTER TABLE {}lock RENAME COLUMN owner TO lost", db.prefix);
        let renamed = sqlx::query(sqlx::AssertSqlSafe(renamed)).execute(&mut connection);
        renamed.await.expect("is renamed");
        for arguments in [&["status"][..], &["watch"]] {
            let (text, status) = db.run(arguments);
            assert!(status == 1 && !text.contains("0 stored pages"), "{text}");
            assert!(text.contains("owner"), "names what is missing: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_counted_by_their_lock() {
    use perennial_jobs::Claims;
    sqlx::any::install_default_drivers();
    for db in Db::all() {
        let site = db.site().await;
        let mut connection = db.connection().await;
        // The table's name has a capital letter, so on PostgreSQL it has to be in quotes.
        let table = format!("{}Mail", db.prefix);
        let quoted = match db.url.starts_with("postgres") {
            true => format!("\"{table}\""),
            false => format!("`{table}`"),
        };
        for sql in [
            format!(
                "CREATE TABLE {quoted} (id BIGINT PRIMARY KEY, lock_id VARCHAR(36), locked_until BIGINT)"
            ),
            format!("INSERT INTO {quoted} (id) VALUES (1), (2), (3)"),
        ] {
            let done = sqlx::query(sqlx::AssertSqlSafe(sql))
                .execute(&mut connection)
                .await;
            done.expect("is done");
        }
        let claims = Claims::with_pool(site.database().expect("is there"), &table);
        let claims = claims.expires("locked_until", HANG);
        assert_eq!(
            db.json(&["claims", &table])["claims"],
            Value::Array(Vec::new())
        );
        let claim = claims.claim(2).await.expect("claims");
        let shown = db.json(&["claims", &table, "--expires", "locked_until"]);
        assert_eq!(shown["claims"][0]["rows"], 2, "{shown}");
        assert!(
            shown["claims"][0]["expires_at_us"].as_i64() > Some(0),
            "{shown}"
        );
        claim.release().await.expect("is released");
        let claim = claims.claim(3).await.expect("claims");
        assert_eq!(claim.complete().await.expect("is completed"), 3);
        let completed = db.json(&["claims", &table, "--expires", "locked_until"]);
        assert_eq!(completed["claims"], Value::Array(Vec::new()));
        let (text, status) = db.run(&["claims", "mail; DROP TABLE mail"]);
        assert!(status == 2 && text.contains("letters, digits"), "{text}");
        let (text, status) = db.run(&["claims", "order"]);
        assert!(status == 1 && text.contains("--lock"), "{text}");
        assert!(!text.contains("syntax"), "{text}");
        let drop = format!("DROP TABLE {quoted}");
        let done = sqlx::query(sqlx::AssertSqlSafe(drop))
            .execute(&mut connection)
            .await;
        done.expect("is done");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_without_consent() {
    for db in Db::all() {
        let site = db.site().await;
        let state = async |key: &str| {
            let entry = site.entry(key).await.expect("answers");
            entry.map(|entry| entry.state.as_str())
        };
        for key in ["part/a", "part/b"] {
            store(&site, key).await;
        }
        let (text, status) = db.run(&["invalidate", "--prefix", "part/"]);
        assert!(status == 4 && text.contains("--yes"), "{text}");
        let (text, status) = db.run(&["invalidate", "--prefix", "part/", "--dry-run"]);
        assert!(status == 0 && text.contains("2 stored entries"), "{text}");
        assert_eq!(state("part/a").await, Some("fresh"));
        // The command also asks before it invalidates a tag that only one entry has: more entries may have the
        // tag when the command is carried out.
        let (text, status) = db.run(&["invalidate", "--tag", "sole"]);
        assert!(status == 4 && text.contains("--yes"), "{text}");
        assert_eq!(db.run(&["invalidate", "--tag", "sole", "--yes"]).1, 0);
        let (text, status) = db.run(&["invalidate", "--tag-prefix", "so", "--yes"]);
        assert_eq!(status, 0, "{text}");
        assert!(text.contains("the tags that begin with \"so\""), "{text}");
        // A single key needs no question.
        assert_eq!(db.run(&["invalidate", "part/a"]).1, 0);
        until("the site learns of it", async || {
            state("part/a").await == Some("stale")
        })
        .await;
        assert_eq!(state("part/b").await, Some("fresh"));
        assert_eq!(db.run(&["invalidate", "--prefix", "", "--yes"]).1, 0);
        until("the site learns of it", async || {
            state("part/b").await == Some("stale")
        })
        .await;
        assert_eq!(db.run(&["purge", "part/a"]).1, 4);
        assert_eq!(db.run(&["purge", "nowhere", "--yes"]).1, 3);
        assert_eq!(db.run(&["purge", "part/a", "--yes"]).1, 0);
        assert_eq!(state("part/a").await, None);

        let lease = site
            .locks()
            .lock("job")
            .action("imports")
            .await
            .expect("is free");
        let fence = lease.fence().0;
        let (seen, other) = (fence.to_string(), (fence - 1).to_string());
        let (text, status) = db.run(&["unlock", "job", "--fence", &seen]);
        assert!(status == 4 && text.contains("--confirm"), "{text}");
        assert_eq!(
            db.run(&["unlock", "job", "--fence", &other, "--confirm", "job"])
                .1,
            4
        );
        assert_eq!(
            db.run(&["unlock", "no job", "--fence", "1", "--confirm", "no job"])
                .1,
            3
        );
        let (text, status) = db.run(&["unlock", "job", "--fence", &seen, "--confirm", "job"]);
        assert!(status == 0 && text.contains("(imports)"), "{text}");
        assert!(
            site.locks()
                .try_lock("job")
                .await
                .expect("answers")
                .is_some()
        );
        assert_eq!(db.run(&["prune", "--unused", "1s"]).1, 0);
    }
}

/// Starts a command under the lock `job` that runs until it is killed, and returns its process, too.
async fn start(db: &Db, site: &Perennial, options: &[&str]) -> (Child, String) {
    let arguments = [
        &["run", "job", "--hold=0s"],
        options,
        &["--", "sh", "-c", "echo $$; exec sleep 1000"],
    ]
    .concat();
    let mut command = db.command(&arguments);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("starts");
    let mut pid = String::new();
    let stdout = child.stdout.as_mut().expect("is piped");
    BufReader::new(stdout).read_line(&mut pid).expect("reads");
    let job = site.locks().inspect("job").await.expect("answers");
    assert!(job.is_some_and(|job| job.holder.is_some()));
    (child, pid.trim().to_owned())
}

/// Returns true if the process has ended.
fn is_gone(pid: &str) -> bool {
    let alive = Command::new("kill")
        .args(["-0", pid])
        .stderr(Stdio::null())
        .status();
    !alive.expect("runs").success()
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn command_runs_under_its_lock() {
    for db in Db::all() {
        let site = db.site().await;
        let run = |options: &[&str]| db.run(&[&["run", "job", "--hold=0s"], options].concat());
        let (text, status) = run(&[
            "--",
            "sh",
            "-c",
            "echo $PERENNIAL_LOCK $PERENNIAL_FENCE; exit 3",
        ]);
        let fence = text
            .strip_prefix("job ")
            .and_then(|it| it.trim().parse::<i64>().ok());
        assert!(
            status == 3 && fence.is_some_and(|fence| fence > 0),
            "{text}"
        );
        assert_eq!(run(&["--", "/no/such/program"]).1, 127);
        // Nothing holds the lock now.
        assert_eq!(run(&["--", "true"]).1, 0);
        assert_eq!(run(&["--", "sh", "-c", "kill -9 $$"]).1, 128 + 9);

        let (mut child, pid) = start(&db, &site, &["--lease", "2s"]).await;
        let (text, _) = db.run(&["locks"]);
        assert!(
            text.contains(" sh ") && !text.contains("sleep"),
            "without arguments: {text}"
        );
        let (text, status) = run(&["--", "true"]);
        assert!(status == 75 && text.contains("job"), "{text}");
        assert_eq!(run(&["-w=100ms", "-E", "9", "--", "true"]).1, 9);

        // The command ends when its lease is lost.
        assert!(site.locks().break_lock("job", None).await.expect("answers"));
        until("the command is ended", async || is_gone(&pid)).await;
        assert_eq!(child.wait().expect("ends").code(), Some(74));

        // A signal reaches the command.
        let (mut child, pid) = start(&db, &site, &[]).await;
        let term = Command::new("kill").arg(child.id().to_string()).status();
        assert!(term.expect("runs").success());
        assert_eq!(child.wait().expect("ends").code(), Some(128 + 15));
        assert!(is_gone(&pid));

        // When `perennial run` is killed, the command ends as well, and the lock is free when the lease is over.
        let (mut child, pid) = start(&db, &site, &["--lease", "1s"]).await;
        child.kill().expect("is killed");
        child.wait().expect("ends");
        until("the command is ended", async || is_gone(&pid)).await;
        assert_eq!(run(&["--wait=60s", "--", "true"]).1, 0);

        // If cron starts the job on several machines, it runs once, however soon it ends.
        let start = || db.run(&["run", "nightly", "--", "sh", "-c", "echo ran"]);
        let starts = [start(), start(), start()];
        let ran = starts.iter().filter(|(text, _)| text.contains("ran"));
        assert_eq!(ran.count(), 1, "{starts:?}");
        assert_eq!(starts.map(|(_, status)| status), [0, 75, 75]);
        let nightly = site.locks().inspect("nightly").await.expect("answers");
        let left = nightly.expect("is there").remaining;
        // The lock is kept for half a minute. The three machines may start up to 5 s apart, and
        // their clocks may differ by a little more than that.
        assert!(
            left <= Duration::from_secs(30),
            "a job of each minute finds the lock free: {left:?}"
        );
    }
}

/// The processes that sleep for this time, by their numbers.
#[cfg(target_os = "linux")]
fn sleepers(time: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("is there").flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        // An ended process has no command line.
        if line.starts_with("sleep\0") && line.contains(time) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[cfg(target_os = "linux")]
fn kill(signal: &str, pid: &str) {
    let sent = Command::new("kill").args([signal, pid]).status();
    assert!(sent.expect("runs").success(), "{signal} {pid}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_command_has_started_ends_with_its_lock() {
    let db = Db::all().pop().expect("SQLite is there");
    let site = db.site().await;
    let scripts = [
        ("a step of a script", "sleep TIME; true", 1),
        ("a pipeline", "sleep TIME | sleep TIME", 2),
        ("a background job", "sleep TIME & wait", 1),
        (
            "a daemon",
            "setsid sleep TIME & (setsid sh -c 'sleep TIME & sleep TIME; true' &); sleep TIME",
            4,
        ),
        (
            "what ignores TERM",
            "trap '' TERM; sleep TIME; sleep TIME",
            1,
        ),
    ];
    let ends = ["lost", "TERM", "KILL", "KILL of the keeper"];
    for (n, (what, script, expected)) in scripts.into_iter().enumerate() {
        for (m, end) in ends.into_iter().enumerate() {
            // A command decides what it does with an operator's TERM.
            if (what, end) == ("what ignores TERM", "TERM") {
                continue;
            }
            let time = format!("1000.{}{n}{m}", std::process::id());
            let script = script.replace("TIME", &time);
            let options = [
                "run",
                "job",
                "--hold=0s",
                "--lease=1s",
                "--grace=300ms",
                "--linger=200ms",
            ];
            let mut command = db.command(&options);
            command
                .args(["--", "sh", "-c", &script])
                .stderr(Stdio::null());
            let mut run = command.spawn().expect("starts");
            let number = run.id().to_string();
            until(what, async || sleepers(&time).len() == expected).await;
            match end {
                "lost" => assert!(site.locks().break_lock("job", None).await.expect("answers")),
                "KILL" => kill("-KILL", &number),
                "KILL of the keeper" => {
                    let children = format!("/proc/{number}/task/{number}/children");
                    let keeper = std::fs::read_to_string(children).expect("is there");
                    kill("-KILL", keeper.trim());
                }
                _ => kill("-TERM", &number),
            }
            run.wait().expect("ends");
            until(end, async || sleepers(&time).is_empty()).await;
            until("the lock is free", async || {
                site.locks()
                    .try_lock("job")
                    .await
                    .expect("answers")
                    .is_some()
            })
            .await;
        }
    }
}

/// The children of a process that have not been waited for, each with its state.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<(String, char)> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid.to_owned(), rest.chars().next()?))
    });
    children.collect()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn signals_and_ends_at_awkward_moments_leave_no_command_behind() {
    let db = Db::all().pop().expect("SQLite is there");
    let site = db.site().await;
    let free = async || {
        let taken = site.locks().try_lock("job").await.expect("answers");
        match taken {
            Some(lease) => lease.release().await.is_ok(),
            None => false,
        }
    };

    // `perennial run` gets TERM while its helper is starting, before the command has been started.
    for pause in 0..12 {
        let time = format!("1001.{}{pause:02}", std::process::id());
        let mut run = db
            .command(&["run", "job", "--hold=0s", "--", "sleep", &time])
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        while children(run.id()).is_empty() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(pause * 500));
        kill("-TERM", &run.id().to_string());
        assert_eq!(run.wait().expect("ends").code(), Some(128 + 15), "{pause}");
        assert_eq!(sleepers(&time).len(), 0, "{pause}");
    }

    // This lease ends earlier than the grace that a command has after TERM.
    let time = format!("1002.{}", std::process::id());
    let script = format!("trap '' TERM; sleep {time}; sleep {time}");
    let mut run = db
        .command(&["run", "job", "--hold=0s", "--lease=2s", "--grace=60s"])
        .args(["--", "sh", "-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    until("it sleeps", async || sleepers(&time).len() == 1).await;
    kill("-KILL", &run.id().to_string());
    run.wait().expect("ends");
    until("the lock is free", free).await;
    assert_eq!(sleepers(&time).len(), 0, "two would hold the lock");

    // With `--leave-children`, nobody waits for what the command leaves running. The process that
    // keeps the lock is killed.
    let time = format!("1003.{}", std::process::id());
    let mut run = db
        .command(&["run", "job", "--hold=0s", "--leave-children", "--", "sleep"])
        .arg(&time)
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    until("it sleeps", async || sleepers(&time).len() == 1).await;
    kill("-KILL", &children(run.id())[0].0);
    assert_eq!(run.wait().expect("ends").code(), Some(128 + 9));
    assert_eq!(sleepers(&time).len(), 0, "the lock is free");

    // `perennial run` adopts orphans, and reaps them: they do not remain as zombies.
    let time = format!("1004.{}", std::process::id());
    let script = format!("for n in 1 2 3 4; do (sleep 0.1 &); done; sleep {time}");
    let mut run = db
        .command(&["run", "job", "--hold=0s", "--leave-children", "--", "sh"])
        .args(["-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    until("it sleeps", async || sleepers(&time).len() == 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    until("they are waited for", async || {
        children(run.id()).iter().all(|(_, state)| *state != 'Z')
    })
    .await;
    kill("-TERM", &run.id().to_string());
    run.wait().expect("ends");

    // `perennial run` was started in such a way that it ignores HUP, so the command ignores it, too.
    let time = format!("1005.{}", std::process::id());
    let started = db.command(&["run", "job", "--hold=0s", "--", "sleep", &time]);
    let mut run = Command::new("nohup")
        .arg(started.get_program())
        .args(started.get_args())
        .env("DATABASE_URL", &db.url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    until("it sleeps", async || sleepers(&time).len() == 1).await;
    kill("-HUP", &run.id().to_string());
    kill("-HUP", &sleepers(&time)[0]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(sleepers(&time).len(), 1);
    kill("-TERM", &run.id().to_string());
    run.wait().expect("ends");
    assert_eq!(sleepers(&time).len(), 0);

    // If the file cannot be run here, the lock is not left in cooldown: on another machine the
    // command may exist.
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("job.sh");
    std::fs::write(&file, "#!/bin/sh").expect("is written");
    let file = file.to_str().expect("is text");
    let (text, status) = db.run(&["run", "job", "--", file]);
    assert!(status == 126 && text.contains("cannot run"), "{text}");
    let (_, status) = db.run(&["run", "job", "--", "sh", "-c", "exit 127"]);
    assert_eq!(status, 127);
    assert!(free().await, "another machine may try at once");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_is_named_and_ended_or_left() {
    let db = Db::all().pop().expect("SQLite is there");
    let site = db.site().await;
    let time = format!("1006.{}", std::process::id());
    let leave = format!("sleep {time} >/dev/null 2>&1 & exit 3");
    let run = |options: &[&str]| {
        let all = [
            &["run", "job", "--hold=0s"],
            options,
            &["--", "sh", "-c", &leave],
        ]
        .concat();
        db.run(&all)
    };
    let (text, status) = run(&["--linger=300ms"]);
    assert_eq!(status, 3, "{text}");
    assert!(
        text.contains("(sleep)") && text.contains("--leave-children"),
        "{text}"
    );
    assert_eq!(sleepers(&time).len(), 0);
    // While `perennial run` waits for processes that the command has left running, it still holds
    // the lock.
    let mut lingering = db.command(&[
        "run",
        "job",
        "--hold=0s",
        "--linger=60s",
        "--",
        "sh",
        "-c",
        &leave,
    ]);
    let mut lingering = lingering.stderr(Stdio::null()).spawn().expect("starts");
    until("it is left", async || sleepers(&time).len() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        site.locks()
            .try_lock("job")
            .await
            .expect("answers")
            .is_none()
    );
    kill("-TERM", &sleepers(&time)[0]);
    assert_eq!(lingering.wait().expect("ends").code(), Some(3));

    assert_eq!(run(&["--leave-children"]).1, 3);
    // A shell's child has the shell's command line until it begins its own program.
    until("it sleeps", async || sleepers(&time).len() == 1).await;
    let left = sleepers(&time);
    assert!(
        site.locks()
            .try_lock("job")
            .await
            .expect("answers")
            .is_some()
    );
    kill("-TERM", &left[0]);

    // The signals that programs give a meaning to.
    for (signal, name) in [
        ("-USR1", "USR1"),
        ("-USR2", "USR2"),
        ("-HUP", "HUP"),
        ("-INT", "INT"),
        ("-QUIT", "QUIT"),
    ] {
        let script = format!("trap 'exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let command = db.command(&["run", "job", "--hold=0s", "--", "sh", "-c", &script]);
        // The command gets no terminal, because a terminal sends some of these signals itself. `env
        // --default-signal` makes sure that the command does not ignore these signals. It would
        // inherit that if the tests were started by `nohup` or as a background job of a script.
        let mut command = Command::new("env")
            .args(["--default-signal", "setsid", "--wait"])
            .arg(command.get_program())
            .args(command.get_args())
            .env("DATABASE_URL", &db.url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut ready = String::new();
        let stdout = command.stdout.as_mut().expect("is piped");
        BufReader::new(stdout).read_line(&mut ready).expect("reads");
        kill(signal, &command.id().to_string());
        assert_eq!(command.wait().expect("ends").code(), Some(7), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_makes_no_database() {
    let folder = TempDir::new().expect("a folder");
    let run = Command::new(env!("CARGO_BIN_EXE_perennial"))
        .args(["--database", "sqlite://site.db", "run", "job", "--", "true"])
        .current_dir(&folder)
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("there is no database file"), "{said}");
    assert!(!folder.path().join("site.db").exists());
}

#[test]
fn new_site_is_told_what_to_copy() {
    let init = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perennial"));
        let output = command
            .args(["init", "--database", url])
            .output()
            .expect("runs");
        let said = [output.stdout, output.stderr].concat();
        (
            String::from_utf8(said).expect("is text"),
            output.status.code(),
        )
    };
    for (url, features) in [
        ("sqlite://site.db", "perennial = \"0.1\"\n"),
        ("postgres://me:secret@db.example/site", "\"postgres\""),
        ("mysql://me:secret@db.example/site", "\"mysql\""),
    ] {
        let (said, status) = init(url);
        assert_eq!(status, Some(0), "{said}");
        assert!(
            said.contains(features) && said.contains("site.layer("),
            "{said}"
        );
        assert!(!said.contains("secret"), "{said}");
    }
    let (said, status) = init("redis://me:secret@host");
    assert_eq!(status, Some(2));
    assert!(
        said.contains("sqlite://site.db") && !said.contains("secret"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_what_is_wrong() {
    for db in Db::all() {
        let (text, status) = db.run(&["doctor", "tables"]);
        if db.url.starts_with("sqlite") {
            assert!(
                status == 1 && text.contains("there is no database file"),
                "{text}"
            );
        } else {
            assert!(status == 5 && text.contains("perennial ddl"), "{text}");
        }
        let site = db.site().await;
        let checks = db.json(&["doctor"]);
        let results: Vec<_> = checks["checks"].as_array().into_iter().flatten().collect();
        // The guide lists the same number of checks.
        let (list, _) = db.run(&["doctor", "--list"]);
        assert_eq!(list.lines().count(), 1 + 17, "{list}");
        assert_eq!(results.len(), 17, "{checks}");
        assert!(
            results.iter().all(|it| it["result"] != "not-checked"),
            "{checks}"
        );
        if !db.url.starts_with("sqlite") {
            let (text, status) = db.run(&["doctor", "encryption"]);
            assert!(
                status == 0 && text.contains("does not leave this machine"),
                "{text}"
            );
        }
        let (text, status) = db.run(&["doctor", "connection", "rights"]);
        assert!(status == 0 && text.lines().count() == 2, "{text}");
        assert_eq!(db.run(&["doctor", "nonsense"]).1, 2);

        let policy = Refresh::every(DAY);
        let made = site.content("part/bad", &policy, async || Ok::<_, String>("is fine"));
        made.await.expect("is generated");
        site.invalidate("part/bad").await.expect("is invalidated");
        // While the page has an old version, the cooldown after a failure lasts for half a minute.
        until("the cooldown is listed", async || {
            let fails = site.content("part/bad", &policy, async || Err::<&str, _>("is broken"));
            fails.await.expect("the old version");
            let listed = db.json(&["locks"]);
            let locks = listed["locks"].as_array().into_iter().flatten();
            let mut kinds = locks.map(|lock| &lock["kind"]);
            kinds.any(|kind| kind == "page")
        })
        .await;
        let of_jobs = db.json(&["locks", "--kind", "lock"]);
        assert_eq!(of_jobs["locks"], Value::Array(Vec::new()));
        let long = site
            .locks()
            .lease_duration(120 * HANG)
            .try_lock("job")
            .await;
        let long = long.expect("answers").expect("is free");
        let (text, status) = db.run(&["doctor", "locks", "--strict"]);
        assert!(status == 5 && text.contains("perennial unlock"), "{text}");
        long.release().await.expect("is released");
        if db.url.starts_with("sqlite") {
            let pool = sqlx::SqlitePool::connect(&db.url).await.expect("opens");
            site.shutdown().await;
            drop(site);
            until("nobody else has the file open", async || {
                let off = sqlx::query("PRAGMA journal_mode = DELETE")
                    .execute(&pool)
                    .await;
                off.is_ok()
            })
            .await;
            let (text, status) = db.run(&["doctor", "journal"]);
            assert!(status == 0 && text.contains("journal_mode = WAL"), "{text}");
            assert_eq!(db.run(&["doctor", "journal", "--strict"]).1, 5);
        }
    }
}

/// A role that lacks one right on one table, and sessions that would commit nothing.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_each_right_and_each_kind_of_read_only() {
    for db in Db::all() {
        if db.url.starts_with("sqlite") {
            continue;
        }
        let is_postgres = db.url.starts_with("postgres");
        let site = db.site().await;
        let mut connection = db.connection().await;
        let mut say = async |sql: &str| {
            use sqlx::Executor;
            let done = connection
                .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)))
                .await;
            done.unwrap_or_else(|error| panic!("{sql}: {error}"));
        };
        let role = format!("{}role", db.prefix);
        let (name, tables) = (
            &db.prefix,
            [
                "schema",
                "lock",
                "entry",
                "invalidation",
                "outbox",
                "request",
                "process",
            ],
        );
        let (_, rest) = db.url.split_once('@').expect("names a user");
        let scheme = if is_postgres { "postgres" } else { "mysql" };
        let of_role = Db {
            url: format!("{scheme}://{role}:secret@{rest}"),
            prefix: db.prefix.clone(),
            _folder: TempDir::new().expect("a folder"),
        };
        let user = if is_postgres {
            say(&format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'")).await;
            role.clone()
        } else {
            say(&format!("CREATE USER {role}@'%' IDENTIFIED BY 'secret'")).await;
            format!("{role}@'%'")
        };
        for table in tables {
            say(&format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {name}{table} TO {user}"
            ))
            .await;
        }
        let (text, status) = of_role.run(&["doctor", "rights", "role"]);
        assert_eq!(status, 0, "{text}");
        for (right, table) in [
            ("INSERT", "outbox"),
            ("DELETE", "invalidation"),
            ("UPDATE", "schema"),
        ] {
            say(&format!("REVOKE {right} ON {name}{table} FROM {user}")).await;
            let (text, status) = of_role.run(&["doctor", "rights"]);
            let lacks = format!("{right} on {name}{table}");
            assert!(status == 5 && text.contains(&lacks), "{text}");
            say(&format!("GRANT {right} ON {name}{table} TO {user}")).await;
        }
        if is_postgres {
            say(&format!(
                "ALTER ROLE {role} SET default_transaction_read_only = on"
            ))
            .await;
            let (text, status) = of_role.run(&["doctor", "role"]);
            assert!(
                status == 5 && text.contains("`default_transaction_read_only`"),
                "{text}"
            );
            say(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        } else {
            say(&format!("DROP USER {user}")).await;
        }
        site.shutdown().await;
    }
}

#[test]
fn wrong_use_is_explained_and_no_password_is_shown() {
    let db = Db {
        url: "postgres://me:secret@127.0.0.1:1/site?password=secret".to_owned(),
        prefix: "perennial_".to_owned(),
        _folder: TempDir::new().expect("a folder"),
    };
    for arguments in [
        &["status"][..],
        &["doctor"],
        &["run", "x", "--", "true"],
        &["--help"],
        &["run", "--help"],
    ] {
        let (text, _) = db.run(arguments);
        assert!(!text.contains("secret"), "{text}");
    }
    let (text, status) = db.run(&["ddl"]);
    assert!(status == 0 && text.contains("CREATE TABLE"), "{text}");
    let mut nowhere = db.command(&["status"]);
    let (text, status) = shown(&nowhere.env_remove("DATABASE_URL").output().expect("runs"));
    assert!(
        status == 2 && text.contains("--database sqlite://site.db"),
        "{text}"
    );
    assert_eq!(db.run(&["invalidate"]).1, 2);
    assert_eq!(db.run(&["invalidate", "a", "--tag", "b"]).1, 2);
    let (text, status) = db.run(&["completions", "bash"]);
    assert!(status == 0 && text.contains("perennial"), "{status}");
    let mut explain = db.command(&["explain", "https://example.com/"]);
    let (text, status) = shown(
        &explain
            .env_remove("PERENNIAL_EXPLAIN_TOKEN")
            .output()
            .expect("runs"),
    );
    assert!(
        status == 2 && text.contains("set PERENNIAL_EXPLAIN_TOKEN"),
        "{text}"
    );
}

/// The capacity of the store is a setting of the site, which the command line does not know. So it judges no
/// site by it, and removes no pages.
#[tokio::test(flavor = "multi_thread")]
async fn command_line_assumes_no_capacity_of_the_store() {
    for db in Db::all() {
        let site = db.site().await;
        store(&site, "page").await;
        let (text, status) = db.run(&["status"]);
        assert!(status == 0 && text.contains("1 stored"), "{text}");
        assert!(!text.contains("capacity"), "{text}");
    }
}

const MANY_VARIANTS: usize = 120;

/// A key with a host or a header has an entry for each of its values, and none under the key itself.
#[tokio::test(flavor = "multi_thread")]
async fn key_that_is_stored_in_variants_is_found() {
    for db in Db::all() {
        let site = db.site().await;
        for key in ["list#de", "list#en", "lists"] {
            store(&site, key).await;
        }
        let (text, status) = db.run(&["show", "list"]);
        assert!(
            status == 3 && text.contains("\"list#de\" or \"list#en\""),
            "{text}"
        );
        let (text, status) = db.run(&["invalidate", "list"]);
        assert!(status == 0 && !text.contains("Nothing is stored"), "{text}");
        let (text, status) = db.run(&["purge", "--yes", "list"]);
        assert!(status == 0 && text.contains("in 2 variants"), "{text}");
        assert_eq!(db.run(&["purge", "--yes", "list"]).1, 3);
        assert_eq!(db.run(&["show", "lists"]).1, 0);
        // More variants than one page of a listing has.
        for number in 0..MANY_VARIANTS {
            store(&site, &format!("many#{number}")).await;
        }
        let (text, status) = db.run(&["show", "many"]);
        let more = format!("or one of {} more", MANY_VARIANTS - 3);
        assert!(status == 3 && text.contains(&more), "{text}");
        let (text, status) = db.run(&["purge", "--dry-run", "many"]);
        let all = format!("in {MANY_VARIANTS} variants");
        assert!(status == 0 && text.contains(&all), "{text}");
    }
}

/// A terminal of 100 columns shows each line of the help as it is, and the manual and the book have each command.
/// `PERENNIAL_UPDATE=1` writes the chapter of the book.
#[test]
fn help_fits_a_terminal_and_manual_and_book_have_each_command() {
    let folder = TempDir::new().expect("a folder");
    let program = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perennial"));
        let command = command.args(arguments).env_remove("DATABASE_URL");
        let (text, status) = shown(&command.output().expect("runs"));
        assert_eq!(status, 0, "{arguments:?}: {text}");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(100), "{text}");
        text
    };
    let man = folder.path().join("man1");
    let text = program(&["man", &man.display().to_string()]);
    assert!(text.contains("perennial.1"), "{text}");
    let help = program(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    // A description may go on in lines that are indented further.
    let commands =
        commands.filter_map(|line| line.strip_prefix("  ").filter(|it| !it.starts_with(' ')));
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let commands: Vec<_> = commands.filter(|command| *command != "help").collect();
    assert!(
        commands.contains(&"status") && commands.len() >= 17,
        "{commands:?}"
    );
    let mut chapter = format!(
        "# The command line\n\nThis chapter is generated from the help of the program, which `cargo install perennial-cli` installs. \
         [Operating](operating.md#status-page-and-command-line) shows which command to use when.\n\n```text\n{}\n```\n",
        help.trim_end()
    );
    for command in commands {
        let help = program(&[command, "--help"]);
        let page = man.join(format!("perennial-{command}.1"));
        assert!(page.exists(), "{}", page.display());
        chapter += &format!(
            "\n## perennial {command}\n\n```text\n{}\n```\n",
            help.trim_end()
        );
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    if std::env::var_os("PERENNIAL_UPDATE").is_some() {
        fs::write(&file, &chapter).expect("is written");
    }
    let present = fs::read_to_string(&file).expect("is read");
    assert_eq!(
        present,
        chapter,
        "PERENNIAL_UPDATE=1 writes {}",
        file.display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_what_a_colour_shows_and_colours_can_be_refused() {
    let db = Db::all().pop().expect("SQLite");
    let site = db.site().await;
    store(&site, "page").await;
    site.share_stats();
    until("the process is listed", async || {
        db.run(&["status"]).0.contains("runs")
    })
    .await;
    let (plain, status) = db.run(&["status"]);
    assert_eq!(status, 0, "{plain}");
    for shown in [
        "✓ ok",
        "1 stored, 0 of them stale",
        "in the last hour",
        "GENERATED",
        "page",
        "PROCESS",
    ] {
        assert!(plain.contains(shown), "{shown} is missing: {plain}");
    }
    let colours = |name: &str| {
        let mut command = db.command(&["status"]);
        command.env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1");
        if !name.is_empty() {
            command.env(name, "1").env_remove("CLICOLOR_FORCE");
        }
        shown(&command.output().expect("runs"))
            .0
            .contains("\u{1b}[32m")
    };
    assert!(!plain.contains('\u{1b}'), "no terminal, no colour");
    assert!(colours("") && !colours("NO_COLOR"));
    site.shutdown().await;
}

#[tokio::test]
async fn empty_database_is_left_empty() {
    let folder = TempDir::new().expect("a folder");
    let db = Db {
        url: format!("sqlite://{}", folder.path().join("other.db").display()),
        prefix: "perennial_".to_owned(),
        _folder: folder,
    };
    let pool = sqlx::SqlitePool::connect(&format!("{}?mode=rwc", db.url))
        .await
        .expect("is made");
    let table = sqlx::query("CREATE TABLE customer (id INTEGER)");
    table.execute(&pool).await.expect("is made");
    for arguments in [
        &["status"][..],
        &["entries"],
        &["doctor"],
        &["claims", "customer", "--lock", "id"],
    ] {
        let (text, _) = db.run(arguments);
        assert!(!text.contains("panicked"), "{text}");
    }
    let (text, status) = db.run(&["locks"]);
    assert!(
        status == 1 && text.contains("Is this the site's database?"),
        "{text}"
    );
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master")
        .fetch_one(&pool)
        .await
        .expect("reads");
    assert_eq!(tables, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_asks_a_running_site_and_sends_its_token_nowhere_else() {
    use axum::{Router, http::Request, routing::get};

    const TOKEN: &str = "a token that nobody guesses";
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("site.db").display());
    let site = Perennial::builder().explain_token(TOKEN).open(&url);
    let site = site.await.expect("opens");
    let page = get(async || "page").layer(site.layer(Refresh::every(DAY)).tag("books"));
    let leaks = async |request: Request<axum::body::Body>| {
        let token = request.headers().get("perennial-explain");
        format!("{:?}", token.is_some())
    };
    let away = async || axum::response::Redirect::to("http://localhost:1/elsewhere");
    let app = Router::new()
        .route("/books", page)
        .route("/plain", get(leaks))
        .route("/away", get(away));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("binds");
    let address = listener.local_addr().expect("has an address");
    tokio::spawn(async { axum::serve(listener, app).await });

    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perennial"));
        command.arg("explain").args(arguments).stdin(Stdio::null());
        shown(&command.output().expect("runs"))
    };
    let books = format!("http://{address}/books");
    let (text, status) = run(&[&books, "--token", TOKEN]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("answer               generated"), "{text}");
    let via = ["--via", &address.to_string()];
    let (text, status) = run(&[
        &["https://example.com/books?page=1", "--token", TOKEN],
        &via[..],
    ]
    .concat());
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("/books?page=1"), "{text}");
    let (text, _) = run(&[&books, "--token", TOKEN, "--json"]);
    let explanation: Value = serde_json::from_str(&text).expect("is JSON");
    assert_eq!(
        (&explanation["schema"], &explanation["key"]),
        (&1.into(), &"/books".into())
    );
    assert!(site.entry("/books").await.expect("answers").is_none());

    for (arguments, expected, with) in [
        (
            &[&*books, "--token", "another one that is wrong"][..],
            "the token is not",
            1,
        ),
        (
            &["http://example.com/books", "--token", TOKEN],
            "sent in clear",
            2,
        ),
        (
            &["/books", "--token", TOKEN],
            "write https://example.com/books",
            2,
        ),
        (
            &[&format!("http://{address}/away"), "--token", TOKEN],
            "303",
            1,
        ),
        (
            &["http://127.0.0.1:1/", "--token", TOKEN],
            "does not answer",
            1,
        ),
        (
            &[&books.replace("http", "https"), "--token", TOKEN],
            "does not answer",
            1,
        ),
        (
            &[&format!("http://{address}/plain"), "--token", TOKEN],
            "no layer of the site",
            1,
        ),
    ] {
        let (text, status) = run(arguments);
        assert_eq!(status, with, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

/// Managed databases insist on TLS.
#[tokio::test]
async fn server_that_insists_on_tls_is_reached() {
    for kind in ["POSTGRES", "MYSQL"] {
        let Ok(url) = std::env::var(format!("PERENNIAL_TEST_{kind}_TLS_URL")) else {
            let all = std::env::var_os("PERENNIAL_TEST_ALL");
            assert!(all.is_none(), "the URL of {kind} with TLS is missing");
            eprintln!("SKIPPED: no {kind} insists on TLS; scripts/test starts one");
            continue;
        };
        let mut db = Db {
            url: url.clone(),
            prefix: "cli_tls_".to_owned(),
            _folder: TempDir::new().expect("a folder"),
        };
        let (address, _) = url.split_once('?').expect("asks for TLS");
        if kind == "POSTGRES" {
            db.url = address.replace("tls_only@", "perennial@");
            let role = "CREATE ROLE tls_only LOGIN SUPERUSER";
            let mut connection = db.connection().await;
            let made = sqlx::query(role).execute(&mut connection).await;
            made.expect("is made");
            db.url.clone_from(&url);
        }
        drop(db.site().await);
        for command in ["status", "locks", "doctor"] {
            let (said, status) = db.run(&[command]);
            assert_eq!(status, 0, "{command}: {said}");
        }
        let (said, status) = db.run(&["doctor", "encryption"]);
        assert!(status == 0 && said.contains("is encrypted"), "{said}");
        db.url = match kind {
            "POSTGRES" => format!("{address}?sslmode=disable"),
            _ => format!("{address}?ssl-mode=DISABLED"),
        };
        let (said, status) = db.run(&["locks"]);
        assert_ne!(status, 0, "without TLS: {said}");
    }
}

/// What is printed is a migration: it runs as it is, and pages follow the rows from then on.
#[tokio::test]
async fn printed_triggers_run_as_they_are() {
    for db in Db::all() {
        let site = db.site().await;
        let table = format!("{}product", db.prefix);
        let mut connection = db.connection().await;
        let made = format!(
            "CREATE TABLE {table} (id INTEGER PRIMARY KEY, title VARCHAR(100), price NUMERIC(10, 2), visits INTEGER)"
        );
        let mut run = async |sql: &str| {
            let sql = sqlx::AssertSqlSafe(sql.to_owned());
            let done = sqlx::raw_sql(sql).execute(&mut connection).await;
            done.unwrap_or_else(|error| panic!("{error}"))
                .rows_affected()
        };
        run(&made).await;
        let triggers = |more: &[&str]| {
            let common = ["triggers", "--table", &*table, "--tag", "product-{id}"];
            db.run(&[&common[..], more].concat())
        };
        let (said, status) = triggers(&["--tag", "price-{price}"]);
        assert!(status == 1 && said.contains("more than one text"), "{said}");
        let (said, status) = triggers(&["--columns", "titel"]);
        assert!(
            status == 1 && said.contains("no column \"titel\""),
            "{said}"
        );
        let (said, status) = db.run(&["triggers", "--table", "nowhere", "--tag", "product-{id}"]);
        assert!(status == 1 && said.contains("no table"), "{said}");

        let columns = ["--list-tag", "products", "--columns", "title,price"];
        let (migration, status) = triggers(&columns);
        assert_eq!(status, 0, "{migration}");
        let check = || triggers(&[&columns[..], &["--check"]].concat());
        let (said, status) = check();
        let missing = format!("{table}_update\" is missing");
        assert!(status == 5 && said.contains(&missing), "{said}");
        // The migration is run by sqlx, as `sqlx migrate` does it, and then by the database's own client.
        run(&migration).await;
        db.run_by_client(&migration);
        let (said, status) = check();
        assert!(
            !said.contains("is missing") && !said.contains("is not the one"),
            "{said}"
        );
        assert!(
            status == 5 && said.contains("has a tag that begins with \"product-\""),
            "{said}"
        );
        let (said, status) = triggers(&["--columns", "title", "--list-tag", "products", "--check"]);
        assert!(status == 5 && said.contains("is not the one"), "{said}");
        run(&format!("INSERT INTO {table} VALUES (7, 'a', 10, 0)")).await;
        // If a page is generated before its invalidation has an epoch, it is generated once more
        // afterwards.
        let mut other = db.connection().await;
        let unnumbered = format!("SELECT count(*) FROM {}outbox", db.prefix);
        let mut written = async || {
            let count = sqlx::query_scalar(sqlx::AssertSqlSafe(&*unnumbered));
            let count: i64 = count.fetch_one(&mut other).await.expect("is counted");
            count
        };
        let since = Instant::now();
        while written().await > 0 {
            site.caught_up().await.expect("answers");
            assert!(since.elapsed() < HANG, "the invalidation is never numbered");
        }
        let page = async |price: &'static str| {
            let policy = Refresh::every(DAY);
            let generate = async move |generation: Generation| {
                generation.tag(["product-7", "products"]);
                Ok::<_, String>(price)
            };
            let content = site.content("part/7", &policy, generate).await;
            content.expect("is there").text().into_owned()
        };
        assert_eq!(page("10").await, "10");
        run(&format!("UPDATE {table} SET visits = 1")).await;
        assert_eq!(written().await, 0);
        assert_eq!(page("not generated").await, "10");
        run(&format!("UPDATE {table} SET price = 12")).await;
        until("the page has the new price", async || {
            site.caught_up().await.expect("answers");
            page("12").await == "12"
        })
        .await;

        let (said, status) = check();
        assert_eq!(status, 0, "{said}");
        let (migration, status) = triggers(&["--columns", "title,price", "--drop"]);
        assert_eq!(status, 0, "{migration}");
        run(&migration).await;
        let before = written().await;
        run(&format!("UPDATE {table} SET price = 13")).await;
        assert!(written().await <= before);
        run(&format!("DROP TABLE {table}")).await;
    }
}
