//! Servers and pools that hold rows, refuse rights, or are away do no harm beyond the step in hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{ErrorKind, Perennial, Refresh, sql::Database};
use perennial_store::{NewEntry, Publish, Release, TryLock};
use sqlx::pool::PoolOptions;
use tokio::{task::JoinSet, time::Instant};

use perennial_testkit::{
    Db, HANG, Origin, every, get, on_database, on_each_server, open, open_site, patient, pool_of,
    serve,
    server::{Kind, Server},
    store::{ask, content, entry, lock, publish},
    until,
    wire::{State, Wire},
};

const LEASE: Duration = Duration::from_secs(60);

on_each_server! {
    uncommitted_lock_row_counts_as_taken_and_is_not_waited_for
    lock_is_not_taken_over_during_a_publish
    publish_during_a_takeover_is_refused
    many_steps_share_one_attempt_to_prepare_the_tables
    eight_make_the_tables_at_once
    tables_are_prepared_on_a_server_that_is_slow_to_connect
    a_role_that_may_not_make_tables_is_told_what_to_do
    a_refresh_is_three_round_trips_and_a_contended_try_is_one
    foreign_tables_with_the_same_names_are_refused
    what_nobody_waits_for_does_not_stay_on_the_server
}

#[cfg(feature = "postgres")]
on_database! {
    postgres_unusual = perennial_testkit::Db::postgres_unusual();
    eight_make_the_tables_at_once
}
#[cfg(feature = "mysql")]
on_database! {
    mysql_unusual = perennial_testkit::Db::mysql_unusual();
    eight_make_the_tables_at_once
}
#[cfg(feature = "mysql")]
on_database! {
    mysql_committed = perennial_testkit::Db::mysql_with(&["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);
    lock_is_not_taken_over_during_a_publish
    publish_during_a_takeover_is_refused
}

async fn uncommitted_lock_row_counts_as_taken_and_is_not_waited_for(db: Db) {
    let store = db.store().await;
    let free = lock(&*store, "a", LEASE).await;
    ask(&*store, Release::new(&free, Duration::ZERO)).await;
    for (name, change) in [
        (
            "a",
            "UPDATE perennial_lock SET acquired_at = acquired_at + 1 WHERE name = 'a'",
        ),
        (
            "b",
            "INSERT INTO perennial_lock (kind, name, fence, acquired_at, expires_at) VALUES ('lock', 'b', 1, 1, 1)",
        ),
    ] {
        let held = db.uncommitted(change).await;
        let asked = Instant::now();
        let tried = ask(&*store, TryLock::new(name, "me", LEASE, None)).await;
        assert_eq!(tried.fence, None, "{change}");
        // The attempt waits for at most 50 ms. Without this limit it would wait forever, or on
        // MariaDB for 50 s, which is the default.
        assert!(asked.elapsed() < HANG / 3, "{change}");
        held.rollback().await.expect("is undone");
    }
    lock(&*store, "a", LEASE).await;
}

async fn eight_make_the_tables_at_once(db: Db) {
    let db = Arc::new(db);
    for round in 0..8 {
        let mut opening = JoinSet::new();
        for _ in 0..8 {
            let db = Arc::clone(&db);
            let prefix = format!("round_{round}_");
            opening.spawn(async move {
                let store = db.database().await.store(&prefix);
                store.await.map(drop).expect("is prepared");
            });
        }
        opening.join_all().await;
    }
}

/// A loaded machine is slow to take connections.
async fn tables_are_prepared_on_a_server_that_is_slow_to_connect(db: Db) {
    let wire = Wire::before(db.url()).await;
    let database = open(&wire.url(db.url())).await.expect("opens");
    wire.set(State::Silent);
    let database = database.statement_timeout(HANG / 2);
    let preparing = tokio::spawn(async move { database.store("perennial_").await.map(drop) });
    // Twice the time for which a pool tries to connect.
    tokio::time::sleep(Duration::from_secs(4)).await;
    wire.set(State::Open);
    preparing.await.expect("no panic").expect("is prepared");
}

/// A publish that waits for the entry's row holds the lock's row meanwhile, at any isolation level.
async fn lock_is_not_taken_over_during_a_publish(db: Db) {
    let store = db.store().await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(publish(&*store, &first, &content("1")).await);
    ask(&*store, Release::new(&first, Duration::ZERO)).await;
    let late = lock(&*store, "a", Duration::from_millis(200)).await;
    let held = db
        .uncommitted("DELETE FROM perennial_entry WHERE name = 'a'")
        .await;
    let publishing = tokio::spawn({
        let (store, late) = (Arc::clone(&store), late.clone());
        async move { publish(&*store, &late, &content("2")).await }
    });
    until("it is held up", async || db.waits().await).await;
    // Until the lease is over.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!publishing.is_finished(), "nothing holds it up");
    let taken = ask(&*store, TryLock::new("a", "another", LEASE, None)).await;
    assert_eq!(taken.fence, None, "taken over in the middle of a publish");
    held.commit().await.expect("is done");
    assert!(publishing.await.expect("ends"));
    lock(&*store, "a", LEASE).await;
}

async fn publish_during_a_takeover_is_refused(db: Db) {
    let store = db.store().await;
    let first = lock(&*store, "a", LEASE).await;
    assert!(publish(&*store, &first, &content("1")).await);
    ask(&*store, Release::new(&first, Duration::ZERO)).await;
    let late = lock(&*store, "a", LEASE).await;
    for renews in [true, false] {
        // Another process has carried out the statement of a takeover, as it would after the lease has
        // expired, and has not committed it yet.
        let takeover = db
            .uncommitted(
                "UPDATE perennial_lock SET owner = 'next', fence = fence + 1 WHERE name = 'a'",
            )
            .await;
        let storing = tokio::spawn({
            let (store, late) = (Arc::clone(&store), late.clone());
            async move {
                let content = content("2");
                let entry = NewEntry {
                    renews: renews.then_some(first.fence),
                    ..entry(&content)
                };
                ask(&*store, Publish::new(&late, entry.clone())).await
            }
        });
        until("it waits for the takeover, or has not", async || {
            storing.is_finished() || db.waits().await
        })
        .await;
        takeover.commit().await.expect("is done");
        assert!(!storing.await.expect("ends"), "renews: {renews}");
        let stored = perennial_testkit::store::stored(&*store, &"a".into()).await;
        assert_eq!(stored, Some((first.fence, "1".into())));
        db.execute(&format!(
            "UPDATE perennial_lock SET owner = '{}', fence = {} WHERE name = 'a'",
            late.owner, late.fence
        ))
        .await;
    }
}

/// The test's server accepts connections and never answers.
async fn many_steps_share_one_attempt_to_prepare_the_tables(db: Db) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let silent = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    tokio::spawn({
        let connections = Arc::clone(&connections);
        async move {
            let mut held = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.fetch_add(1, SeqCst);
                held.push(connection);
            }
        }
    });
    let (scheme, _) = db.url().split_once(':').expect("a URL");
    let url = format!("{scheme}://me@{silent}/x");
    let site = patient().connect_lazily().open(&url).await;
    let locks = site.expect("opens without an answer").locks();
    let step = async || locks.inspect("a").await.is_err();
    let failed = tokio::join!(step(), step(), step(), step(), step(), step());
    assert_eq!(failed, (true, true, true, true, true, true));
    assert_eq!(connections.load(SeqCst), 1);
    assert!(step().await, "the next one tries again");
    assert_eq!(connections.load(SeqCst), 2);
}

async fn a_role_that_may_not_make_tables_is_told_what_to_do(db: Db) {
    let postgres = db.url().starts_with("postgres");
    let role = format!("role_{}", db.name());
    let (make, grant, remove) = if postgres {
        (
            format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'"),
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
            ),
            format!("DROP OWNED BY {role}; DROP ROLE {role}"),
        )
    } else {
        (
            format!("CREATE USER {role}@'%' IDENTIFIED BY 'secret'"),
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {}.* TO {role}@'%'",
                db.name()
            ),
            format!("DROP USER {role}@'%'"),
        )
    };
    db.execute(&make).await;
    // PostgreSQL grants rights on existing tables only. The second grant, after the tables are
    // made, includes them.
    db.execute(&grant).await;
    let (_, rest) = db.url().split_once('@').expect("names a user");
    let scheme = if postgres { "postgres" } else { "mysql" };
    let url = format!("{scheme}://{role}:secret@{rest}");

    let error = Perennial::open(&url).await.expect_err("may not");
    assert_eq!(error.kind(), ErrorKind::Database);
    assert!(error.to_string().contains("`Builder::ddl`"), "{error}");

    let ddl = Perennial::builder().ddl(&url).expect("is known");
    db.execute(&ddl).await;
    db.execute(&grant).await;
    let site = Perennial::open(&url).await.expect("finds its tables");
    let page = || async { Ok::<_, std::io::Error>("a page") };
    let content = site.content("page", &Refresh::every(LEASE), page).await;
    assert_eq!(content.expect("is made").text(), "a page");
    until("it is stored", async || {
        db.int("SELECT count(*) FROM perennial_entry").await == Some(1)
    })
    .await;
    site.shutdown().await;
    db.execute(&remove).await;
}

async fn a_refresh_is_three_round_trips_and_a_contended_try_is_one(db: Db) {
    let wire = Wire::before(db.url()).await;
    let url = wire.url(db.url());
    let own = open_site(patient(), &url).await.expect("opens");
    round_trips(&db, &wire, own).await;
    #[cfg(feature = "postgres")]
    if perennial_testkit::by_deadpool(db.url()) {
        return;
    }
    // On a pool of the application's, each statement has a guard before it. The guard travels in
    // the same message, and adds no round trip.
    let shared: Database = match db.url().starts_with("postgres") {
        #[cfg(feature = "postgres")]
        true => {
            let pool = PoolOptions::<sqlx::Postgres>::new().test_before_acquire(false);
            pool.connect(&url).await.expect("opens").into()
        }
        #[cfg(feature = "mysql")]
        false => {
            let pool = PoolOptions::<sqlx::MySql>::new().test_before_acquire(false);
            pool.connect(&url).await.expect("opens").into()
        }
        #[allow(unreachable_patterns, reason = "a database may not be built in")]
        _ => unreachable!(),
    };
    let shared = patient().with_pool(shared).await.expect("opens");
    round_trips(&db, &wire, shared).await;
}

async fn round_trips(db: &Db, wire: &Wire, site: Perennial) {
    let origin = Origin::default();
    let policy = every(Duration::from_millis(1));
    let refresh = async |site: &Perennial| {
        let origin = origin.clone();
        let generate = || async move { Ok::<_, std::io::Error>(origin.run("it").await.1) };
        site.content("page", &policy, generate)
            .await
            .expect("is made");
    };
    let free = "SELECT count(*) FROM perennial_lock WHERE kind = 'page' AND owner IS NULL";
    let mut least = usize::MAX;
    // The first refreshes also connect and prepare.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (asked, begun) = (wire.asked(), origin.begun());
        // While the previous regeneration is ending, a visitor gets the former version.
        until("it is made", async || {
            refresh(&site).await;
            origin.begun() > begun
        })
        .await;
        until("the lock is released", async || {
            db.int(free).await == Some(1)
        })
        .await;
        least = least.min(wire.asked() - asked);
    }
    assert_eq!(least, 3, "try, publish, release");

    let store = db.store().await;
    let held = lock(&*store, "a", LEASE).await;
    let locks = site.locks();
    let mut least = usize::MAX;
    for _ in 0..20 {
        let asked = wire.asked();
        assert!(locks.try_lock("a").await.expect("answers").is_none());
        least = least.min(wire.asked() - asked);
    }
    assert_eq!(least, 1);
    ask(&*store, Release::new(&held, Duration::ZERO)).await;
    site.shutdown().await;
}

async fn foreign_tables_with_the_same_names_are_refused(db: Db) {
    // Another process of the site may be in the middle of making the tables, so a wrong table is
    // read again for a while before it is refused. The four tables are tried at once.
    let told = ["schema", "lock", "entry", "invalidation"].map(async |table| {
        let prefix = format!("for_{table}_");
        db.execute(&format!("CREATE TABLE {prefix}{table} (mine INTEGER)"))
            .await;
        let opened = Perennial::builder().table_prefix(prefix).open(db.url());
        let error = opened.await.expect_err("is another's").to_string();
        assert!(
            error.contains("`Builder::table_prefix`"),
            "{table}: {error}"
        );
    });
    futures_util::future::join_all(told).await;
}

/// A table is locked, as by a migration, while callers give up after the time limit, or earlier and try
/// again at once.
async fn what_nobody_waits_for_does_not_stay_on_the_server(db: Db) {
    const CONNECTIONS: usize = 5;
    let sessions = if db.url().starts_with("postgres") {
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    } else {
        "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()"
    };
    for (kind, database) in [
        ("own", open(db.url()).await.expect("opens")),
        ("shared", pool_of(db.url(), 5).await),
    ] {
        let site = Perennial::builder().statement_timeout(Duration::from_secs(1));
        let site = site.with_pool(database).await.expect("opens");
        let locks = site.locks();
        let held = db.locked("perennial_lock").await;
        let before = db.int(sessions).await.expect("is counted");
        let calling = |early: bool| {
            let locks = locks.clone();
            async move {
                loop {
                    let call = async { locks.try_lock("a").await };
                    let limit = if early {
                        Duration::from_millis(30)
                    } else {
                        HANG
                    };
                    let _ = tokio::time::timeout(limit, call).await;
                }
            }
        };
        let mut callers = JoinSet::new();
        for n in 0..2 * CONNECTIONS {
            callers.spawn(calling(n % 2 == 0));
        }
        let mut most = 0;
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            most = most.max(db.int(sessions).await.expect("is counted") - before);
        }
        callers.shutdown().await;
        drop(held);
        // The pool may replace each of its connections once, and a loaded server may still have as many
        // sessions that it has not yet ended. Without a bound, there were hundreds.
        assert!(most <= 4 * 5, "{kind}: {most} more sessions than before");
        until("the pool works again", async || {
            locks.try_lock("b").await.is_ok_and(|lease| lease.is_some())
        })
        .await;
        site.shutdown().await;
    }
}

/// Its statements would fail, or mean something else.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn engine_that_perennial_does_not_know_is_refused_by_its_name() {
    for (engine, version) in [
        (
            "CockroachDB",
            "CockroachDB CCL v25.1.0 (x86_64-pc-linux-gnu)",
        ),
        ("YugabyteDB", "PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64"),
    ] {
        let Some(db) = Db::postgres_called(version).await else {
            return;
        };
        let error = perennial::Perennial::open(db.url()).await;
        let error = error.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let said = format!("{engine} is not supported");
        assert!(error.to_string().contains(&said), "{error}");
    }
}

/// An upgrade that waits without a limit for a transaction holds up everybody who wants the table after it.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn upgrade_of_the_tables_does_not_stop_others_while_it_waits() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    db.site().await.shutdown().await;
    let older = "DROP INDEX perennial_entry_stale_at, perennial_entry_generated_at, perennial_invalidation_epoch, perennial_request_retain_until;
        UPDATE perennial_schema SET version = 0 WHERE id = 1;
        INSERT INTO perennial_outbox VALUES ('1', 'a');
        INSERT INTO perennial_invalidation VALUES ('tag:a', 1)";
    db.execute(older).await;
    let long = db.uncommitted("DELETE FROM perennial_invalidation").await;
    let database = db.database().await;
    let upgrading = tokio::spawn(async move { database.store("perennial_").await.map(drop) });
    until("the upgrade waits", async || db.waits().await).await;
    for n in 0..20 {
        let other = format!("INSERT INTO perennial_invalidation VALUES ('tag:b{n}', 1)");
        let other = db.execute(&other);
        let other = tokio::time::timeout(HANG, other).await;
        assert_eq!(other.expect("does not wait for the upgrade"), 1);
    }
    assert!(!upgrading.is_finished());
    long.rollback().await.expect("is rolled back");
    let upgraded = upgrading.await.expect("no panic");
    upgraded.expect("is upgraded in the end");
}

/// A standby that was the primary, or a name that led to another server for a while.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_server_that_may_only_be_read_is_not_kept() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let pool = PoolOptions::<sqlx::Postgres>::new().max_connections(1);
    let pool = pool.connect(db.url()).await.expect("opens");
    let locks = Perennial::with_pool(pool.clone())
        .await
        .expect("opens")
        .locks();
    sqlx::query("SET default_transaction_read_only = on")
        .execute(&pool)
        .await
        .expect("is set");
    let lease = locks.try_lock("a").await;
    assert!(lease.expect("is tried again").is_some());
}

/// The result of a proxy that does not know it (SQLSTATE 40003), and PgBouncer's without a server (08P01): the
/// statement may have been done or not.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_with_an_unknown_result_runs_again() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let locks = db.site().await.locks();
    // A sequence keeps its value when the statement is undone.
    for sql in [
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION unknown() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN CASE nextval('tries')
            WHEN 1 THEN RAISE 'unknown' USING ERRCODE = '40003';
            WHEN 2 THEN RAISE 'server login has been failing' USING ERRCODE = '08P01';
            ELSE RETURN NEW; END CASE; END $$",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON perennial_lock
            FOR EACH ROW EXECUTE FUNCTION unknown()",
    ] {
        db.execute(sql).await;
    }
    let lease = locks.try_lock("a").await;
    assert!(lease.expect("is tried again").is_some());
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_mariadb_that_may_only_be_read_is_not_kept() {
    if Db::mysql().await.is_none() {
        return;
    }
    let server = Server::start(Kind::MariaDb).await.expect("starts");
    let db = Db::at(&server.url());
    drop(db.site().await);
    // The role has the rights that a site needs. The server will be made read-only.
    db.execute("CREATE USER site@'127.0.0.1'").await;
    db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON perennial.* TO site@'127.0.0.1'")
        .await;
    let url = server.url().replace("perennial@", "site@");
    let pool = PoolOptions::<sqlx::MySql>::new().max_connections(1);
    let pool = pool.connect(&url).await.expect("opens");
    let connection = async || {
        let id = sqlx::query_scalar::<_, i64>("SELECT CAST(CONNECTION_ID() AS SIGNED)");
        id.fetch_one(&pool).await.expect("answers")
    };
    let locks = Perennial::with_pool(pool.clone())
        .await
        .expect("opens")
        .locks();
    let first = connection().await;
    db.execute("SET GLOBAL read_only = 1").await;
    locks.try_lock("a").await.expect_err("may not be written");
    db.execute("SET GLOBAL read_only = 0").await;
    assert_ne!(connection().await, first, "it was kept");
    assert!(locks.try_lock("b").await.expect("answers").is_some());
}

async fn opened_before_its_server(kind: Kind) {
    let mut server = Server::start(kind).await.expect("starts");
    server.end(kind.stop()).await.expect("ends");
    let error = Perennial::open(&server.url()).await.expect_err("is away");
    assert!(
        error.to_string().contains("`Builder::connect_lazily`"),
        "{error}"
    );
    let url = server.url();
    let site = Perennial::builder().connect_lazily().open(&url);
    let site = site.await.expect("opens without a server");
    let policy = Refresh::every(Duration::from_millis(10));
    let origin = Origin::default();
    let address = serve(origin.router().layer(site.layer(&policy))).await;
    assert_eq!(get(address, "/").await.run(), 1);
    site.locks().try_lock("a").await.expect_err("is away");

    server.again().await.expect("starts");
    let db = Db::at(&server.url());
    let tables =
        "SELECT count(*) FROM information_schema.tables WHERE table_name = 'perennial_entry'";
    until("the tables are made, and a version is stored", async || {
        get(address, "/").await;
        db.int(tables).await == Some(1) && db.entry("/").await.is_some()
    })
    .await;
    assert!(site.locks().try_lock("a").await.expect("answers").is_some());
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_site_opens_before_its_postgres() {
    if Db::postgres().await.is_some() {
        opened_before_its_server(Kind::Postgres).await;
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_site_opens_before_its_mariadb() {
    if Db::mysql().await.is_some() {
        opened_before_its_server(Kind::MariaDb).await;
    }
}
