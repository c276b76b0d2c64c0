//! Pages follow the rows of tables, whoever changes these, by triggers of the database.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    response::IntoResponse,
    routing::{get, post},
};
use perennial::{
    Builder, Generation, Perennial, Refresh, Tags,
    driver::Engine,
    sql::{ColumnType, Trigger, TriggerFault},
};
use perennial_testkit::{Db, every, on_each_database, patient, request, rounds, serve, until};
use tokio::{task::JoinSet, time::Instant};

on_each_database! {
    author_is_shown_a_change_by_each_process_though_nobody_names_it
    code_waits_for_what_triggers_have_written
    triggers_that_are_missing_changed_or_disabled_are_told
    forgotten_template_is_noticed
}

const AUTHORS: usize = 25;

const LONG: Duration = Duration::from_secs(30 * 24 * 3600);

fn engine(db: &Db) -> Engine {
    match db.url().split(':').next() {
        Some("postgres") => Engine::Postgres,
        Some("mysql") => Engine::MySql,
        _ => Engine::Sqlite,
    }
}

fn products() -> Trigger {
    Trigger::on("product")
        .column("id", ColumnType::Integer)
        .tag("product-{id}")
        .list_tag("products")
        .columns(["price"])
}

/// Makes a table of products with the ids from 0 on, and its triggers.
async fn shop(db: &Db, products_in_it: usize) {
    db.store().await;
    db.execute("CREATE TABLE product (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)")
        .await;
    for id in 0..products_in_it {
        db.execute(&format!("INSERT INTO product VALUES ({id}, 0)"))
            .await;
    }
    install(db).await;
}

async fn install(db: &Db) {
    for statement in products().create(engine(db)).expect("is valid") {
        db.execute(&statement).await;
    }
}

async fn open(db: &Db, builder: Builder) -> Perennial {
    let site = builder.with_pool(db.database().await).await;
    site.expect("opens")
}

async fn price_of(db: &Db, id: usize) -> i64 {
    let price = format!(
        "SELECT CAST(price AS {}) FROM product WHERE id = {id}",
        bigint(db)
    );
    db.int(&price).await.expect("is there")
}

/// Returns the content of a key, which shows the price where it has to be generated, and has the product's tag.
async fn content_with(site: &Perennial, key: &str, policy: &Refresh, price: i64) -> String {
    let generate = async move |generation: Generation| {
        generation.tag("product-0");
        Ok::<_, std::io::Error>(price.to_string())
    };
    let content = site.content(key, policy, generate).await;
    let content = content.expect("is made");
    content.text().to_string()
}

fn bigint(db: &Db) -> &'static str {
    match engine(db) {
        Engine::MySql => "SIGNED",
        _ => "BIGINT",
    }
}

/// A process whose pages show prices, and whose handlers change them by SQL alone.
async fn process(db: &Arc<Db>) -> std::net::SocketAddr {
    // There are as many permits as authors. With fewer, an author whose regeneration gets no permit
    // would be served the old version.
    let builder = patient().trigger(products()).max_regenerations(AUTHORS);
    let builder = builder.read_own_writes();
    let site = open(db, builder).await;
    let show = async |State(db): State<Arc<Db>>, Path(id): Path<usize>| {
        let price = price_of(&db, id).await;
        (Tags::new([format!("product-{id}")]), price.to_string()).into_response()
    };
    let change = async |State(db): State<Arc<Db>>, Path(id): Path<usize>| {
        let change = format!("UPDATE product SET price = price + 1 WHERE id = {id}");
        assert_eq!(db.execute(&change).await, 1);
    };
    // With `in_background`, only the author of a change waits for a new version.
    let policy = Refresh::every(LONG).in_background();
    let writes = site.invalidate_by_response_tags();
    let app = Router::new()
        .route("/{id}", get(show).layer(site.layer(&policy)))
        .route("/{id}/change", post(change).layer(writes))
        .with_state(Arc::clone(db));
    serve(app).await
}

async fn author_is_shown_a_change_by_each_process_though_nobody_names_it(db: Db) {
    shop(&db, AUTHORS).await;
    let db = Arc::new(db);
    let processes = [process(&db).await, process(&db).await, process(&db).await];
    let changes = rounds(40, 2);
    let mut authors = JoinSet::new();
    for author in 0..AUTHORS {
        authors.spawn(async move {
            for address in processes {
                let page = request(address, "GET", &format!("/{author}"), &[]).await;
                assert_eq!(page.text(), "0");
            }
            for change in 1..=changes {
                let here = processes[(author + change) % 3];
                let path = format!("/{author}/change");
                let answer = request(here, "POST", &path, &[]).await;
                let cookie = answer.header("set-cookie");
                let (cookie, _) = cookie.split_once(';').expect("a cookie");
                for address in processes {
                    let headers = [("cookie", cookie)];
                    let page = request(address, "GET", &format!("/{author}"), &headers).await;
                    assert_eq!(page.text(), change.to_string(), "{author}: {page:?}");
                }
            }
        });
    }
    authors.join_all().await;
}

async fn code_waits_for_what_triggers_have_written(db: Db) {
    shop(&db, 1).await;
    let site = open(&db, patient()).await;
    let policy = every(LONG);
    let shown = async || {
        let price = price_of(&db, 0).await;
        content_with(&site, "price", &policy, price).await
    };
    for price in 0..5 {
        assert_eq!(shown().await, price.to_string());
        db.execute("UPDATE product SET price = price + 1").await;
        site.caught_up().await.expect("answers");
    }
}

async fn triggers_that_are_missing_changed_or_disabled_are_told(db: Db) {
    shop(&db, 1).await;
    let site = open(&db, patient().trigger(products())).await;
    let told = async || {
        let faults = site.check_triggers().await.expect("answers");
        let faults = faults.iter().map(ToString::to_string);
        faults.collect::<Vec<_>>()
    };
    assert_eq!(told().await, Vec::<String>::new());
    // Another process is to see other triggers.
    let other = products().tag("price-{id}").columns(["price"]);
    let differs = other.check(&db.database().await).await.expect("answers");
    assert!(
        differs.len() >= 3
            && differs
                .iter()
                .all(|it| matches!(it, TriggerFault::Differs { .. })),
        "{differs:?}"
    );
    let (drop, disable) = match engine(&db) {
        Engine::Postgres => (
            "DROP TRIGGER perennial_product_update ON product",
            Some("ALTER TABLE product DISABLE TRIGGER perennial_product_update"),
        ),
        _ => ("DROP TRIGGER perennial_product_update", None),
    };
    if let Some(disable) = disable {
        db.execute(disable).await;
        let faults = told().await;
        assert!(
            faults.len() == 1
                && faults[0].contains("perennial_product_update")
                && faults[0].contains("ENABLE TRIGGER"),
            "{faults:?}"
        );
    }
    db.execute(drop).await;
    let faults = told().await;
    assert!(
        faults.len() == 1
            && faults[0].contains("perennial_product_update")
            && faults[0].contains("`perennial triggers`"),
        "{faults:?}"
    );
    install(&db).await;
    assert_eq!(told().await, Vec::<String>::new());
    if engine(&db) == Engine::MySql {
        db.execute("CREATE TABLE category (id INTEGER PRIMARY KEY)")
            .await;
        db.execute(
            "ALTER TABLE product ADD category_id INTEGER,
             ADD CONSTRAINT of_category FOREIGN KEY (category_id) REFERENCES category (id) ON DELETE CASCADE",
        )
        .await;
        let faults = told().await;
        assert!(
            faults.len() == 1
                && faults[0].contains("of_category")
                && faults[0].contains("category"),
            "{faults:?}"
        );
    }
}

/// The server names the triggers to such a role, and hides their texts.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn role_that_may_not_read_triggers_is_told_which_right_it_lacks() {
    let Some(db) = Db::mysql().await else {
        return;
    };
    shop(&db, 1).await;
    drop(open(&db, patient()).await);
    let role = format!("reader_{}", std::process::id());
    db.execute(&format!("CREATE USER {role}@'%' IDENTIFIED BY 'secret'"))
        .await;
    let (server, name) = db.url().rsplit_once('/').expect("names a database");
    let (_, host) = server.rsplit_once('@').expect("has a user");
    let rights = "SELECT, INSERT, UPDATE, DELETE";
    let grant = format!("GRANT {rights} ON `{name}`.* TO {role}@'%'");
    db.execute(&grant).await;
    let url = format!("mysql://{role}:secret@{host}/{name}");
    let site = perennial_testkit::open_site(patient().trigger(products()), &url).await;
    let site = site.expect("opens all the same");
    let error = site.check_triggers().await.expect_err("cannot know");
    db.execute(&format!("DROP USER {role}@'%'")).await;
    assert!(
        error.to_string().contains("GRANT TRIGGER ON product"),
        "{error:#}"
    );
}

/// A migration has forgotten the template of the page's tag.
async fn forgotten_template_is_noticed(db: Db) {
    for forgets in [false, true] {
        let table = if forgets { "forgetful" } else { "product" };
        db.store().await;
        db.execute(&format!(
            "CREATE TABLE {table} (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)"
        ))
        .await;
        db.execute(&format!("INSERT INTO {table} VALUES (0, 0)"))
            .await;
        let mut trigger = Trigger::on(table)
            .column("id", ColumnType::Integer)
            .list_tag("products")
            .columns(["price"]);
        if !forgets {
            trigger = trigger.tag("product-{id}");
        }
        for statement in trigger.create(engine(&db)).expect("is valid") {
            db.execute(&statement).await;
        }
        let site = open(&db, patient()).await;
        let policy = every(Duration::from_secs(2));
        let price = format!("SELECT CAST(price AS {}) FROM {table}", bigint(&db));
        let visit = async || {
            let price = db.int(&price).await.expect("is there");
            content_with(&site, table, &policy, price).await
        };
        assert_eq!(visit().await, "0");
        db.execute(&format!("UPDATE {table} SET price = 12")).await;
        until("the page has the price", async || visit().await == "12").await;
        // The visits go on for a few seconds. After that, even an invalidation that comes late would be known.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(8) && site.missed_invalidations().is_empty() {
            visit().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let missed = site.missed_invalidations();
        assert_eq!(missed.len(), usize::from(forgets), "{missed:?}");
        assert!(
            missed.iter().all(|it| it.tags == ["product-0"]),
            "{missed:?}"
        );
    }
}

/// Not a test of a promise: prints what a change costs with triggers, and how soon pages know.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn cost_of_a_change() {
    let databases = [
        Some(("SQLite", Db::sqlite().await)),
        #[cfg(feature = "postgres")]
        Some(("PostgreSQL", Db::postgres().await)),
        #[cfg(feature = "mysql")]
        Some(("MariaDB", Db::mysql().await)),
    ];
    println!(
        "| database | rows changed | without triggers | with triggers | ratio | pages know after |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, db) in databases.into_iter().flatten() {
        let Some(db) = db else { continue };
        db.store().await;
        db.execute("CREATE TABLE product (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)")
            .await;
        db.execute(&format!(
            "INSERT INTO product SELECT n, 0 FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS n FROM {}
                CROSS JOIN (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
                    UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) e) t",
            perennial_testkit::four_digits()
        ))
        .await;
        let site = open(&db, patient()).await;
        let timed = async |rows: u32| {
            let begun = Instant::now();
            let change = format!("UPDATE product SET price = price + 1 WHERE id < {rows}");
            assert_eq!(db.execute(&change).await, u64::from(rows));
            begun.elapsed()
        };
        let median = async |rows: u32| {
            let mut times = Vec::new();
            for _ in 0..if rows > 10_000 { 3 } else { 15 } {
                times.push(timed(rows).await);
            }
            times.sort();
            times[times.len() / 2]
        };
        for rows in [1, 1000, 100_000] {
            let without = median(rows).await;
            install(&db).await;
            let with = median(rows).await;
            while db.int("SELECT COUNT(*) FROM perennial_outbox").await != Some(0) {
                site.caught_up().await.expect("answers");
            }
            let policy = every(LONG);
            let shown = async || {
                let price = price_of(&db, 0).await;
                content_with(&site, "price", &policy, price).await
            };
            shown().await;
            timed(rows).await;
            let (changed, price) = (Instant::now(), price_of(&db, 0).await.to_string());
            while shown().await != price {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let known = changed.elapsed();
            println!(
                "| {name} | {rows} | {without:.1?} | {with:.1?} | {:.1} | {known:.1?} |",
                with.as_secs_f64() / without.as_secs_f64()
            );
            for statement in products().drop(engine(&db)).expect("is valid") {
                db.execute(&statement).await;
            }
            while db.int("SELECT COUNT(*) FROM perennial_outbox").await != Some(0) {
                site.caught_up().await.expect("answers");
            }
        }
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use perennial_testkit::{on_each_server, with_pool};
    use sqlx::{AssertSqlSafe, Connection, Executor};

    use super::*;

    on_each_server! {
        writers_wait_for_no_process_that_applies_what_they_have_written
    }

    /// Each writer has rows of its own, so that without triggers nobody waits for anybody. What does not count is
    /// the lock under which PostgreSQL makes a file longer: on a slow disk, any two writers of one table meet there.
    async fn writers_wait_for_no_process_that_applies_what_they_have_written(db: Db) {
        const WRITERS: usize = 16;
        shop(&db, WRITERS).await;
        let (session, waiting) = match engine(&db) {
            Engine::Postgres => (
                "SET lock_timeout = '60s'; SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL",
                "SELECT coalesce(string_agg(wait_event, ' '), '') FROM pg_stat_activity
                    WHERE datname = current_database() AND query LIKE '%INTO product%'
                    AND wait_event_type = 'Lock' AND wait_event <> 'extend'",
            ),
            _ => (
                "SET innodb_lock_wait_timeout = 60; SET SESSION TRANSACTION ISOLATION LEVEL",
                "SELECT coalesce(group_concat(left(p.info, 40)), '') FROM information_schema.innodb_trx t
                    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
                    WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT' AND p.info LIKE '%INTO product%'",
            ),
        };
        let over = Arc::new(AtomicBool::new(false));
        let mut appliers = JoinSet::new();
        for _ in 0..3 {
            let (site, over) = (open(&db, patient()).await, Arc::clone(&over));
            appliers.spawn(async move {
                while !over.load(SeqCst) {
                    site.caught_up().await.expect("answers");
                }
            });
        }
        let mut seen = Vec::new();
        with_pool!(db, pool => {
            for isolation in ["REPEATABLE READ", "READ COMMITTED"] {
                let mut writers = JoinSet::new();
                for writer in 0..WRITERS {
                    let mut connection = pool.acquire().await.expect("connects").detach();
                    let session = format!("{session} {isolation}");
                    writers.spawn(async move {
                        let set = connection.execute(sqlx::raw_sql(AssertSqlSafe(session)));
                        set.await.expect("is set");
                        for round in 0..rounds(500, 20) {
                            let mut transaction = connection.begin().await.expect("begins");
                            // Each change is a single statement. The query above has to find it by
                            // its text, so a change whose text does not contain "INTO product" gets
                            // a comment that does.
                            for change in [
                                format!("/* INTO product */ UPDATE product SET price = price + 1 WHERE id = {writer}"),
                                format!("INSERT INTO product VALUES ({}, 0)", WRITERS + writer),
                                format!("/* INTO product */ DELETE FROM product WHERE id = {}", WRITERS + writer),
                            ] {
                                let done = transaction.execute(sqlx::raw_sql(AssertSqlSafe(change.clone())));
                                done.await.unwrap_or_else(|error| panic!("{isolation}: {change}: {error}"));
                            }
                            let ended = if (writer + round) % 4 == 0 {
                                transaction.rollback().await
                            } else {
                                transaction.commit().await
                            };
                            ended.expect("ends");
                        }
                    });
                }
                while !writers.is_empty() {
                    let waiting = db.text(waiting).await;
                    if !waiting.is_empty() {
                        seen.push(waiting);
                    }
                    if let Ok(Some(ended)) =
                        tokio::time::timeout(Duration::from_millis(5), writers.join_next()).await
                    {
                        ended.expect("no writer fails");
                    }
                }
            }
        });
        over.store(true, SeqCst);
        appliers.join_all().await;
        assert!(seen.is_empty(), "writers wait for locks: {seen:?}");
    }
}
