//! Invalidations that transactions have committed, and that cannot be numbered, or not soon.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial_store::{Epoch, Invalidated, Number};

use perennial_testkit::{
    Db, Origin, every,
    hooked::{Hook, Hooked, When},
    on_each_database, on_each_server, patient,
    peers::{HEARD, Process, pair},
    until,
    virtual_time::Shared,
    with_pool,
};

const HOUR: Duration = Duration::from_secs(3600);

on_each_database! {
    purge_behind_thousands_of_names_is_honoured_before_it_is_numbered
    names_of_a_large_transaction_are_numbered
    row_that_cannot_be_numbered_stops_no_other
    rows_are_read_in_pages_in_the_order_of_their_ids
    row_that_no_table_can_take_is_refused
    row_that_is_no_text_stops_no_sync
}

/// The outbox of a program in another language.
async fn write(db: &Db, id: &str, name: &str) {
    let row = format!("INSERT INTO perennial_outbox (id, name) VALUES ('{id}', '{name}')");
    db.execute(&row).await;
}

/// Makes each invalidation of the tag `bad` fail.
async fn refuse_a_name(db: &Db) {
    if db.url().starts_with("sqlite") {
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON perennial_invalidation WHEN NEW.name = 'tag:bad'
                BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .await;
    } else {
        db.execute(
            "ALTER TABLE perennial_invalidation ADD CONSTRAINT refuse CHECK (name <> 'tag:bad')",
        )
        .await;
    }
}

/// The names of a bulk import do not fit into one numbering, and here none of them can be numbered. What
/// the transaction has purged is not served for longer than a sync interval all the same.
async fn purge_behind_thousands_of_names_is_honoured_before_it_is_numbered(db: Db) {
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let run = a.run("/a").await;
    refuse_a_name(&db).await;
    let names = (0..3000).map(|row| format!("('{row}', 'tag:bad')"));
    let names: Vec<_> = names
        .chain(["('z', 'purged_tag:list')".to_owned()])
        .collect();
    let names = names.join(", ");
    db.execute(&format!(
        "INSERT INTO perennial_outbox (id, name) VALUES {names}"
    ))
    .await;
    tokio::time::sleep(Duration::from_millis(1300)).await;
    for process in [&a, &b] {
        assert!(
            process.run("/a").await > run,
            "the purged page is not served"
        );
    }
}

async fn names_of_a_large_transaction_are_numbered(db: Db) {
    let origin = Origin::default();
    let [a, _] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let run = a.run("/a").await;
    with_pool!(db, pool => {
        let mut transaction = pool.begin().await.expect("begins");
        let tags: Vec<_> = (0..1000).map(|n| format!("tag-{n}")).chain(["list".into()]).collect();
        let pending = a.site.purge_in(&mut transaction, &tags).await;
        transaction.commit().await.expect("is committed");
        drop(pending.expect("is written"));
    });
    until("all are numbered", async || {
        let _ = a.run("/a").await;
        db.int("SELECT COUNT(*) FROM perennial_outbox").await == Some(0)
    })
    .await;
    assert!(a.run("/a").await > run);
}

async fn row_that_cannot_be_numbered_stops_no_other(db: Db) {
    let origin = Origin::default();
    let layered = |layer: perennial::layer::RefreshLayer| layer.tag("bad").tag("good");
    let [a, b] = pair(&db, &origin, &["/a"], layered).await;
    refuse_a_name(&db).await;
    let mut run = a.run("/a").await;
    write(&db, "1", "purged_tag:good").await;
    write(&db, "2", "tag:bad").await;
    for id in 3..9 {
        write(&db, &id.to_string(), &format!("tag:other-{id}")).await;
    }
    tokio::time::sleep(HEARD).await;
    for process in [&a, &b] {
        assert!(
            process.run("/a").await > run,
            "the purged page is not served"
        );
    }
    until("only the bad one is left", async || {
        let _ = (a.run("/a").await, b.run("/a").await);
        db.int("SELECT COUNT(*) FROM perennial_outbox").await == Some(1)
    })
    .await;
    // Each process honours the purge of the bad row once, when it first sees the row. Later purges
    // are honoured as well.
    tokio::time::sleep(2 * HEARD).await;
    let _ = (a.run("/a").await, b.run("/a").await);
    tokio::time::sleep(HEARD).await;
    run = a.run("/a").await;
    tokio::time::sleep(2 * HEARD).await;
    let _ = b.run("/a").await;
    assert_eq!(
        a.run("/a").await,
        run,
        "no page is regenerated again and again"
    );
    write(&db, "9", "purged_tag:good").await;
    tokio::time::sleep(HEARD).await;
    assert!(a.run("/a").await > run, "the purged page is not served");
    let row = db.int("SELECT COUNT(*) FROM perennial_outbox WHERE id = '2'");
    assert_eq!(row.await, Some(1));
}

async fn rows_are_read_in_pages_in_the_order_of_their_ids(db: Db) {
    let _site = db.site().await;
    let store = db.store().await;
    let _ = store
        .ask(Invalidated::new("", Epoch::NONE, 1, Vec::new()))
        .await
        .expect("answers");
    for id in ["b", "c", "a", "e", "d"] {
        write(&db, id, &format!("tag:{id}")).await;
    }
    let mut after = String::new();
    let mut read = Vec::new();
    loop {
        let page = store
            .ask(Invalidated::new(&*after, Epoch::NONE, 2, Vec::new()))
            .await;
        let page = page.expect("answers");
        let Some(last) = page.committed.last() else {
            break;
        };
        assert!(page.committed.len() <= 2);
        after.clone_from(&last.id);
        read.extend(page.committed.into_iter().map(|row| (row.id, row.name)));
    }
    let expected = ["a", "b", "c", "d", "e"].map(|id| (id.to_owned(), format!("tag:{id}")));
    assert_eq!(read, expected);
    let ids = read
        .into_iter()
        .map(|(id, _)| id)
        .chain(["unknown".to_owned()]);
    let numbered = store
        .ask(Number::new(ids.collect()))
        .await
        .expect("answers");
    assert_eq!(numbered.rows.len(), 5);
    let epoch = numbered.rows[0].1;
    assert!(epoch > Epoch::NONE && numbered.rows.iter().all(|(_, it)| *it == epoch));
    let after = store
        .ask(Invalidated::new("", Epoch(epoch.0 - 1), 100, Vec::new()))
        .await;
    let after = after.expect("answers");
    assert_eq!((after.names.len(), after.committed.len()), (5, 0));
}

/// PostgreSQL takes no such text.
async fn row_that_is_no_text_stops_no_sync(db: Db) {
    let bytes = match db.url().split(':').next() {
        Some("postgres") => return,
        Some("mysql") => "x'7461673aff'",
        _ => "CAST(x'7461673aff' AS TEXT)",
    };
    let origin = Origin::default();
    let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
    let run = a.run("/a").await;
    for row in [
        format!("INSERT INTO perennial_outbox (id, name) VALUES ('0', {bytes})"),
        format!("INSERT INTO perennial_outbox (id, name) VALUES ({bytes}, 'tag:x')"),
        format!("INSERT INTO perennial_invalidation (name, epoch) VALUES ({bytes}, 1)"),
    ] {
        db.execute(&row).await;
    }
    write(&db, "1", "purged_tag:list").await;
    tokio::time::sleep(HEARD).await;
    for process in [&a, &b] {
        assert!(
            process.run("/a").await > run,
            "the purged page is not served"
        );
    }
    let new = Process::new(&db, &origin, |layer| layer.tag("list")).await;
    assert!(new.run("/a").await > run);
}

/// A name that no index can take would stay in the outbox for ever.
async fn row_that_no_table_can_take_is_refused(db: Db) {
    let _site = db.site().await;
    with_pool!(db, pool => {
        for (id, length) in [("long", 256), ("longer", 6404)] {
            let row = format!(
                "INSERT INTO perennial_outbox (id, name) VALUES ('{id}', 'tag:{}')",
                "x".repeat(length - 4)
            );
            let written = sqlx::raw_sql(sqlx::AssertSqlSafe(row)).execute(&pool).await;
            assert!(written.is_err(), "{length}");
        }
        let row = format!(
            "INSERT INTO perennial_outbox (id, name) VALUES ('{}', 'tag:x')",
            "i".repeat(256)
        );
        let written = sqlx::raw_sql(sqlx::AssertSqlSafe(row)).execute(&pool).await;
        assert!(written.is_err(), "the id");
    });
    write(&db, "fits", &format!("tag:{}", "x".repeat(251))).await;
}

/// A deploy after an import: the numbering of the rows is no matter of visitors, and one is enough.
#[tokio::test(start_paused = true)]
async fn numbering_that_does_not_end_delays_no_visitor_and_is_not_begun_twice() {
    let (shared, origin) = (Shared::new(), Origin::default());
    let old = perennial_testkit::virtual_time::Process::new(&shared, &origin);
    let run = old.run("/a").await;
    for id in 0..300 {
        shared.commit_invalidation(&id.to_string(), "purged_tag:other");
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let hook: Hook = Arc::new(move |step, side| match (step, side) {
        ("number", When::Before) => {
            counted.fetch_add(1, SeqCst);
            Box::pin(std::future::pending())
        }
        _ => Box::pin(std::future::ready(())),
    });
    let store = shared.store();
    let site = patient().with_store(Box::new(Hooked { store, hook }));
    let site = site.expect("opens");
    let address =
        perennial_testkit::virtual_time::here(origin.router().layer(site.layer(every(HOUR))));
    let visit = async || perennial_testkit::get(address, "/a").await.run();
    let started = tokio::time::Instant::now();
    assert_eq!(visit().await, run);
    assert!(started.elapsed() < Duration::from_millis(100));
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(visit().await, run);
    }
    assert_eq!(begun.load(SeqCst), 1);
    shared.commit_invalidation("purge", "purged:/a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(visit().await > run, "the purged page is not served");
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers {
    use tokio::time::Instant;

    use super::*;
    use perennial_testkit::{
        HANG, open_site,
        wire::{State, Wire},
    };

    on_each_server! {
        row_that_somebody_has_locked_stops_no_other
        locked_counter_stops_no_visitor_and_no_news
        author_whose_network_falls_silent_stops_nobody
    }

    /// What a lost connection holds, its server holds for hours.
    async fn author_whose_network_falls_silent_stops_nobody(db: Db) {
        let origin = Origin::default();
        let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
        // In each exchange of the numbering.
        for after in 0..6 {
            let run = a.run("/a").await.max(b.run("/a").await);
            let wire = Wire::before(db.url()).await;
            let site = open_site(patient(), &wire.url(db.url()))
                .await
                .expect("opens");
            let pending = with_pool!(db, pool => {
                let mut transaction = pool.begin().await.expect("begins");
                let pending = site.purge_in(&mut transaction, ["list"]).await;
                transaction.commit().await.expect("is committed");
                pending.expect("is written")
            });
            wire.set(State::RepliesLost { after });
            let numbering = tokio::spawn(pending.committed());
            tokio::time::sleep(HEARD).await;
            let begun = Instant::now();
            for process in [&a, &b] {
                assert!(process.run("/a").await > run, "{after}: the page is purged");
                let done = process.site.invalidate_tag("other").await;
                done.expect("is invalidated");
            }
            assert!(begun.elapsed() < HANG / 4, "{after}: {:?}", begun.elapsed());
            until("others number the row", async || {
                let _ = (a.run("/a").await, b.run("/a").await);
                db.int("SELECT COUNT(*) FROM perennial_outbox").await == Some(0)
            })
            .await;
            numbering.abort();
        }
    }

    /// A client that is stuck with a row of the outbox.
    async fn row_that_somebody_has_locked_stops_no_other(db: Db) {
        let origin = Origin::default();
        let layered = |layer: perennial::layer::RefreshLayer| layer.tag("stuck").tag("list");
        let [a, b] = pair(&db, &origin, &["/a"], layered).await;
        let run = a.run("/a").await;
        write(&db, "0", "tag:stuck").await;
        let stuck = db
            .uncommitted("UPDATE perennial_outbox SET name = 'tag:stack' WHERE id = '0'")
            .await;
        write(&db, "1", "purged_tag:list").await;
        tokio::time::sleep(HEARD).await;
        for process in [&a, &b] {
            assert!(
                process.run("/a").await > run,
                "the purged page is not served"
            );
        }
        until("the other one is numbered", async || {
            let _ = (a.run("/a").await, b.run("/a").await);
            db.int("SELECT COUNT(*) FROM perennial_outbox WHERE id = '1'")
                .await
                == Some(0)
        })
        .await;
        stuck.rollback().await.expect("is rolled back");
        until("then this one, too", async || {
            let _ = (a.run("/a").await, b.run("/a").await);
            db.int("SELECT COUNT(*) FROM perennial_outbox").await == Some(0)
        })
        .await;
    }

    /// An application that invalidates by the documented statement, in a transaction that stays open.
    async fn locked_counter_stops_no_visitor_and_no_news(db: Db) {
        let origin = Origin::default();
        let [a, b] = pair(&db, &origin, &["/a"], |layer| layer.tag("list")).await;
        let run = a.run("/a").await;
        a.site
            .invalidate_tag("other")
            .await
            .expect("is invalidated");
        let counter = match db.url().split(':').next() {
            Some("mysql") => "UPDATE perennial_invalidation SET epoch = epoch + 1 WHERE name = '*'",
            _ => "UPDATE perennial_schema SET version = version + 1 WHERE id = 2",
        };
        let open = db.uncommitted(counter).await;
        // Both processes need a first version of the page. While a process waits for the locked
        // counter, the one that does not generate the page hears of the other's version.
        write(&db, "1", "purged_tag:other").await;
        let mut visits = tokio::task::JoinSet::new();
        let begun = Instant::now();
        for address in [a.address, b.address] {
            visits.spawn(async move { perennial_testkit::get(address, "/new").await.run() });
        }
        let runs = visits.join_all().await;
        assert_eq!(runs[0], runs[1]);
        // The visitors do not wait for the statement that cannot end, which has a time limit of half a
        // minute here.
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{:?}",
            begun.elapsed()
        );
        write(&db, "2", "purged_tag:list").await;
        tokio::time::sleep(HEARD).await;
        for process in [&a, &b] {
            assert!(
                process.run("/a").await > run,
                "the purged page is not served"
            );
        }
        // A new process, too, honours the row and answers.
        let new = Process::with(&db, patient(), &origin, |layer| layer.tag("list")).await;
        assert!(new.run("/a").await > run, "the purged page is not served");
        open.rollback().await.expect("is rolled back");
        until("it is numbered", async || {
            let _ = (a.run("/a").await, b.run("/a").await);
            db.int("SELECT COUNT(*) FROM perennial_outbox").await == Some(0)
        })
        .await;
    }
}
