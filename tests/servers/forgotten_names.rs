//! A process keeps a limited number of invalidated names: more of them count as an invalidation of
//! everything, and purges are never forgotten.

use perennial_testkit::{
    Crowd, Db, Origin, on_database,
    peers::{HEARD, Process},
    until,
};
use tokio::time::sleep;

use crate::sync::generates_for_all;

on_database! {
    sqlite = perennial_testkit::Db::sqlite();
    more_invalidated_names_than_a_process_keeps_count_as_everything
    more_purged_names_than_a_process_keeps_count_as_a_purge_of_everything
}

async fn more_invalidated_names_than_a_process_keeps_count_as_everything(db: Db) {
    let origin = Origin::default();
    let old = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(old.run("/p").await, 1);
    assert_eq!(old.run("/q").await, 2);
    assert_eq!(old.run("/r").await, 3);
    assert_eq!(old.run("/s").await, 4);
    let purging = Process::new(&db, &origin, |layer| layer).await;
    purging.site.invalidate("/other").await.expect("is done");
    let latest = async || {
        let latest = "SELECT max(epoch) FROM perennial_invalidation";
        db.int(latest).await.expect("is there")
    };
    let mut since = latest().await;
    for ten_thousand in 0..15 {
        // More names come before the purge than one statement reads, and more after it than a
        // process keeps.
        if ten_thousand == 2 {
            // The names so far were written with epochs of the test's own, above the counter. The
            // counter is raised past them, so that the purge is later.
            db.execute(&db.raise_epochs(60_000_000)).await;
            purging.site.purge("/q").await.expect("is done");
            since = latest().await;
        }
        let name = format!("tag:{ten_thousand}-");
        let epochs = since + 10_000 * ten_thousand;
        db.invalidate_ten_thousand(&name, epochs).await;
    }
    // The process that slept meanwhile has forgotten the oldest names, but must read each purge.
    sleep(HEARD).await;
    generates_for_all(&old, &origin, "/q").await;
    regenerates_behind_the_old_version(&old, &origin, "/r").await;
    // A process that starts does not know which invalidation applied to the page, so the page is
    // generated again and stored. No visitor waits for it, as nothing says that it was purged.
    let new = Process::new(&db, &origin, |layer| layer).await;
    regenerates_behind_the_old_version(&new, &origin, "/s").await;
    until("the page is generated anew", async || {
        new.run("/p").await > 4
    })
    .await;
    let runs = origin.begun();
    let newest = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(newest.run("/p").await, new.run("/p").await);
    assert_eq!(origin.begun(), runs, "it found the page in the database");
}

async fn more_purged_names_than_a_process_keeps_count_as_a_purge_of_everything(db: Db) {
    let origin = Origin::default();
    let old = Process::new(&db, &origin, |layer| layer).await;
    assert_eq!(old.run("/p").await, 1);
    let latest = "SELECT max(epoch) FROM perennial_invalidation";
    old.site.invalidate("/other").await.expect("is done");
    let mut since = db.int(latest).await.expect("is there");
    for ten_thousand in 0..11 {
        let name = format!("purged:{ten_thousand}-");
        db.invalidate_ten_thousand(&name, since).await;
        since += 10_000;
    }
    let new = Process::new(&db, &origin, |layer| layer).await;
    generates_for_all(&new, &origin, "/p").await;
    sleep(HEARD).await;
    assert_eq!(
        old.run("/p").await,
        new.run("/p").await,
        "it is generated once"
    );
    assert_eq!(origin.begun(), 2);
}

/// The old version of the page, which is the first one, is served while the new one is generated.
async fn regenerates_behind_the_old_version(process: &Process, origin: &Origin, path: &str) {
    let begun = origin.begun();
    origin.hold();
    let first = Crowd::visit(1, &[process.address], path);
    until("it generates", async || origin.begun() == begun + 1).await;
    assert!(process.run(path).await <= 4, "{path}");
    origin.let_go();
    first.rest().await;
}
