//! Sites whose tables somebody else makes: a migration step, or an administrator.

use perennial::{ErrorKind, Perennial, Refresh, sql::Database};
use perennial_testkit::{Db, on_each_database, open_site, patient};

on_each_database! {
    site_that_expects_its_tables_makes_none_and_says_how_to_make_them
    tables_are_made_by_a_call_of_their_own
}

async fn content(site: &Perennial) -> String {
    let policy = Refresh::every(perennial::DAY);
    let content = async || Ok::<_, std::convert::Infallible>("stored");
    let content = site.content("key", policy, content).await;
    content.expect("is made").to_string()
}

async fn site_that_expects_its_tables_makes_none_and_says_how_to_make_them(db: Db) {
    let expecting = || patient().table_prefix("expected_").expect_tables();
    let error = open_site(expecting(), db.url()).await;
    let error = error.expect_err("has no tables");
    assert_eq!(error.kind(), ErrorKind::Schema);
    let said = error.to_string();
    for remedy in ["Builder::create_tables", "Builder::ddl", "perennial ddl"] {
        assert!(said.contains(remedy), "{said}");
    }
    // It has made none meanwhile.
    let again = open_site(expecting(), db.url()).await;
    assert!(again.is_err());
}

async fn tables_are_made_by_a_call_of_their_own(db: Db) {
    let builder = || patient().table_prefix("made_");
    for _ in 0..2 {
        let database = Database::open(db.url()).await.expect("opens");
        builder().create_tables(database).await.expect("are made");
    }
    let site = open_site(builder().expect_tables(), db.url()).await;
    assert_eq!(content(&site.expect("opens")).await, "stored");
    let usual = open_site(builder(), db.url()).await.expect("opens");
    assert_eq!(content(&usual).await, "stored");
}
