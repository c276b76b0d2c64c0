//! What a driver itself has to do: it has to return values without changing them, and the codes of
//! errors; connections that are given back have to be usable even after a call was dropped; and it must
//! leave the application's transactions alone.

use std::{sync::Arc, time::Duration};

use perennial_store::{
    Backend, Connection, Epoch, Error, ErrorKind, Fence, Invalidated, Probe, Release, TryLock,
    driver::Engine,
    sql::{
        Tables, outbox,
        run::{Arg, Cells, Statement, is_broken, run},
        statements::Dialect,
    },
};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    ALL, HANG, LEASE, NONE, OfDriver, TestDatabase,
    store::{ask, content, lock, page, publish, stored, uuid},
};

/// Returns a query of the arguments themselves.
fn arguments(dialect: Dialect) -> Statement {
    let query = match dialect.engine() {
        // Without the casts, the server would have to guess the types, because nothing is compared
        // with these arguments.
        Engine::MySql => {
            "SELECT CAST($1 AS SIGNED), CAST($2 AS CHAR CHARACTER SET utf8mb4), CAST($3 AS BINARY), NULL"
        }
        _ => "SELECT $1, $2, $3, NULL",
    };
    Statement::new(dialect, "", query)
}

pub async fn a_value_comes_back_as_it_was(db: OfDriver) {
    let database = db.database();
    let connections = database.connections();
    let query = arguments(database.dialect());
    let every_byte: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 1 << 20];
    for (int, text, bytes) in [
        (0, "", &b""[..]),
        (
            i64::MAX,
            "a 'text' with \\ and \" and $1 and ? and ; -- %",
            &every_byte,
        ),
        (i64::MIN, "\u{e4} \u{20ac} \u{1f600} e\u{301}\t\r\n", &large),
    ] {
        let arguments = [Arg::Int(int), Arg::Text(text), Arg::Bytes(bytes)];
        let done = connections
            .run_new(&query, &arguments)
            .await
            .expect("answers");
        assert_eq!(done.rows.len(), 1, "{text}");
        let row = &done.rows[0];
        assert_eq!(row.int(0).expect("an integer"), Some(int));
        assert_eq!(row.text(1).expect("a text").as_deref(), Some(text));
        let returned = row.bytes(2).expect("bytes").expect("is not NULL");
        assert!(returned == bytes, "{} bytes", returned.len());
        assert_eq!(row.text(3).expect("NULL"), None);
        assert_eq!(row.int(3).expect("NULL"), None);
    }
}

/// A statement that nobody waits for may go on for a while, and its answer must not be read as that of the
/// next one.
pub async fn calls_that_are_dropped_leave_the_pool_usable(db: OfDriver) {
    let store = db.store().await;
    let database = db.database();
    let connections = database.connections();
    let query = arguments(database.dialect());
    for round in 0..200_u64 {
        let text = round.to_string();
        let arguments = [Arg::Int(-1), Arg::Text(&text), Arg::Bytes(b"")];
        let asked = connections.run_new(&query, &arguments);
        // The rounds cancel the call at different times, from before the pool has given a
        // connection until after the answer has come.
        let asked = timeout(Duration::from_micros(round * 10), asked).await;
        if let Ok(done) = asked {
            let done = done.expect("answers");
            assert_eq!(done.rows[0].name(1).expect("a text"), text);
        }
        let text = format!("after {round}");
        let arguments = [Arg::Int(-1), Arg::Text(&text), Arg::Bytes(b"")];
        let done = connections
            .run_new(&query, &arguments)
            .await
            .expect("answers");
        assert_eq!(done.rows[0].name(1).expect("a text"), text);
    }
    let lease = lock(&*store, page("/a"), LEASE).await;
    assert!(publish(&*store, &lease, &content("1")).await);
}

pub async fn transaction_that_was_left_open_is_not_written_into(db: OfDriver) {
    let ours = db.database();
    let store: Arc<dyn Backend> = ours
        .clone()
        .store("perennial_")
        .await
        .expect("opens")
        .into();
    let other = db.store().await;
    let dialect = ours.dialect();
    let begin = Statement::new(dialect, "", "BEGIN");
    for round in 0..20 {
        let mut left = ours.connections().acquire().await.expect("connects");
        run(left.connection(), &begin, &[]).await.expect("begins");
        left.give_back();
        let name = page(&format!("/{round}"));
        let lease = lock(&*store, name.clone(), LEASE).await;
        assert!(publish(&*store, &lease, &content("1")).await);
        // Another process sees it, so it was committed.
        let seen = stored(&*other, &name).await.expect("is committed");
        assert_eq!(seen.0, lease.fence);
    }
}

pub async fn dropped_table_is_made_again(db: OfDriver) {
    let store = db.store().await;
    let lease = lock(&*store, page("/a"), LEASE).await;
    db.execute("DROP TABLE perennial_entry").await;
    assert!(publish(&*store, &lease, &content("1")).await);
    assert_eq!(
        stored(&*store, &page("/a")).await.expect("is there").0,
        lease.fence
    );
}

pub async fn value_that_the_database_refuses_is_told_from_a_failure(db: OfDriver) {
    let store = db.store().await;
    let lease = lock(&*store, page("/a"), LEASE).await;
    let refuse = match db.database().dialect().engine() {
        Engine::Sqlite => {
            "CREATE TRIGGER refuse BEFORE INSERT ON perennial_entry BEGIN SELECT RAISE(ABORT, 'refused'); END"
        }
        _ => "ALTER TABLE perennial_entry ADD CONSTRAINT refuse CHECK (status < 100)",
    };
    db.execute(refuse).await;
    let entry = crate::store::entry(&content("1"));
    let refused = store
        .ask(perennial_store::Publish::new(&lease, entry))
        .await;
    let error = Error::operation("publish", refused.expect_err("is refused"));
    assert!(error.is_rejected_value(), "{error:#}");
    assert_eq!(error.kind(), ErrorKind::Database);
    // The store works, and the lease is ours.
    assert!(ask(&*store, Release::new(&lease, NONE)).await);
}

pub async fn invalidation_in_a_transaction_ends_with_it(db: OfDriver) {
    let store = db.store().await;
    let database = db.database();
    let (dialect, tables) = (database.dialect(), Tables::new("perennial_").expect("fits"));
    let statement = |sql| Statement::new(dialect, "", sql);
    let row = |name: &str| [(uuid(), name.to_owned())];
    let committed = async || {
        let synced = Invalidated::new("", Epoch::NONE, ALL, Vec::new());
        let committed = ask(&*store, synced).await.committed;
        committed
            .into_iter()
            .map(|row| row.name)
            .collect::<Vec<_>>()
    };
    let mut borrowed = database.connections().acquire().await.expect("connects");
    for (end, expected) in [("ROLLBACK", &[][..]), ("COMMIT", &["tag:a"])] {
        let connection = borrowed.connection();
        run(connection, &statement("BEGIN"), &[])
            .await
            .expect("begins");
        let inside = Connection::new(dialect.engine(), &mut *connection);
        let written = outbox::write(inside, &tables, &row("tag:a"), HANG).await;
        written.expect("is written");
        assert_eq!(committed().await, [""; 0], "before the end");
        run(connection, &statement(end), &[]).await.expect("ends");
        assert_eq!(committed().await, expected, "{end}");
    }
    let outside = Connection::new(dialect.engine(), borrowed.connection());
    let error = outbox::write(outside, &tables, &row("tag:b"), HANG).await;
    let error = error.expect_err("is in no transaction");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:#}");
    assert_eq!(committed().await, ["tag:a"]);
}

/// The lock protects a number that is read and written in two steps.
pub async fn one_of_many_holds_the_lock(db: OfDriver) {
    let store = db.store().await;
    db.execute("CREATE TABLE counter (id INTEGER PRIMARY KEY, number INTEGER)")
        .await;
    db.execute("INSERT INTO counter (id, number) VALUES (1, 0)")
        .await;
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let (store, database) = (Arc::clone(&store), db.database());
        workers.spawn(async move {
            let dialect = database.dialect();
            let connections = database.connections();
            let read = Statement::new(dialect, "", "SELECT number FROM counter WHERE id = 1");
            let write = Statement::new(dialect, "", "UPDATE counter SET number = $1 WHERE id = 1");
            let mut done = 0;
            while done < 10 {
                let owner = uuid();
                let tried = ask(&*store, TryLock::new("counter", &owner, LEASE, None)).await;
                let Some(fence) = tried.fence else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                let rows = connections.run_new(&read, &[]).await.expect("reads").rows;
                let number = rows[0].number(0).expect("a number");
                tokio::time::sleep(Duration::from_millis(1)).await;
                let number = [Arg::Int(number + 1)];
                connections.run_new(&write, &number).await.expect("writes");
                done += 1;
                let lease = perennial_store::LeaseRow {
                    name: "counter".into(),
                    owner,
                    fence,
                };
                assert!(ask(&*store, Release::new(&lease, NONE)).await);
            }
        });
    }
    workers.join_all().await;
    let read = Statement::new(db.database().dialect(), "", "SELECT number FROM counter");
    let rows = db.database().connections().run_new(&read, &[]).await;
    assert_eq!(
        rows.expect("reads").rows[0].number(0).expect("a number"),
        40
    );
}

/// A caller waits until another one gives its connection back.
pub async fn callers_wait_for_a_connection(db: OfDriver) {
    let store = db.store().await;
    let mut callers = JoinSet::new();
    for number in 0..64 {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            let name = page(&format!("/{number}"));
            let lease = lock(&*store, name.clone(), LEASE).await;
            assert!(publish(&*store, &lease, &content(&number.to_string())).await);
            let probe = ask(&*store, Probe::new(name, Fence::NONE)).await;
            probe.entry.expect("is there").content.into_body()
        });
    }
    let mut bodies = callers.join_all().await;
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 64);
}

/// A site relies on this number. For a statement that must not wait, it opens a further connection, and so
/// it has to know how many the pool has.
pub async fn pool_has_as_many_connections_as_it_says(db: OfDriver) {
    let database = db.database();
    let driver = database.driver();
    let mut all = Vec::new();
    for number in 0..driver.max_connections() {
        let connection = timeout(HANG, driver.acquire()).await;
        let connection = connection.unwrap_or_else(|_| panic!("there are {number} connections"));
        all.push(connection.expect("connects"));
    }
    let more = timeout(Duration::from_millis(200), driver.acquire()).await;
    // Instead of waiting, a pool may also answer at once that it has no further connection.
    assert!(!matches!(more, Ok(Ok(_))), "more than max_connections()");
    if let Some(beside) = driver.connect() {
        let beside = timeout(HANG, beside)
            .await
            .expect("is not one of the pool's");
        let mut beside = beside.expect("connects");
        let one = Statement::new(database.dialect(), "", "SELECT 1");
        let done = run(&mut *beside, &one, &[]).await.expect("answers");
        assert_eq!(done.rows[0].number(0).expect("a number"), 1);
    }
    for connection in all {
        connection.give_back().await;
    }
    let again = timeout(HANG, driver.acquire()).await;
    again.expect("they were given back").expect("connects");
}

/// Leaves a mark on a session, and reads it.
fn mark(engine: Engine) -> [&'static str; 2] {
    match engine {
        Engine::Sqlite => [
            "CREATE TEMP TABLE mark (id INTEGER)",
            "SELECT count(*) FROM temp.sqlite_master",
        ],
        Engine::Postgres => [
            "SELECT set_config('perennial.mark', '1', false)",
            "SELECT coalesce(nullif(current_setting('perennial.mark', true), ''), '0')",
        ],
        _ => [
            "SET @perennial_mark = 1",
            "SELECT CAST(coalesce(@perennial_mark, 0) AS SIGNED)",
        ],
    }
}

/// Returns the number of sessions in the pool that are marked.
async fn marked(db: &perennial_store::Database, read: &Statement) -> i64 {
    let (driver, mut all, mut marked) = (db.driver(), Vec::new(), 0);
    for _ in 0..driver.max_connections() {
        let mut connection = driver.acquire().await.expect("connects");
        let done = run(&mut *connection, read, &[]).await.expect("answers");
        marked += done.rows[0].number(0).expect("a number");
        all.push(connection);
    }
    for connection in all {
        connection.give_back().await;
    }
    marked
}

/// Most pools take a connection back when it is dropped. Perennial drops a connection that may be in a
/// transaction, and relies on the driver to close it.
pub async fn dropped_connection_does_not_come_back(db: OfDriver) {
    let database = db.database();
    let dialect = database.dialect();
    let [write, read] = mark(dialect.engine()).map(|sql| Statement::new(dialect, "", sql));
    for _ in 0..3 {
        let mut dropped = database.driver().acquire().await.expect("connects");
        run(&mut *dropped, &write, &[]).await.expect("is marked");
        drop(dropped);
        assert_eq!(
            marked(&database, &read).await,
            0,
            "it came back to its pool"
        );
    }
}

/// If connections were closed instead of being reused, each statement would need a new one. (A pool that
/// resets each session fails this test although it reuses connections. That is harmless.)
pub async fn connection_that_is_given_back_comes_again(db: OfDriver) {
    let database = db.database();
    let dialect = database.dialect();
    let [write, read] = mark(dialect.engine()).map(|sql| Statement::new(dialect, "", sql));
    let mut given = database.driver().acquire().await.expect("connects");
    run(&mut *given, &write, &[]).await.expect("is marked");
    given.give_back().await;
    assert_eq!(marked(&database, &read).await, 1, "it was closed");
}

/// If the server ends a connection, the driver has to say that it is broken, so that the pool does
/// not hand it out again.
pub async fn connection_that_the_server_ends_is_broken(db: OfDriver) {
    let database = db.database();
    let dialect = database.dialect();
    let end = match dialect.engine() {
        Engine::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
        Engine::MySql => "KILL CONNECTION_ID()",
        _ => return,
    };
    let mut connection = database.driver().acquire().await.expect("connects");
    let end = Statement::new(dialect, "", end);
    // The server may end the connection before it has answered.
    let _ = run(&mut *connection, &end, &[]).await;
    let one = Statement::new(dialect, "", "SELECT 1");
    let error = run(&mut *connection, &one, &[])
        .await
        .expect_err("has ended");
    assert!(is_broken(&error), "{error:?}");
    drop(connection);
    let other = database.connections().run_new(&one, &[]).await;
    assert_eq!(other.expect("connects anew").rows.len(), 1);
}
