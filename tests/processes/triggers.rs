//! Pages follow their tables, whoever changes these: psql, sqlite3, mariadb, Python and an application write random
//! transactions, which end in a commit, in a rollback, or with the end of their program at any moment. Three
//! processes of a site show the rows, and the judge compares each page with what was committed before its visit.
//!
//! A row has a number that grows with each change of it, and ids are used once. So the judge needs no order of the
//! changes: a page is too old if it shows a smaller number than the row had before the visit began, or a row that
//! was not there any more, or if it lacks a row that was there before the visit and has not changed since.
//!
//! While many write, a page whose invalidation was lost is soon stale by another one. So the second half of the trial
//! is of single transactions, after each of which every page of every process has to show the rows.

use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::get as route,
};
use perennial::{
    Tags,
    driver::Engine,
    sql::{ColumnType, Trigger},
};
use perennial_testkit::{Contender, Db, every, get, on_each_database, open_site, patient, serve};
use tokio::task::JoinSet;

use crate::other_languages::{in_python, python};

on_each_database! {
    no_page_is_older_than_promised_whoever_writes_the_rows
}

const SHELVES: u32 = 4;
const LONG: Duration = Duration::from_secs(30 * 24 * 3600);

/// The time after which each process knows of a commit, and has regenerated a page for it. A request that finds the
/// last sync 1.25 s old waits for the next one; the rest is for a busy machine.
const ALLOWED: Duration = Duration::from_millis(1250 + 4000);

fn engine(db: &Db) -> Engine {
    match db.url().split(':').next() {
        Some("postgres") => Engine::Postgres,
        Some("mysql") => Engine::MySql,
        _ => Engine::Sqlite,
    }
}

/// The time of each half of the trial.
fn time() -> Duration {
    let seconds = std::env::var("PERENNIAL_TEST_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("seconds"));
    Duration::from_secs(seconds.unwrap_or(8) / 2)
}

/// The rows by their ids, each with its shelf and its number.
type Rows = BTreeMap<u32, (u32, u64)>;

async fn rows(db: &Db) -> Rows {
    // Of one moment, as one value.
    let list = match engine(db) {
        Engine::Postgres => "coalesce(string_agg(id || ':' || shelf || ':' || number, ' '), '')",
        Engine::MySql => {
            "CAST(coalesce(group_concat(concat(id, ':', shelf, ':', number) SEPARATOR ' '), '') AS CHAR)"
        }
        _ => "coalesce(group_concat(id || ':' || shelf || ':' || number, ' '), '')",
    };
    let rows = db.text(&format!("SELECT {list} FROM book")).await;
    let row = |row: &str| {
        let mut parts = row
            .split(':')
            .map(|part| part.parse::<u64>().expect("a number"));
        let mut part = || parts.next().expect("three parts");
        let [id, shelf, number] = [part(), part(), part()];
        (id as u32, (shelf as u32, number))
    };
    rows.split_whitespace().map(row).collect()
}

/// A process of the site: the pages of each book, of each shelf and of all of them.
async fn process(db: &Arc<Db>) -> SocketAddr {
    async fn show(db: &Db, tags: Vec<String>, shows: impl Fn(u32, u32) -> bool) -> Response {
        let rows = rows(db).await;
        let shown = rows.iter().filter(|(id, (shelf, _))| shows(**id, *shelf));
        let shown = shown.map(|(id, (_, number))| format!("{id}:{number}"));
        let body = shown.collect::<Vec<_>>().join(" ");
        (Tags::new(tags), body).into_response()
    }
    let site = open_site(patient(), db.url()).await.expect("opens");
    let book = async |State(db): State<Arc<Db>>, Path(id): Path<u32>| {
        show(&db, vec![format!("book-{id}")], |it, _| it == id).await
    };
    let shelf = async |State(db): State<Arc<Db>>, Path(shelf): Path<u32>| {
        show(&db, vec![format!("shelf-{shelf}")], |_, it| it == shelf).await
    };
    let all = async |State(db): State<Arc<Db>>| show(&db, vec!["books".into()], |_, _| true).await;
    let app = Router::new()
        .route("/book/{id}", route(book))
        .route("/shelf/{shelf}", route(shelf))
        .route("/all", route(all))
        .layer(site.layer(every(LONG)))
        .with_state(Arc::clone(db));
    serve(app).await
}

/// Random numbers, of which each writer has its own.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        // Of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(limit)) as u32
    }
}

/// Makes the statements of random transactions.
struct Changes {
    random: Random,
    engine: Engine,
    ids: Arc<AtomicU32>,
}

impl Changes {
    fn statement(&mut self) -> String {
        let newest = self.ids.load(SeqCst);
        // Mostly the latest rows, as the others were removed.
        let id = newest.saturating_sub(self.random.below(24));
        let shelf = self.random.below(SHELVES);
        match self.random.below(8) {
            0..4 => format!("UPDATE book SET number = number + 1 WHERE id = {id}"),
            4 => format!("UPDATE book SET shelf = {shelf}, number = number + 1 WHERE id = {id}"),
            // Several rows at once.
            5 => format!("UPDATE book SET number = number + 1 WHERE shelf = {shelf}"),
            // This keeps about thirty books. With more of them, the test would depend on how fast the machine is.
            6 => format!("DELETE FROM book WHERE id < {}", newest.saturating_sub(30)),
            _ => {
                let id = self.ids.fetch_add(1, SeqCst) + 1;
                format!("INSERT INTO book VALUES ({id}, {shelf}, 1)")
            }
        }
    }

    /// Returns the statements of a transaction, which may undo a part of itself or all of it.
    fn transaction(&mut self) -> Vec<String> {
        let begin = match self.engine {
            Engine::Sqlite => "BEGIN IMMEDIATE",
            Engine::MySql => "START TRANSACTION",
            _ => "BEGIN",
        };
        let mut statements = vec![begin.to_owned(), self.statement()];
        if self.random.below(3) == 0 {
            statements.push("SAVEPOINT here".to_owned());
            statements.push(self.statement());
            statements.push("ROLLBACK TO SAVEPOINT here".to_owned());
        }
        if self.random.below(2) == 0 {
            statements.push(self.statement());
        }
        let end = if self.random.below(4) == 0 {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        statements.push(end.to_owned());
        statements
    }
}

/// The client program of the database, which reads statements.
fn client(db: &Db) -> Option<Child> {
    let url = db.url();
    let mut command = match engine(db) {
        Engine::Postgres => {
            let mut command = Command::new("psql");
            command.args(["-X", "-q", url]);
            command
        }
        Engine::MySql => {
            let (_, rest) = url.split_once("://").expect("a URL");
            let (user, rest) = rest.split_once('@').expect("names a user");
            let (server, database) = rest.split_once('/').expect("names a database");
            let (host, port) = server.split_once(':').expect("a port");
            let mut command = Command::new("mariadb");
            // `--force` makes the client go on after a deadlock, as the other two clients do.
            command.args(["--force", "-h", host, "-P", port, "-u", user, database]);
            command
        }
        _ => {
            let mut command = Command::new("sqlite3");
            command.arg(url.strip_prefix("sqlite://").expect("a file"));
            command
        }
    };
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn();
    assert!(
        child.is_ok() || std::env::var_os("PERENNIAL_TEST_ALL").is_none(),
        "the client program of the database is not installed, and nothing may be skipped"
    );
    child.ok()
}

/// Writes by the client program, until it is killed or has ended.
fn write_by_client(db: &Db, changes: &mut Changes, most: u32) {
    let Some(mut client) = client(db) else { return };
    let mut input = client.stdin.take().expect("is piped");
    if changes.engine == Engine::Sqlite {
        writeln!(input, ".timeout 20000").expect("is alive");
    }
    for _ in 0..1 + changes.random.below(most) {
        for statement in changes.transaction() {
            writeln!(input, "{statement};").expect("is alive");
        }
    }
    if changes.random.below(2) == 0 {
        // The client is killed in the middle of a transaction, after a commit, or before it has connected.
        std::thread::sleep(Duration::from_millis(changes.random.below(60).into()));
        client.kill().expect("is killed");
    }
    drop(input);
    client.wait().expect("ends");
}

fn write_by_python(python: &str, db: &Db, changes: &mut Changes, most: u32) {
    let mut contender: Contender = in_python(python, db);
    for _ in 0..1 + changes.random.below(most) {
        let mut statements = changes.transaction();
        if changes.random.below(4) == 0 {
            // Ends without its last word.
            statements.pop();
        }
        for statement in statements {
            contender.tell(&format!("sql {statement}"));
            contender.said();
        }
    }
    // The drop kills the program.
}

#[derive(Default)]
struct Judged {
    visits: AtomicU64,
    rows: AtomicU64,
}

/// Returns what is too old on a page that was visited between these two states of the table.
fn breaches(
    shown: &BTreeMap<u32, u64>,
    before: &Rows,
    after: &Rows,
    newest_before: u32,
    is_of_page: impl Fn(u32, u32) -> bool,
) -> Vec<String> {
    let mut breaches = Vec::new();
    for (id, number) in shown {
        match before.get(id) {
            Some((_, then)) if number < then => {
                breaches.push(format!("shows book {id} with {number}, which had {then}"));
            }
            None if *id <= newest_before && !after.contains_key(id) => {
                breaches.push(format!("shows book {id}, which was gone"));
            }
            _ => {}
        }
    }
    for (id, row) in before {
        let is_unchanged = after.get(id) == Some(row);
        if is_unchanged && is_of_page(*id, row.0) && !shown.contains_key(id) {
            breaches.push(format!("lacks book {id}, which is there"));
        }
        if is_unchanged && !is_of_page(*id, row.0) && shown.contains_key(id) {
            breaches.push(format!("shows book {id}, which is elsewhere"));
        }
    }
    breaches
}

/// Waits until each page of each process shows the rows, which nobody changes meanwhile, and returns what does not
/// after the time that is allowed.
async fn shows_the_rows(db: &Db, processes: &[SocketAddr]) -> Vec<String> {
    let rows = rows(db).await;
    let newest = rows.keys().max().copied().unwrap_or_default();
    // The pages are those of the latest books, including deleted ones, and of all shelves.
    let books =
        (newest.saturating_sub(36)..=newest).map(|id| (format!("/book/{id}"), Some(id), None));
    let shelves = (0..SHELVES).map(|shelf| (format!("/shelf/{shelf}"), None, Some(shelf)));
    let pages: Vec<_> = books
        .chain(shelves)
        .chain([("/all".to_owned(), None, None)])
        .collect();
    let begun = Instant::now();
    let mut wrong = Vec::new();
    for address in processes {
        for (path, id, shelf) in &pages {
            let is_of_page = |(it, (on, _)): &(&u32, &(u32, u64))| {
                id.is_none_or(|id| id == **it) && shelf.is_none_or(|shelf| shelf == *on)
            };
            let expected = rows.iter().filter(is_of_page);
            let expected: BTreeMap<_, _> =
                expected.map(|(id, (_, number))| (*id, *number)).collect();
            loop {
                let shown = visit(*address, path).await;
                if shown == expected {
                    break;
                }
                if begun.elapsed() > ALLOWED {
                    wrong.push(format!("{path} shows {shown:?} in place of {expected:?}"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    wrong
}

async fn visit(address: SocketAddr, path: &str) -> BTreeMap<u32, u64> {
    let page = get(address, path).await;
    assert_eq!(page.status, 200, "{page:?}");
    let row = |row: &str| {
        let (id, number) = row.split_once(':').expect("two parts");
        (
            id.parse().expect("an id"),
            number.parse().expect("a number"),
        )
    };
    page.text().split_whitespace().map(row).collect()
}

async fn no_page_is_older_than_promised_whoever_writes_the_rows(db: Db) {
    db.store().await;
    db.execute("CREATE TABLE book (id INTEGER PRIMARY KEY, shelf INTEGER NOT NULL, number INTEGER NOT NULL)")
        .await;
    let trigger = Trigger::on("book")
        .column("id", ColumnType::Integer)
        .column("shelf", ColumnType::Integer)
        .tag("book-{id}")
        .tag("shelf-{shelf}")
        .list_tag("books")
        .columns(["number", "shelf"]);
    for statement in trigger.create(engine(&db)).expect("is valid") {
        db.execute(&statement).await;
    }
    for id in 1..=20 {
        db.execute(&format!(
            "INSERT INTO book VALUES ({id}, {}, 1)",
            id % SHELVES
        ))
        .await;
    }
    let (db, ids, over) = (
        Arc::new(db),
        Arc::new(AtomicU32::new(20)),
        Arc::new(AtomicBool::new(false)),
    );
    let processes = [process(&db).await, process(&db).await, process(&db).await];
    let mut writers = Vec::new();
    for seed in 0..2 {
        let (db, over) = (Arc::clone(&db), Arc::clone(&over));
        let random = Random(seed * 7919 + 13);
        let mut changes = Changes {
            random,
            engine: engine(&db),
            ids: Arc::clone(&ids),
        };
        let python = (seed == 1).then(python).flatten();
        writers.push(std::thread::spawn(move || {
            while !over.load(SeqCst) {
                match &python {
                    Some(python) => write_by_python(python, &db, &mut changes, 8),
                    None => write_by_client(&db, &mut changes, 8),
                }
            }
        }));
    }
    let judged = Arc::new(Judged::default());
    let (begun, time) = (Instant::now(), time());
    let mut visitors = JoinSet::new();
    for visitor in 0..6_u32 {
        let (db, ids, judged) = (Arc::clone(&db), Arc::clone(&ids), Arc::clone(&judged));
        visitors.spawn(async move {
            let mut random = Random(u64::from(visitor) + 1);
            let mut found = Vec::new();
            while begun.elapsed() < time {
                let address = processes[random.below(3) as usize];
                let newest = ids.load(SeqCst);
                let before = rows(&db).await;
                let (path, id, shelf) = match visitor % 3 {
                    0 => {
                        let id = newest.saturating_sub(random.below(24));
                        (format!("/book/{id}"), Some(id), None)
                    }
                    1 => {
                        let shelf = random.below(SHELVES);
                        (format!("/shelf/{shelf}"), None, Some(shelf))
                    }
                    _ => ("/all".to_owned(), None, None),
                };
                let is_of_page = |it: u32, on: u32| {
                    id.is_none_or(|id| id == it) && shelf.is_none_or(|shelf| shelf == on)
                };
                let known = Instant::now();
                let breaches = loop {
                    let shown = visit(address, &path).await;
                    let after = rows(&db).await;
                    let breaches = breaches(&shown, &before, &after, newest, is_of_page);
                    // A breach counts only after this time: until then, a page may still show the
                    // old data.
                    if breaches.is_empty() || known.elapsed() > ALLOWED {
                        judged.visits.fetch_add(1, SeqCst);
                        judged.rows.fetch_add(shown.len() as u64, SeqCst);
                        break breaches;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                };
                found.extend(
                    breaches
                        .into_iter()
                        .map(|breach| format!("{path} {breach}")),
                );
            }
            found
        });
    }
    let mut breaches: Vec<_> = visitors.join_all().await.into_iter().flatten().collect();
    over.store(true, SeqCst);
    tokio::task::spawn_blocking(move || {
        for writer in writers {
            writer.join().expect("writes");
        }
    })
    .await
    .expect("ends");
    let python = python();
    let mut changes = Changes {
        random: Random(4711),
        engine: engine(&db),
        ids: Arc::clone(&ids),
    };
    let (begun, mut single) = (Instant::now(), 0);
    while begun.elapsed() < time {
        breaches.extend(shows_the_rows(&db, &processes).await);
        single += 1;
        let (db, python) = (Arc::clone(&db), python.clone());
        let write = move || {
            match &python {
                Some(python) if single % 2 == 0 => write_by_python(python, &db, &mut changes, 1),
                _ => write_by_client(&db, &mut changes, 1),
            }
            changes
        };
        changes = tokio::task::spawn_blocking(write).await.expect("writes");
    }
    let (visits, shown) = (judged.visits.load(SeqCst), judged.rows.load(SeqCst));
    let made = ids.load(SeqCst);
    println!(
        "{visits} visits to pages with {shown} rows, {single} single transactions, {made} books: {} breaches",
        breaches.len()
    );
    assert_eq!(breaches, Vec::<String>::new());
    assert!(visits > 10 && made > 20, "{visits} {made}");
}
