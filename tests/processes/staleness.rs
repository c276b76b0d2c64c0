//! A site of three processes, judged by the truth: the data, the invalidations and the purges, with
//! their times.
//!
//! The data of a page is a number in the test itself, which only grows. A page shows the number that
//! its generator has read. The test takes all times itself, around each call, and judges only what
//! is certain: on a slow machine the judge is milder, and never wrong.
//!
//! The trial (`tests/trials`) has processes, too, and judges them under faults of their database. Its
//! numbers say in which order pages were generated, and have no data behind them.

use std::{
    net::SocketAddr,
    ops::Range,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Path, State},
    http::HeaderMap,
};
use perennial::{Key, Perennial, Tags};
use perennial_store::{Backend, Invalidate};
use tokio::task::JoinSet;

use perennial_testkit::{
    Contender, Db, Reply, every, four_digits, get, on_each_database, patient, request, rounds,
    serve, until, with_pool,
};

on_each_database! {
    no_answer_is_older_than_promised
    author_that_crashes_loses_no_committed_invalidation
}

const PROCESSES: usize = 3;

/// The time after which the other processes know of an invalidation. A request that finds the last
/// sync 1.25 s old waits for the next one.
const KNOWN_ELSEWHERE: Duration = Duration::from_millis(1300);

/// The variants of each page, by a header.
const VARIANTS: [&str; 2] = ["plain", "blue"];

/// The pages, each with the name of the invalidation that follows a change of its data. A page has
/// its own name as its tag.
const PAGES: [(&str, &str); 10] = [
    ("purged_everything", "purged_prefix:"),
    ("everything", "prefix:"),
    ("key", "key:/key"),
    ("prefix", "prefix:/pref"),
    ("tag", "tag:tag"),
    ("purged", "purged:/purged"),
    ("purged_prefix", "purged_prefix:/purged_p"),
    ("purged_tag", "purged_tag:purged_tag"),
    ("unread", "key:/unread"),
    ("dropped", "tag:dropped"),
];

/// The pages with an invalidation of everything. Each would hide the loss of another one.
const PURGED_EVERYTHING: usize = 0;
const EVERYTHING: usize = 1;

/// The pages that visitors ask for all the time.
const VISITED: Range<usize> = 2..8;

/// The pages with a tag, for changes in transactions.
const TAGGED: [usize; 2] = [4, 7];

/// The pages whose names are among [many](Many) others.
const UNREAD: usize = 8;
const DROPPED: usize = 9;

/// Names that are invalidated in one transaction, with the name of a page at one place. A process
/// keeps the latest 100,000 names that only make pages stale, and reads 10,000 names at a time.
struct Many {
    page: usize,
    place: usize,
    names: usize,
    /// The places of the names that purge, which are a list of their own.
    purging: &'static str,
}

/// A process that is so far behind reads the latest 100,000 stale names, and the name of the page is not
/// among them.
const BEHIND: Many = Many {
    page: UNREAD,
    place: 12_500,
    names: 115_000,
    purging: "n.d < 10000 OR n.d >= 114000",
};

/// After [`BEHIND`], a process reads all of these names, has too many, and drops the older ones.
const AHEAD: Many = Many {
    page: DROPPED,
    place: 0,
    names: 60_000,
    purging: "n.d < 0",
};

/// A change of a page's data, with its invalidation.
struct Change {
    page: usize,
    /// The data before the invalidation began.
    number: u64,
    /// The process that invalidated the page. `None` stands for a program without a site.
    by: Option<usize>,
    /// The time at which the invalidation was done.
    done: Instant,
}

/// An answer to a visitor.
struct Answer {
    page: usize,
    process: usize,
    /// The time before the request was sent.
    asked: Instant,
    number: u64,
    /// The Cache-Status has a hit on a version that is not stale.
    is_fresh: bool,
}

/// The numbers of answers.
#[derive(Default)]
struct Judged {
    answers: usize,
    fresh: usize,
    /// The answers that were as old as they may be, and no older.
    exact: usize,
}

struct Site {
    numbers: Arc<[AtomicU64; PAGES.len()]>,
    processes: Vec<SocketAddr>,
    /// A program without a site, which invalidates by the documented statement.
    program: Arc<dyn Backend>,
    changes: Mutex<Vec<Change>>,
    judged: Mutex<Judged>,
    breaches: Mutex<Vec<String>>,
    ends: AtomicBool,
}

async fn no_answer_is_older_than_promised(db: Db) {
    let has_time = std::env::var_os("PERENNIAL_TEST_ALL").is_some();
    // The number of visitors in each process, and the number of answers to wait for before
    // thousands of names are invalidated.
    let (crowd, enough) = if has_time { (4, 10_000) } else { (1, 1000) };
    let (site, _processes, _) = Site::start(&db).await;
    site.program_invalidates("tag:none").await;
    // This is the state after the database's clock was set back: the counter is an hour ahead of the
    // clock, so each new epoch is only one more than the one before.
    db.execute(&db.raise_epochs(3_600_000_000)).await;
    site.shows_the_data(0..PAGES.len()).await;

    let visitors = site.visitors(crowd);
    site.changes(PURGED_EVERYTHING, Some(0)).await;
    let mut turns = 0..;
    while turns.start < VISITED.len() || site.judged.lock().expect("no panic").answers < enough {
        let turn = turns.next().expect("has no end");
        let page = VISITED.start + turn % VISITED.len();
        let by = (turn / VISITED.len() + turn) % (PROCESSES + 1);
        site.changes(page, by.checked_sub(1)).await;
    }
    site.is_known_everywhere(PURGED_EVERYTHING..EVERYTHING)
        .await;
    // After an invalidation of everything, a process keeps no name from before.
    site.changes(EVERYTHING, None).await;
    site.shows_the_data(UNREAD..UNREAD + 1).await;
    site.invalidates_many(&db, BEHIND).await;
    site.is_known_everywhere(0..PAGES.len()).await;
    if has_time {
        site.changes(DROPPED, None).await;
        site.shows_the_data(DROPPED..DROPPED + 1).await;
        site.invalidates_many(&db, AHEAD).await;
        site.is_known_everywhere(0..PAGES.len()).await;
    }
    for page in EVERYTHING..VISITED.end {
        site.changes(page, Some(page % PROCESSES)).await;
    }
    site.is_known_everywhere(0..PAGES.len()).await;
    site.shows_the_data(0..PAGES.len()).await;
    site.ends.store(true, SeqCst);
    visitors.join_all().await;
    site.is_sound();
    let Judged {
        answers,
        fresh,
        exact,
    } = *site.judged.lock().expect("no panic");
    let changes = site.changes.lock().expect("no panic").len();
    println!(
        "{changes} changes; {answers} answers, {fresh} fresh, {exact} exactly as old as allowed"
    );
}

/// An author who crashes before the commit, after it, or while the invalidation is being applied.
async fn author_that_crashes_loses_no_committed_invalidation(db: Db) {
    let (site, _processes, data) = Site::start(&db).await;
    site.shows_the_data(VISITED).await;
    let visitors = site.visitors(1);
    for turn in 0..rounds(80, 8) {
        let crash = match ["before", "after", "applying", "paused"][turn % 4] {
            // A process that is stopped while it writes keeps the lock of an SQLite file, and stops all writers.
            "paused" if db.url().starts_with("sqlite") => "applying",
            crash => crash,
        };
        let page = TAGGED[turn / 4 % 2];
        let number = site.numbers[page].fetch_add(1, SeqCst) + 1;
        let mut author = start(&db, data);
        author.said();
        author.tell(&format!("{crash} {}", PAGES[page].1));
        author.said();
        let _paused = (crash == "paused").then_some(author);
        let waiting = async || db.int("SELECT COUNT(*) FROM perennial_outbox").await;
        if crash == "before" {
            assert_eq!(waiting().await, Some(0), "it was rolled back");
        } else {
            until("it is applied", async || waiting().await == Some(0)).await;
            site.changed(page, number, None);
        }
    }
    site.is_known_everywhere(VISITED).await;
    site.shows_the_data(VISITED).await;
    site.ends.store(true, SeqCst);
    visitors.join_all().await;
    site.is_sound();
}

/// Serves the present data of each page.
async fn serve_data(numbers: &Arc<[AtomicU64; PAGES.len()]>) -> SocketAddr {
    let numbers = Arc::clone(numbers);
    let number = async move |Path(page): Path<usize>| numbers[page].load(SeqCst).to_string();
    serve(Router::new().route("/{page}", axum::routing::get(number))).await
}

fn start(db: &Db, data: SocketAddr) -> Contender {
    let mut command = Command::new(std::env::current_exe().expect("has a path"));
    command
        .args(["staleness::process", "--exact", "--ignored", "--nocapture"])
        .env("PERENNIAL_TRUTH", format!("{data} {}", db.url()));
    Contender::run(&mut command)
}

/// No test: a process of the site.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is started by the test of the site"]
async fn process() {
    let Ok(told) = std::env::var("PERENNIAL_TRUTH") else {
        return;
    };
    let (data, url) = told.split_once(' ').expect("two words");
    let data: SocketAddr = data.parse().expect("an address");
    let site = patient().open(url).await.expect("opens");
    let variant = Key::new().header("x-variant".parse().expect("a name"));
    let mut app = Router::new();
    for (page, (path, _)) in PAGES.into_iter().enumerate() {
        let turns = Arc::new(AtomicU64::new(0));
        let handler = async move || {
            let number = get(data, &format!("/{page}")).await.text().to_owned();
            // Changes come before and after the end of the generator.
            let turn = turns.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_millis(turn % 5 * 2)).await;
            (Tags::new([path]), number)
        };
        // On half of the pages, the visitor who starts a regeneration waits for the new version.
        let policy = every(Duration::from_secs(3600));
        let policy = match page % 2 {
            0 => policy,
            _ => policy.in_background(),
        };
        let layer = site.layer(&policy).key(variant.clone());
        app = app.route(
            &format!("/{path}"),
            axum::routing::get(handler).layer(layer),
        );
    }
    let changes = Router::new().route("/changes", axum::routing::post(invalidate));
    println!(
        "said {}",
        serve(app.merge(changes.with_state(site.clone()))).await
    );
    for line in std::io::stdin().lines() {
        crash(&site, &Db::at(url), &line.expect("is piped")).await;
    }
}

/// Invalidates in a transaction, and ends or pauses the process at one point of it.
async fn crash(site: &Perennial, db: &Db, told: &str) {
    let (at, name) = told.split_once(' ').expect("two words");
    let (kind, tag) = name.split_once(':').expect("a kind");
    with_pool!(db, pool => {
        let mut transaction = pool.begin().await.expect("begins");
        let pending = match kind {
            "tag" => site.invalidate_in(&mut transaction, [tag]).await,
            _ => site.purge_in(&mut transaction, [tag]).await,
        };
        let pending = pending.expect("is written");
        if at != "before" {
            transaction.commit().await.expect("is committed");
        }
        println!("said done");
        if at == "applying" || at == "paused" {
            tokio::spawn(pending.committed());
            let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let micros = nanos.expect("is later").subsec_nanos() % 3000;
            tokio::time::sleep(Duration::from_micros(micros.into())).await;
        }
        if at == "paused" {
            let process = std::process::id().to_string();
            let _ = Command::new("kill").args(["-STOP", &process]).status();
        }
        std::process::abort();
    });
}

async fn invalidate(State(site): State<Perennial>, headers: HeaderMap) {
    let name = headers["x-name"].to_str().expect("text");
    let (kind, text) = name.split_once(':').expect("a kind");
    let done = match kind {
        "key" => site.invalidate(text).await,
        "prefix" => site.invalidate_prefix(text).await,
        "tag" => site.invalidate_tag(text).await,
        "purged" => site.purge(text).await,
        "purged_prefix" => site.purge_prefix(text).await,
        "purged_tag" => site.purge_tag(text).await,
        _ => unreachable!("{name}"),
    };
    done.expect("is done");
}

impl Site {
    /// Starts the processes, and the service with their data.
    async fn start(db: &Db) -> (Arc<Self>, Vec<Contender>, SocketAddr) {
        let numbers: Arc<[AtomicU64; PAGES.len()]> = Arc::default();
        let data = serve_data(&numbers).await;
        let mut processes: Vec<_> = (0..PROCESSES).map(|_| start(db, data)).collect();
        let listening = processes.iter_mut().map(Contender::said);
        let address = |said: Vec<String>| said[0].parse().expect("an address");
        let site = Self {
            numbers,
            processes: listening.map(address).collect(),
            program: db.store().await,
            changes: Mutex::default(),
            judged: Mutex::default(),
            breaches: Mutex::default(),
            ends: AtomicBool::new(false),
        };
        (Arc::new(site), processes, data)
    }

    /// Starts this number of visitors of each process.
    fn visitors(self: &Arc<Self>, crowd: usize) -> JoinSet<()> {
        let mut visitors = JoinSet::new();
        for process in (0..PROCESSES).cycle().take(crowd * PROCESSES) {
            let site = Arc::clone(self);
            visitors.spawn(async move { site.visitor(process).await });
        }
        visitors
    }

    /// Changes the data of a page, and invalidates the page.
    async fn changes(&self, page: usize, by: Option<usize>) {
        // The page changes twice, and the second version is made directly before the second invalidation.
        for _ in 0..2 {
            let number = self.numbers[page].fetch_add(1, SeqCst) + 1;
            let name = PAGES[page].1;
            match by {
                None => self.program_invalidates(name).await,
                Some(process) => {
                    let name = [("x-name", name)];
                    let reply = request(self.processes[process], "POST", "/changes", &name).await;
                    assert_eq!(reply.status, 200, "{reply:?}");
                }
            }
            self.changed(page, number, by);
            let Some(process) = by else { continue };
            for variant in VARIANTS {
                self.visit(process, page, variant).await;
            }
            self.shows(process, page).await;
        }
    }

    async fn program_invalidates(&self, name: &str) {
        let done = self
            .program
            .ask(Invalidate::new(vec![name.to_owned()]))
            .await;
        done.expect("is done");
    }

    fn changed(&self, page: usize, number: u64, by: Option<usize>) {
        let change = Change {
            page,
            number,
            by,
            done: Instant::now(),
        };
        self.changes.lock().expect("no panic").push(change);
    }

    /// Changes the data of a page whose name is among many.
    async fn invalidates_many(&self, db: &Db, many: Many) {
        let Many {
            page,
            place,
            names,
            purging,
        } = many;
        let number = self.numbers[page].fetch_add(1, SeqCst) + 1;
        let digits = "a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d";
        let tens = (0..=names / 10_000).map(|n| format!("SELECT {n} AS d"));
        let tens = tens.collect::<Vec<_>>().join(" UNION ALL ");
        let rows = format!(
            "(SELECT {digits} AS d FROM {} CROSS JOIN ({tens}) e) n WHERE n.d < {names}",
            four_digits()
        );
        let numbered = |kind: &str| {
            if db.url().starts_with("mysql") {
                format!("CONCAT('{kind}:{names}-', n.d)")
            } else {
                format!("'{kind}:{names}-' || n.d")
            }
        };
        let again = if db.url().starts_with("mysql") {
            " ON DUPLICATE KEY UPDATE epoch = VALUES(epoch)"
        } else {
            " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch"
        };
        db.execute(&format!(
            "BEGIN; {raise}; INSERT INTO perennial_invalidation (name, epoch)
             SELECT CASE WHEN n.d = {place} THEN '{name}' WHEN {purging} THEN {purged} ELSE {stale} END,
                 ({latest}) - {names} + 1 + n.d
             FROM {rows}{again}; COMMIT",
            latest = db.latest_epoch(),
            raise = db.raise_epochs(names as u64),
            name = PAGES[page].1,
            purged = numbered("purged_tag"),
            stale = numbered("tag"),
        ))
        .await;
        self.changed(page, number, None);
    }

    /// Visits these pages in each process, when each process knows of their changes.
    async fn is_known_everywhere(&self, pages: Range<usize>) {
        let last = {
            let changes = self.changes.lock().expect("no panic");
            let changes = changes.iter().filter(|it| pages.contains(&it.page));
            changes.map(|it| it.done).max().expect("has changes")
        };
        tokio::time::sleep_until((last + KNOWN_ELSEWHERE).into()).await;
        for process in 0..PROCESSES {
            for page in pages.clone() {
                for variant in VARIANTS {
                    self.visit(process, page, variant).await;
                }
            }
        }
        self.is_sound();
    }

    /// Visits the pages until each process shows the present data.
    async fn shows_the_data(&self, pages: Range<usize>) {
        for process in 0..PROCESSES {
            for page in pages.clone() {
                self.shows(process, page).await;
            }
        }
    }

    async fn shows(&self, process: usize, page: usize) {
        for variant in VARIANTS {
            until("the present data is shown as fresh", async || {
                self.is_sound();
                let present = self.numbers[page].load(SeqCst);
                self.visit(process, page, variant).await == Some((present, true))
            })
            .await;
        }
    }

    /// Visits one page after another until the end.
    async fn visitor(&self, process: usize) {
        for turn in process.. {
            if self.ends.load(SeqCst) {
                break;
            }
            let variant = VARIANTS[turn / VISITED.len() % VARIANTS.len()];
            let page = VISITED.start + turn % VISITED.len();
            self.visit(process, page, variant).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns the number that the process serves, and whether it is said to be fresh. `None` means that the
    /// visitor is to come again.
    async fn visit(&self, process: usize, page: usize, variant: &str) -> Option<(u64, bool)> {
        let path = format!("/{}", PAGES[page].0);
        let variant = [("x-variant", variant)];
        let asked = Instant::now();
        let reply = request(self.processes[process], "GET", &path, &variant).await;
        if reply.status != 200 {
            return None;
        }
        let number = reply.text().parse().expect("a number");
        let is_fresh = is_fresh(&reply);
        self.judge(&Answer {
            page,
            process,
            asked,
            number,
            is_fresh,
        });
        Some((number, is_fresh))
    }

    /// Judges an answer. An answer that is said to be fresh has the data of each invalidation that
    /// its process knew of for certain; any answer has the data of each such purge.
    fn judge(&self, answer: &Answer) {
        let changes = self.changes.lock().expect("no panic");
        let known = changes.iter().filter(|change| {
            let after = match change.by {
                Some(process) if process == answer.process => Duration::ZERO,
                _ => KNOWN_ELSEWHERE,
            };
            change.page == answer.page && answer.asked >= change.done + after
        });
        let name = PAGES[answer.page].1;
        let known = known.map(|change| change.number).max().unwrap_or(0);
        let is_bound = answer.is_fresh || name.starts_with("purged");
        if is_bound && answer.number < known {
            let how = if answer.is_fresh { "fresh" } else { "stale" };
            let breach = format!(
                "{name}: process {} served {} as {how}, after {known} was known",
                answer.process, answer.number,
            );
            self.breaches.lock().expect("no panic").push(breach);
        }
        let mut judged = self.judged.lock().expect("no panic");
        judged.answers += 1;
        judged.fresh += usize::from(answer.is_fresh);
        judged.exact += usize::from(is_bound && answer.number == known);
    }

    fn is_sound(&self) {
        let breaches = self.breaches.lock().expect("no panic");
        assert!(
            breaches.is_empty(),
            "{} breaches: {:#?}",
            breaches.len(),
            &breaches[..breaches.len().min(20)]
        );
    }
}

fn is_fresh(reply: &Reply) -> bool {
    let status = reply.header("cache-status");
    let ttl = status.strip_prefix("perennial; hit; ttl=");
    ttl.is_some_and(|ttl| !ttl.starts_with('-'))
}
