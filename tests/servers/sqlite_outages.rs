//! Visitors get their pages though the SQLite file is locked, broken, full, gone or another
//! program's file.

use std::{
    convert::Infallible,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use perennial::{
    ErrorKind, Perennial, Refresh,
    entries::{EntryFilter, EntryState},
};
use sqlx::{Connection, Executor, SqliteConnection, SqlitePool};
use tokio::time::Instant;

use perennial_testkit::{
    Crowd, Db, Folder, every, get, on_database, on_each_database, patient, serve_origin, until,
};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3600);

async fn becomes_stale() {
    tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
}

fn db(folder: &Folder) -> Db {
    Db::at(&folder.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writers_lock_delays_no_warm_page_and_the_site_recovers() {
    let folder = Folder::new();
    let policy = Refresh::every(SHORT).in_background().cooldown(SHORT);
    let (origin, address) = serve_origin(&folder.site().await, &policy).await;
    assert_eq!(get(address, "/").await.run(), 1);

    let mut writer = SqliteConnection::connect(&folder.url())
        .await
        .expect("opens");
    writer.execute("BEGIN IMMEDIATE").await.expect("locks");
    let locked = Instant::now();
    // An existing database is opened all the same.
    folder.site().await;
    becomes_stale().await;
    while locked.elapsed() < Duration::from_secs(6) {
        let reply = get(address, "/").await;
        assert_eq!(reply.run(), 1, "without the lock nobody regenerates");
        assert!(reply.took < Duration::from_secs(5), "{:?}", reply.took);
        tokio::time::sleep(SHORT).await;
    }
    // Cold: generated once, without a lease, and served unsaved.
    let replies = Crowd::visit(20, &[address], "/cold").rest().await;
    assert!(replies.iter().all(|reply| reply.run() == 2));
    assert_eq!(origin.begun(), 2);

    writer.execute("ROLLBACK").await.expect("unlocks");
    for path in ["/", "/cold"] {
        until("it regrows", async || get(address, path).await.run() > 2).await;
    }
    let stored = "SELECT count(*) FROM perennial_entry WHERE body > 'run 2'";
    let db = db(&folder);
    until("both are saved", async || db.int(stored).await == Some(2)).await;
}

/// Ways to lose a database under a running site.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Garbage,
    Removed,
    TablesDropped,
    ReadOnly,
    Full,
}

#[tokio::test(flavor = "multi_thread")]
async fn warm_pages_are_served_and_cold_ones_generated_whatever_happens_to_the_database() {
    for loss in [
        Loss::Garbage,
        Loss::Removed,
        Loss::TablesDropped,
        Loss::ReadOnly,
        Loss::Full,
    ] {
        let folder = Folder::new();
        let site = match loss {
            // A limit on the size of the file stands in for a full disk, because only root could
            // mount a small disk for a test.
            Loss::Full => {
                let options = format!("{}?mode=rwc", folder.url())
                    .parse::<sqlx::sqlite::SqliteConnectOptions>();
                let pool = SqlitePool::connect_with(
                    options.expect("a URL").pragma("max_page_count", "17"),
                );
                let pool = pool.await.expect("opens");
                patient().with_pool(pool).await.expect("prepares")
            }
            _ => folder.site().await,
        };
        let policy = Refresh::every(SHORT).in_background().cooldown(SHORT);
        let (_, address) = serve_origin(&site, policy).await;
        assert_eq!(get(address, "/").await.run(), 1);
        lose(&folder, loss).await;
        becomes_stale().await;
        for _ in 0..5 {
            let reply = get(address, "/").await;
            assert_eq!(reply.status, 200, "{loss:?}");
            tokio::time::sleep(SHORT).await;
        }
        // The visitors may come one after the other. The first one then starts a generation, and
        // its version is fresh for all others.
        let (origin, address) = serve_origin(&site, Refresh::every(LONG)).await;
        let replies = Crowd::visit(20, &[address], "/cold").rest().await;
        assert!(replies.iter().all(|reply| reply.status == 200), "{loss:?}");
        let runs = origin.begun();
        assert!((1..=2).contains(&runs), "{loss:?}: {runs} generations");
        if let Loss::ReadOnly = loss {
            let writable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.path(), writable).expect("is set");
        }
    }
}

async fn lose(folder: &Folder, loss: Loss) {
    let files = |folder: &Folder| {
        std::fs::read_dir(folder.path())
            .expect("lists")
            .map(|file| file.expect("a file").path())
            .collect::<Vec<_>>()
    };
    match loss {
        Loss::Garbage => {
            // Shared memory is left alone. SQLite trusts its content, so other bytes there would
            // make it map more and more memory.
            let on_disk = |file: &PathBuf| !file.to_string_lossy().ends_with("-shm");
            for file in files(folder).into_iter().filter(on_disk) {
                let length = std::fs::metadata(&file).expect("is there").len();
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .open(file)
                    .expect("opens");
                file.write_all(&vec![0x5a; length.max(8192) as usize])
                    .expect("writes");
            }
        }
        Loss::Removed => {
            for file in files(folder) {
                std::fs::remove_file(file).expect("removes");
            }
        }
        Loss::TablesDropped => {
            db(folder)
                .execute("DROP TABLE perennial_entry; DROP TABLE perennial_lock")
                .await;
        }
        Loss::ReadOnly => {
            // The tests may run as root, which can write to every file. Tables that refuse writes
            // come closest to a read-only file.
            db(folder).execute(
                "CREATE TRIGGER a BEFORE INSERT ON perennial_lock BEGIN SELECT RAISE(ABORT, 'read-only'); END;
                 CREATE TRIGGER b BEFORE UPDATE ON perennial_lock BEGIN SELECT RAISE(ABORT, 'read-only'); END",
            )
            .await;
            let read_only = std::fs::Permissions::from_mode(0o555);
            std::fs::set_permissions(folder.path(), read_only).expect("is set");
        }
        Loss::Full => {
            db(folder).execute(
                "CREATE TABLE filler AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 64)
                 SELECT randomblob(4000) AS page FROM n",
            )
            .await;
        }
    }
}

/// A value that is cut off, unlike one of another type, is of no use to processes with other code.
#[tokio::test(flavor = "multi_thread")]
async fn value_that_is_cut_off_is_replaced_at_once() {
    let folder = Folder::new();
    let policy = Refresh::every(LONG).leader_wait(LONG);
    let value = async |text: &'static str| {
        let site = folder.site().await;
        let generate = async move || Ok::<_, Infallible>(vec![text.to_owned()]);
        let value = site.value("titles", &policy, generate).await;
        site.shutdown().await;
        value.expect("is made").join(", ")
    };
    assert_eq!(value("first").await, "first");
    let spoil = "UPDATE perennial_entry SET body = substr(body, 1, 5)";
    assert_eq!(db(&folder).execute(spoil).await, 1);
    assert_eq!(value("second").await, "second");
    assert_eq!(value("third").await, "second", "it was not replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_row_counts_as_none_and_is_replaced() {
    let spoils = [
        "UPDATE perennial_entry SET headers = x'ff00'",
        "UPDATE perennial_entry SET headers = 'no line'",
        "UPDATE perennial_entry SET status = 7",
        "UPDATE perennial_entry SET status = 'fine'",
        "UPDATE perennial_entry SET generated_at = 'yesterday'",
        "UPDATE perennial_entry SET metadata = '{'",
    ];
    // A row of an unknown age is stale, and the leader waits for the new version.
    let policy = Refresh::every(LONG).leader_wait(LONG);
    for spoil in spoils {
        let folder = Folder::new();
        let (_, before) = serve_origin(&folder.site().await, &policy).await;
        get(before, "/").await;
        // While a publish is slow, the visitor already gets the page.
        until("the page is stored, and spoilt", async || {
            db(&folder).execute(spoil).await == 1
        })
        .await;
        let site = folder.site().await;
        let (origin, address) = serve_origin(&site, &policy).await;
        if spoil.contains("metadata") {
            assert_not_shown_as_served(&site).await;
        }
        origin.run("an earlier one").await;
        assert_eq!(get(address, "/").await.run(), 2, "{spoil}");
        let (origin, after) = serve_origin(&folder.site().await, &policy).await;
        assert_eq!(get(after, "/").await.run(), 2, "{spoil}");
        assert_eq!(origin.begun(), 0, "{spoil}: it was not replaced");
    }
}

/// A page whose metadata cannot be read, which no visitor gets, is shown to no operator as if it were served. (The
/// list does not read the response itself.)
async fn assert_not_shown_as_served(site: &Perennial) {
    let listed = site.entries(&EntryFilter::new()).await.expect("is listed");
    let states: Vec<_> = listed.entries.iter().map(|entry| entry.state).collect();
    assert_eq!(states, [EntryState::Expired]);
}

async fn refused(
    open: impl Future<Output = Result<Perennial, perennial::Error>>,
    kind: ErrorKind,
    said: &str,
) {
    let error = open.await.expect_err(said);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(format!("{error:#}").contains(said), "{error:#}");
}

#[tokio::test]
async fn database_that_cannot_be_opened_is_an_error_with_a_remedy() {
    use ErrorKind::{Database, Invalid, Schema, Unreachable};

    let folder = Folder::new();
    refused(
        Perennial::open("site.db"),
        Invalid,
        "write `sqlite://site.db`",
    )
    .await;
    refused(
        Perennial::open("redis://me:secret@host"),
        Invalid,
        "redis://…@host",
    )
    .await;
    let a_folder = format!("sqlite://{}", folder.path().display());
    refused(Perennial::open(&a_folder), Unreachable, "unable to open").await;
    let nowhere = format!("sqlite://{}/no/such/site.db", folder.path().display());
    refused(Perennial::open(&nowhere), Unreachable, "unable to open").await;
    refused(Perennial::open("sqlite://"), Invalid, "names no file").await;
    let no_option = format!("{}?colour=red", folder.url());
    refused(Perennial::open(&no_option), Database, "colour").await;

    let text = folder.path().join("text.db");
    std::fs::write(
        &text,
        "this is no database, but a text that is long enough to be read as one ".repeat(50),
    )
    .expect("writes");
    refused(Perennial::open(&url_of(&text)), Database, "not a database").await;

    for several in [
        "postgres://me:secret@a:1,b:2/site",
        "mysql://a,b/site",
        "postgres://a/site?port=1,2",
        "postgresql://a/site?sslmode=disable&target_session_attrs=read-write",
    ] {
        let said = "a proxy in front of them";
        refused(Perennial::open(several), Invalid, said).await;
    }

    let foreign = Folder::new();
    let pool = sqlx::SqlitePool::connect(&format!("{}?mode=rwc", foreign.url())).await;
    let pool = pool.expect("opens");
    let table = sqlx::query("CREATE TABLE perennial_entry (id INTEGER)");
    table.execute(&pool).await.expect("is made");
    let said = "`Builder::table_prefix`";
    refused(Perennial::open(&foreign.url()), Database, said).await;

    for prefix in ["", "A", "1", "a-b", "a;DROP TABLE x", "ä", &"a".repeat(41)] {
        let builder = Perennial::builder().table_prefix(prefix);
        refused(builder.open(&folder.url()), Invalid, "table prefix").await;
    }

    folder.site().await;
    db(&folder)
        .execute("UPDATE perennial_schema SET version = 99")
        .await;
    refused(Perennial::open(&folder.url()), Schema, "version 99").await;
    db(&folder)
        .execute("UPDATE perennial_schema SET version = -1")
        .await;
    refused(Perennial::open(&folder.url()), Schema, "version -1").await;
}

async fn column_of_a_newer_release_does_not_disturb_a_running_site(db: Db) {
    let (site, other) = (db.site().await, db.site().await);
    let (origin, first) = serve_origin(&site, every(LONG).leader_wait(LONG)).await;
    let (_, second) = serve_origin(&other, every(LONG).leader_wait(LONG)).await;
    assert_eq!(get(first, "/").await.run(), 1);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let visitors = tokio::spawn(async move {
        for number in 0.. {
            if *stopped.borrow() {
                break;
            }
            for address in [first, second] {
                assert_eq!(get(address, "/").await.status, 200);
            }
            assert_eq!(get(first, &format!("/{number}")).await.status, 200);
        }
    });
    for change in [
        "ALTER TABLE perennial_entry ADD COLUMN colour BIGINT NOT NULL DEFAULT 7",
        "ALTER TABLE perennial_lock ADD COLUMN colour BIGINT NOT NULL DEFAULT 7",
        "UPDATE perennial_schema SET version = version + 1 WHERE id = 1",
    ] {
        db.execute(change).await;
    }
    let begun = origin.begun();
    until("new pages are generated", async || {
        origin.begun() > begun + 9
    })
    .await;
    stop.send_replace(true);
    visitors.await.expect("each visitor is served");
    // Published, renewed and read by both.
    site.invalidate("/").await.expect("is invalidated");
    let run = get(first, "/").await.run();
    assert!(run > 1);
    until("the other process has read it", async || {
        get(second, "/").await.run() == run
    })
    .await;
    let coloured = "SELECT count(*) FROM perennial_entry WHERE colour = 7";
    assert_eq!(
        db.int(coloured).await,
        db.int("SELECT count(*) FROM perennial_entry").await
    );
    // Now the tables are those of a newer release, so this one has to refuse them. A busy machine
    // may be slow to accept a connection, so it is tried again.
    let opens = async || Perennial::open(db.url()).await.expect_err("is refused");
    until("the database says why", async || {
        match opens().await.kind() {
            ErrorKind::Unreachable => false,
            kind => kind == ErrorKind::Schema || panic!("{kind:?}"),
        }
    })
    .await;
}

fn url_of(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_memory_works() {
    for url in ["sqlite::memory:", "sqlite://?mode=memory"] {
        let site = Perennial::open(url).await.expect("opens");
        let (origin, address) = serve_origin(&site, Refresh::every(LONG)).await;
        assert!(
            Crowd::visit(50, &[address], "/")
                .rest()
                .await
                .iter()
                .all(|reply| reply.run() == 1)
        );
        assert_eq!(origin.begun(), 1);
    }
}

/// All succeed, although SQLite refuses some of several connections that set a new file to WAL mode
/// at once, in spite of the busy timeout.
#[tokio::test(flavor = "multi_thread")]
async fn many_open_a_new_file_at_once() {
    for round in 0..40 {
        let folder = Folder::new();
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let url = folder.url();
                tokio::spawn(async move { patient().open(&url).await })
            })
            .collect();
        for site in opening {
            if let Err(error) = site.await.expect("no panic") {
                panic!("round {round}: {error}");
            }
        }
    }
}

on_each_database! {
    column_of_a_newer_release_does_not_disturb_a_running_site
}

#[cfg(feature = "mysql")]
on_database! {
    mysql_uncommitted = perennial_testkit::Db::mysql_with(&["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]);
    read_uncommitted_is_refused_with_the_remedy
}

#[cfg(feature = "mysql")]
async fn read_uncommitted_is_refused_with_the_remedy(db: Db) {
    let opened = Perennial::builder().with_pool(db.database().await).await;
    let error = opened.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = format!("{error:#}");
    assert!(
        text.contains("transaction_isolation") && text.contains("READ COMMITTED"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_file_and_broken_file_have_different_errors() {
    for (journal, hint) in [
        ("DELETE", "readonly database"),
        ("WAL", "the database may only be read"),
    ] {
        let folder = Folder::new();
        let url = folder.url();
        let mut file = SqliteConnection::connect(&format!("{url}?mode=rwc"))
            .await
            .expect("is made");
        let table = format!("PRAGMA journal_mode = {journal}; CREATE TABLE mine (id INTEGER)");
        let table = sqlx::raw_sql(sqlx::AssertSqlSafe(table));
        file.execute(table).await.expect("is made");
        let error = Perennial::open(&format!("{url}?mode=ro")).await;
        let error = format!("{:#}", error.expect_err("may not be written"));
        assert!(error.contains(hint), "{journal}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_opens_before_the_folder_of_its_file_is_mounted() {
    let folder = Folder::new();
    let later = folder.path().join("later");
    let url = url_of(&later.join("site.db"));
    let site = Perennial::builder().connect_lazily().open(&url).await;
    let site = site.expect("opens without the folder");
    let (_, address) = serve_origin(&site, Refresh::every(Duration::from_millis(10))).await;
    assert_eq!(get(address, "/").await.run(), 1);
    std::fs::create_dir(&later).expect("makes");
    until("the file is there, and locks work", async || {
        matches!(site.locks().try_lock("a").await, Ok(Some(_)))
    })
    .await;
}
