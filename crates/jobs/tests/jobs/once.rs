//! Work that is marked as done runs once: in a transaction, in a chain, or by a condition on a row
//! of the application.

use std::time::Duration;

use perennial::{
    Perennial,
    locks::{LockKind, LockName},
};
use perennial_jobs::{Once, OnceOutcome};
use tokio::task::JoinSet;

use perennial_testkit::{
    Db, HANG, is_database, on_each_database, open_site, patient, until, with_pool,
};

on_each_database! {
    a_mark_is_committed_or_rolled_back_with_its_transaction
    one_of_many_transactions_marks_and_writes
    a_link_of_a_chain_goes_out_once_and_after_the_one_before
    a_mark_in_a_transaction_is_the_same_as_one_outside
    a_transaction_that_waits_for_another_one_is_told_in_time_and_leaves_the_session_as_it_was
    waiting_caller_learns_that_the_work_is_done
    a_link_does_not_go_out_after_one_that_is_rolled_back
    different_work_never_meets
    failed_work_under_a_minimum_hold_is_not_done
}

async fn sites(db: &Db) -> [Perennial; 2] {
    // On servers, a transaction that marks work waits for half of the statement timeout if another
    // transaction has marked the same work.
    let open = async || {
        let builder = patient().statement_timeout(HANG);
        open_site(builder, db.url()).await.expect("opens")
    };
    [open().await, open().await]
}

async fn a_mark_is_committed_or_rolled_back_with_its_transaction(db: Db) {
    let [site, other] = sites(&db).await;
    let mail = Once::new(&site.locks(), ["mail", "42"]);
    with_pool!(db, pool => {
            for committed in [false, true] {
                let mut transaction = pool.begin().await.expect("begins");
                let marked = mail.mark_in(&mut transaction).await;
                assert_eq!(marked.expect("answers"), OnceOutcome::Ran(()));
                let again = mail.mark_in(&mut *transaction).await.expect("answers");
                assert!(matches!(again, OnceOutcome::AlreadyDone { .. }), "{again:?}");
                if committed {
    transaction.commit().await.expect("is committed");
    } else {
    transaction.rollback().await.expect("is rolled back");
    }
                let done = Once::new(&other.locks(), ["mail", "42"]).done().await.expect("answers");
                assert_eq!(done.is_some(), committed);
            }
            let mut late = pool.begin().await.expect("begins");
            let late = Once::new(&other.locks(), ["mail", "42"]).mark_in(&mut late).await.expect("answers");
            assert!(matches!(late, OnceOutcome::AlreadyDone { since, .. } if since < Duration::from_secs(60)));
        });
}

async fn one_of_many_transactions_marks_and_writes(db: Db) {
    const ROUNDS: usize = 20;
    let sites = sites(&db).await;
    db.execute("CREATE TABLE outbox (mail BIGINT NOT NULL)")
        .await;
    with_pool!(db, pool => {
        for round in 0..ROUNDS {
            let mut workers = JoinSet::new();
            for worker in 0..8 {
                let (site, pool) = (sites[worker % 2].clone(), pool.clone());
                workers.spawn(async move {
                    let name = format!("round {round}");
                    loop {
                        // On SQLite a transaction that will write may say so at its beginning, and
                        // here every second one does.
                        let mut transaction = match round % 2 {
                            0 if site_is_sqlite(&pool) => pool.begin_with("BEGIN IMMEDIATE").await,
                            _ => pool.begin().await,
                        }
                        .expect("begins");
                        let marked = match Once::new(&site.locks(), &name).mark_in(&mut transaction).await {
                            Ok(marked) => marked,
                            Err(error) => {
                                let said = format!("{error:#}");
                                assert!(said.contains("Deadlock"), "{said}");
                                transaction.rollback().await.expect("is rolled back");
                                continue;
                            }
                        };
                        if marked == OnceOutcome::Ran(()) {
                            // Some are called back.
                            if worker == 0 {
                                return transaction.rollback().await.expect("is rolled back");
                            }
                            let row = sqlx::query("INSERT INTO outbox (mail) VALUES (1)");
                            row.execute(&mut *transaction).await.expect("is written");
                        }
                        return transaction.commit().await.expect("is committed");
                    }
                });
            }
            workers.join_all().await;
        }
    });
    let written = db.int("SELECT COUNT(*) FROM outbox").await;
    assert_eq!(written, Some(ROUNDS as i64));
}

fn site_is_sqlite<P: std::any::Any>(pool: &P) -> bool {
    (pool as &dyn std::any::Any).is::<sqlx::SqlitePool>()
}

async fn a_link_of_a_chain_goes_out_once_and_after_the_one_before(db: Db) {
    let [site, other] = sites(&db).await;
    let [welcome, tips, offer] = ["welcome", "tips", "offer"].map(|mail| {
        let mail = ["mail", "ann", mail];
        (
            Once::new(&site.locks(), mail),
            Once::new(&other.locks(), mail),
        )
    });
    let tips = [tips.0, tips.1].map(|tips| tips.after(["mail", "ann", "welcome"]));
    let offer = [offer.0, offer.1].map(|offer| offer.after(["mail", "ann", "tips"]));
    let early = tips[0].clone().run(|| async { panic!("is too early") });
    assert_eq!(early.await.expect("answers"), OnceOutcome::NotYet);
    let early = offer[0]
        .clone()
        .run_until_done(|_| async { Ok::<_, ()>(()) });
    assert_eq!(early.await.expect("answers"), OnceOutcome::NotYet);

    let ran = welcome.0.run(|| async { 1 }).await.expect("answers");
    assert_eq!(ran, OnceOutcome::Ran(1));
    let failed = tips[0]
        .clone()
        .run_until_done(|_| async { Err::<(), _>("away") });
    assert_eq!(
        failed.await.expect("answers"),
        OnceOutcome::Ran(Err("away"))
    );
    let early = offer[1]
        .clone()
        .run(|| async { panic!("the tips have failed") });
    assert_eq!(early.await.expect("answers"), OnceOutcome::NotYet);
    let went = tips[1].clone().run_until_done(|_| async { Ok::<_, ()>(2) });
    assert_eq!(went.await.expect("answers"), OnceOutcome::Ran(Ok(2)));

    with_pool!(db, pool => {
        let mut transaction = pool.begin().await.expect("begins");
        // A mark in the same transaction counts.
        let first = Once::new(&site.locks(), ["mail", "bob", "welcome"]);
        let second = Once::new(&site.locks(), ["mail", "bob", "tips"]).after(["mail", "bob", "welcome"]);
        assert_eq!(second.mark_in(&mut transaction).await.expect("answers"), OnceOutcome::NotYet);
        assert_eq!(first.mark_in(&mut transaction).await.expect("answers"), OnceOutcome::Ran(()));
        assert_eq!(second.mark_in(&mut transaction).await.expect("answers"), OnceOutcome::Ran(()));
        assert_eq!(offer[0].mark_in(&mut transaction).await.expect("answers"), OnceOutcome::Ran(()));
        transaction.commit().await.expect("is committed");
    });
    let late = offer[1].clone().run(|| async { panic!("it went out") });
    let late = late.await.expect("answers");
    assert!(matches!(late, OnceOutcome::AlreadyDone { .. }), "{late:?}");
}

async fn a_mark_in_a_transaction_is_the_same_as_one_outside(db: Db) {
    let [site, other] = sites(&db).await;
    with_pool!(db, pool => {
        let mark = async |once: &Once| {
            let mut transaction = pool.begin().await.expect("begins");
            let marked = once.mark_in(&mut transaction).await.expect("answers");
            transaction.commit().await.expect("is committed");
            marked
        };
        // The work is first done without a transaction. When its retention is over, it may be done
        // again, and is then marked in a transaction.
        let brief = Once::new(&site.locks(), "brief");
        let ran = brief.clone().run(|| async {}).await.expect("answers");
        assert_eq!(ran, OnceOutcome::Ran(()));
        let marked = mark(&brief).await;
        assert!(matches!(marked, OnceOutcome::AlreadyDone { .. }), "{marked:?}");
        let expire = "UPDATE perennial_lock SET expires_at = 1 WHERE kind = 'once' AND name = 'brief'";
        assert_eq!(db.execute(expire).await, 1);
        let marked = mark(&brief).await;
        assert_eq!(marked, OnceOutcome::Ran(()));
        assert!(brief.forget().await.expect("answers"));
        let ran = brief.run(|| async {}).await.expect("answers");
        assert_eq!(ran, OnceOutcome::Ran(()));

        // Another process begins the work and never extends its lease. It loses the lease when the
        // lease expires.
        let held = other.locks().lease_duration(Duration::from_secs(6)).manual_extension();
        let running = Once::new(&held, "held");
        let running = tokio::spawn(running.run_until_done(|_| std::future::pending::<Result<(), ()>>()));
        let lock = async || site.locks().inspect(LockName::of(LockKind::Once, "held")).await.expect("answers");
        until("it runs", async || lock().await.is_some()).await;
        let held = Once::new(&site.locks(), "held");
        let marked = mark(&held).await;
        assert_eq!(marked, OnceOutcome::InProgress);
        let fence = lock().await.expect("is there").fence;
        assert_eq!(running.await.expect("no panic").expect_err("its lease ends").kind(), perennial::ErrorKind::Lost);
        // By the database's clock, the lease ends slightly later than by the holder's, so the first
        // calls may still find it held.
        until("it is done", async || {
            mark(&held).await == OnceOutcome::Ran(())
        })
        .await;
        let info = lock().await;
        assert!(info.is_some_and(|info| info.fence > fence && info.holder.is_none()));
        assert!(held.done().await.expect("answers").is_some());
    });
}

async fn a_transaction_that_waits_for_another_one_is_told_in_time_and_leaves_the_session_as_it_was(
    db: Db,
) {
    let limit = Duration::from_secs(4);
    let site = Perennial::builder().statement_timeout(limit);
    let site = open_site(site, db.url()).await.expect("opens");
    db.execute("CREATE TABLE own (id BIGINT PRIMARY KEY)").await;
    let settings = match db.url().split(':').next() {
        Some("postgres") => Some("SELECT current_setting('lock_timeout')"),
        Some("mysql") => Some("SELECT CONCAT(@@innodb_lock_wait_timeout, ' ', LAST_INSERT_ID())"),
        _ => None,
    };
    with_pool!(db, pool => {
        let mut first = pool.begin().await.expect("begins");
        let marked = Once::new(&site.locks(), "one").mark_in(&mut first).await.expect("answers");
        assert_eq!(marked, OnceOutcome::Ran(()));
        let mut second = pool.begin().await.expect("begins");
        let start = std::time::Instant::now();
        if settings.is_some() {
            let error = Once::new(&site.locks(), "one").mark_in(&mut second).await.expect_err("is held");
            assert!(is_database(&error), "{error}");
            second.rollback().await.expect("is rolled back");
            assert!(start.elapsed() < 2 * limit, "{:?}", start.elapsed());
        }
        first.commit().await.expect("is committed");

        if let Some(settings) = settings {
            let mut transaction = pool.begin().await.expect("begins");
            let read = async |transaction: &mut sqlx::Transaction<'_, _>| {
                let setting = sqlx::query_scalar::<_, String>(settings);
                setting.fetch_one(&mut **transaction).await.expect("is there")
            };
            let before = read(&mut transaction).await;
            for name in ["one", "two"] {
                Once::new(&site.locks(), name).mark_in(&mut transaction).await.expect("answers");
                assert_eq!(read(&mut transaction).await, before);
            }
        }
    });
}

async fn waiting_caller_learns_that_the_work_is_done(db: Db) {
    let [site, other] = sites(&db).await;
    db.execute("CREATE TABLE own (id BIGINT PRIMARY KEY)").await;
    Once::new(&site.locks(), "before")
        .run(|| async {})
        .await
        .expect("answers");
    with_pool!(db, pool => {
        let is_sqlite = site_is_sqlite(&pool);
        let mut first = pool.begin().await.expect("begins");
        let marked = Once::new(&site.locks(), "one").mark_in(&mut first).await.expect("answers");
        assert_eq!(marked, OnceOutcome::Ran(()));
        let late = tokio::spawn(async move {
            let mut second = pool.begin().await.expect("begins");
            if !is_sqlite {
                // At MySQL's default isolation the transaction has a view of its own from here on.
                let own = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM own");
                own.fetch_one(&mut *second).await.expect("counts");
            }
            let marked = Once::new(&other.locks(), "one").after("before").mark_in(&mut second).await;
            marked.expect("waits")
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!late.is_finished(), "it waits");
        first.commit().await.expect("is committed");
        let late = late.await.expect("no panic");
        assert!(matches!(late, OnceOutcome::AlreadyDone { .. }), "{late:?}");
    });
    let listed = site.locks().list().await.expect("answers");
    assert!(listed.is_empty(), "what is done is no lock: {listed:?}");
}

/// 160 transactions, each with work of its own, eight at a time. `after`: each follows work that is done.
async fn different_work_never_meets(db: Db) {
    const TRANSACTIONS: usize = 160;
    let [site, other] = sites(&db).await;
    db.execute("CREATE TABLE own (id VARCHAR(64) PRIMARY KEY)")
        .await;
    // READ COMMITTED has no gap locks. REPEATABLE READ, the default, has them.
    let is_mysql = db.url().starts_with("mysql");
    let isolations = ["REPEATABLE READ", "READ COMMITTED"];
    for isolation in isolations.into_iter().take(if is_mysql { 2 } else { 1 }) {
        for is_after in [false, true] {
            for is_sequence in [false, true] {
                let round = format!("{isolation} {is_after} {is_sequence}");
                let name = |n: usize| {
                    if is_sequence {
                        format!("{round} order-{n:06}")
                    } else {
                        format!("{round} {}", uuid::Uuid::new_v4())
                    }
                };
                let names: Vec<_> = (0..TRANSACTIONS).map(name).collect();
                if is_after {
                    Once::new(&site.locks(), &*round)
                        .run(async || ())
                        .await
                        .expect("answers");
                }
                with_pool!(db, pool => {
                    let mut running = JoinSet::new();
                    for worker in 0..8 {
                        let (pool, names, locks) = (pool.clone(), names.clone(), site.locks());
                        let (round, isolation) = (round.clone(), format!("SET TRANSACTION ISOLATION LEVEL {isolation}"));
                        running.spawn(async move {
                            for name in names.iter().skip(worker).step_by(8) {
                                let mut connection = pool.acquire().await.expect("is free");
                                if is_mysql {
                                    let isolation = sqlx::raw_sql(sqlx::AssertSqlSafe(&*isolation));
                                    isolation.execute(&mut *connection).await.expect("is set");
                                }
                                let mut transaction = sqlx::Connection::begin(&mut *connection).await.expect("begins");
                                let mut work = Once::new(&locks, &**name);
                                if is_after {
                                    work = work.after(&*round);
                                }
                                let marked = work.mark_in(&mut transaction).await.expect("does not meet other work");
                                assert_eq!(marked, OnceOutcome::Ran(()), "{name}");
                                let own = sqlx::AssertSqlSafe(format!("INSERT INTO own (id) VALUES ('{name}')"));
                                sqlx::raw_sql(own).execute(&mut *transaction).await.expect("is written");
                                transaction.commit().await.expect("is committed");
                            }
                        });
                    }
                    running.join_all().await;
                });
            }
        }
    }
    // A transaction has marked one order, and is still open. The work for another order can be taken
    // meanwhile.
    with_pool!(db, pool => {
        let mut open = pool.begin().await.expect("begins");
        if db.url().starts_with("sqlite") {
            return;
        }
        let marked = Once::new(&site.locks(), "order 1").mark_in(&mut open).await.expect("answers");
        assert_eq!(marked, OnceOutcome::Ran(()));
        for name in ["order 0", "order 2", "p"] {
            let ran = Once::new(&other.locks(), name).run(async || ()).await.expect("answers");
            assert_eq!(ran, OnceOutcome::Ran(()), "{name}");
        }
    });
}

async fn a_link_does_not_go_out_after_one_that_is_rolled_back(db: Db) {
    let [site, other] = sites(&db).await;
    with_pool!(db, pool => {
        let is_mysql = db.url().starts_with("mysql");
        let mut first = pool.begin().await.expect("begins");
        let marked = Once::new(&site.locks(), "1").mark_in(&mut first).await.expect("answers");
        assert_eq!(marked, OnceOutcome::Ran(()));
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let late = tokio::spawn(async move {
            let mut connection = pool.acquire().await.expect("is free");
            if is_mysql {
                // At READ UNCOMMITTED the transaction would see an uncommitted mark.
                let dirty = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
                sqlx::query(dirty).execute(&mut *connection).await.expect("is set");
            }
            ready.send(()).expect("is awaited");
            let mut second = sqlx::Connection::begin(&mut *connection).await.expect("begins");
            Once::new(&other.locks(), "2").after("1").mark_in(&mut second).await.expect("answers")
        });
        is_ready.await.expect("is told");
        tokio::time::sleep(Duration::from_millis(500)).await;
        first.rollback().await.expect("is rolled back");
        assert_eq!(late.await.expect("no panic"), OnceOutcome::NotYet);
    });
}

async fn failed_work_under_a_minimum_hold_is_not_done(db: Db) {
    let site = db.site().await;
    let locks = site.locks().hold_at_least(Duration::from_secs(60));
    let failing = Once::new(&locks, "x");
    let ran = failing
        .clone()
        .run_until_done(|_| async { Err::<(), _>(()) })
        .await
        .expect("answers");
    assert_eq!(ran, OnceOutcome::Ran(Err(())));
    assert_eq!(Once::new(&locks, "x").done().await.expect("answers"), None);
    let ran = failing
        .run_until_done(|_| async { Ok::<_, ()>(()) })
        .await
        .expect("answers");
    assert_eq!(ran, OnceOutcome::Ran(Ok(())));
}
