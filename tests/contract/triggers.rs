//! Triggers on tables of the application's: what they write is what a handler's `format!` makes of the same row.

use std::collections::BTreeSet;

use perennial::{
    driver::Engine,
    sql::{ColumnType, Trigger},
};
use perennial_store::{Discard, Epoch, Invalidated};
use perennial_testkit::{Db, on_each_database, store::ask, with_pool};

on_each_database! {
    each_change_writes_the_names_of_its_rows_and_no_others
    name_is_that_of_format_for_each_type_and_value
    name_is_that_of_format_for_random_rows
    insert_that_changes_a_row_names_its_old_and_its_new_values
    change_that_is_rolled_back_writes_nothing
    insert_id_and_affected_rows_stay_the_applications
    triggers_are_made_again_and_removed
}

pub(crate) fn engine(db: &Db) -> Engine {
    match db.url().split(':').next() {
        Some("postgres") => Engine::Postgres,
        Some("mysql") => Engine::MySql,
        _ => Engine::Sqlite,
    }
}

pub(crate) async fn install(db: &Db, trigger: &Trigger) {
    for statement in trigger.create(engine(db)).expect("is valid") {
        db.execute(&statement).await;
    }
}

/// Returns the names that were written since the last call, and removes them.
pub(crate) async fn written(db: &Db) -> BTreeSet<String> {
    let store = db.store().await;
    let mut names = BTreeSet::new();
    loop {
        let synced = ask(&*store, Invalidated::new("", Epoch::NONE, 1000, Vec::new())).await;
        if synced.committed.is_empty() {
            return names;
        }
        let ids = synced.committed.iter().map(|row| row.id.clone()).collect();
        names.extend(synced.committed.into_iter().map(|row| row.name));
        assert!(ask(&*store, Discard::new(ids)).await.is_empty());
    }
}

pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A shop's products.
async fn products(db: &Db) -> Trigger {
    db.store().await;
    db.execute(
        "CREATE TABLE product (id INTEGER PRIMARY KEY, category_id INTEGER, title VARCHAR(100), price INTEGER, visits INTEGER)",
    )
    .await;
    Trigger::on("product")
        .column("id", ColumnType::Integer)
        .column("category_id", ColumnType::Integer)
        .tag("product-{id}")
        .tag("category-{category_id}")
        .list_tag("products")
        .columns(["title", "price", "category_id"])
}

async fn each_change_writes_the_names_of_its_rows_and_no_others(db: Db) {
    let trigger = products(&db).await;
    install(&db, &trigger).await;
    for (change, names) in [
        (
            "INSERT INTO product VALUES (1, 5, 'a', 10, 0), (2, NULL, 'b', 10, 0), (3, 6, 'c', 10, 0)",
            &[
                "tag:category-5",
                "tag:category-6",
                "tag:product-1",
                "tag:product-2",
                "tag:product-3",
                "tag:products",
            ][..],
        ),
        // The old category and the new one.
        (
            "UPDATE product SET category_id = 7 WHERE id = 1",
            &[
                "tag:category-5",
                "tag:category-7",
                "tag:product-1",
                "tag:products",
            ],
        ),
        ("UPDATE product SET visits = visits + 1", &[]),
        ("UPDATE product SET price = price", &[]),
        ("UPDATE product SET price = 11 WHERE id = 99", &[]),
        // A change of case, which a collation may not see, and a change to NULL.
        (
            "UPDATE product SET title = 'A' WHERE id = 1",
            &["tag:category-7", "tag:product-1", "tag:products"],
        ),
        (
            "UPDATE product SET title = NULL WHERE id = 2",
            &["tag:product-2", "tag:products"],
        ),
        // Two rows exchange their prices.
        (
            "UPDATE product SET price = 20 WHERE id = 3",
            &["tag:category-6", "tag:product-3", "tag:products"],
        ),
        (
            "UPDATE product SET price = 30 - price WHERE id IN (1, 3)",
            &[
                "tag:category-6",
                "tag:category-7",
                "tag:product-1",
                "tag:product-3",
                "tag:products",
            ],
        ),
        // The key itself.
        (
            "UPDATE product SET id = 4 WHERE id = 3",
            &[
                "tag:category-6",
                "tag:product-3",
                "tag:product-4",
                "tag:products",
            ],
        ),
        (
            "DELETE FROM product WHERE id = 2",
            &["tag:product-2", "tag:products"],
        ),
        ("DELETE FROM product WHERE id = 99", &[]),
    ] {
        db.execute(change).await;
        assert_eq!(written(&db).await, set(names), "{change}");
    }
    if engine(&db) == Engine::Postgres {
        db.execute("TRUNCATE product").await;
        let coarse = [
            "tag:products",
            "tag_prefix:category-",
            "tag_prefix:product-",
        ];
        assert_eq!(written(&db).await, set(&coarse));
    }
}

/// The values that a handler shows, beside what the database was told.
async fn name_is_that_of_format_for_each_type_and_value(db: Db) {
    db.store().await;
    let engine = engine(&db);
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    let (text, bytes, uuid_type, uuid_value) = match engine {
        Engine::Postgres => ("TEXT", "TEXT", "UUID", format!("'{uuid}'")),
        Engine::MySql => (
            "VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "VARCHAR(300) CHARACTER SET latin1",
            "BINARY(16)",
            format!("X'{}'", uuid.replace('-', "")),
        ),
        _ => (
            "TEXT COLLATE NOCASE",
            "TEXT",
            "BLOB",
            format!("X'{}'", uuid.replace('-', "")),
        ),
    };
    db.execute(&format!(
        "CREATE TABLE sample (n BIGINT PRIMARY KEY, text {text}, latin {bytes}, uuid {uuid_type})"
    ))
    .await;
    let trigger = Trigger::on("sample")
        .column("n", ColumnType::Integer)
        .column("text", ColumnType::Text)
        .column("latin", ColumnType::Text)
        .column("uuid", ColumnType::Uuid)
        .tag("value-{n}-{uuid}")
        .tag("text-{text}")
        .tag("latin-{latin}")
        .columns(["text"]);
    install(&db, &trigger).await;
    let long = "x".repeat(175);
    let longer = "x".repeat(176);
    let umlauts = "\u{e4}".repeat(88);
    for (number, text) in [i64::MAX, i64::MIN, 0, -1, 7, 8, 9, 10, 11]
        .into_iter()
        .zip([
            "a",
            "A",
            "",
            "it''s",
            " a ",
            "caf\u{e9}",
            "cafe\u{301}",
            &long,
            &longer,
        ])
    {
        db.execute(&format!(
            "INSERT INTO sample (n, text, latin, uuid) VALUES ({number}, '{text}', 'caf\u{e9}', {uuid_value})"
        ))
        .await;
        let text = text.replace("''", "'");
        let tag = format!("text-{text}");
        let name = if tag.len() <= 180 {
            format!("tag:{tag}")
        } else {
            "tag_prefix:text-".to_owned()
        };
        let names = [
            format!("tag:value-{number}-{uuid}"),
            name,
            "tag:latin-caf\u{e9}".to_owned(),
        ];
        assert_eq!(written(&db).await, names.into(), "{number} {text}");
    }
    db.execute(&format!("UPDATE sample SET text = '{umlauts}' WHERE n = 0"))
        .await;
    let names = written(&db).await;
    // 176 bytes in 88 characters.
    assert!(names.contains("tag_prefix:text-"), "{names:?}");
    db.execute("UPDATE sample SET text = NULL, uuid = NULL, latin = NULL WHERE n = 7")
        .await;
    let old = [
        format!("tag:value-7-{uuid}"),
        "tag:text- a ".to_owned(),
        "tag:latin-caf\u{e9}".to_owned(),
    ];
    assert_eq!(written(&db).await, old.into());
    if engine == Engine::Sqlite {
        // SQLite accepts a value of any type in any column. The trigger cannot make an exact tag of such a
        // value, so it invalidates more than necessary, and never less.
        db.execute("INSERT INTO sample (n, text, uuid) VALUES (99, X'ff', 'no uuid')")
            .await;
        let coarse = ["tag_prefix:text-", "tag_prefix:value-"];
        assert_eq!(written(&db).await, set(&coarse));
    }
}

/// What a handler's driver returns of each row, beside the names that the triggers have written for it.
async fn name_is_that_of_format_for_random_rows(db: Db) {
    use proptest::{
        prelude::*,
        strategy::{Strategy, ValueTree},
        test_runner::TestRunner,
    };

    const ROWS: usize = 200;
    db.store().await;
    let engine = engine(&db);
    let (padded, small) = match engine {
        Engine::Sqlite => ("TEXT", "INTEGER"),
        _ => ("CHAR(8)", "SMALLINT"),
    };
    let uuid_type = match engine {
        Engine::Postgres => "UUID",
        Engine::MySql => "BINARY(16)",
        _ => "BLOB",
    };
    let (big, charset) = match engine {
        Engine::MySql => ("BIGINT UNSIGNED", "CHARACTER SET utf8mb4"),
        _ => ("BIGINT", ""),
    };
    db.execute(&format!(
        "CREATE TABLE sample (n INTEGER PRIMARY KEY, big {big}, small {small}, txt VARCHAR(60), padded {padded}, uid {uuid_type}) {charset}"
    ))
    .await;
    let mut trigger = Trigger::on("sample")
        .column("n", ColumnType::Integer)
        .column("big", ColumnType::Integer)
        .column("small", ColumnType::Integer)
        .column("txt", ColumnType::Text)
        .column("padded", ColumnType::Text)
        .column("uid", ColumnType::Uuid)
        .columns(["txt"]);
    for column in ["big", "small", "txt", "padded", "uid"] {
        trigger = trigger.tag(format!("{column}-{{n}}-{{{column}}}"));
    }
    install(&db, &trigger).await;
    let mut runner = TestRunner::deterministic();
    // The texts have trailing spaces, both cases, characters that a collation treats as equal, and other visible
    // characters.
    let text = prop_oneof![
        "[aA\u{e4}\u{c4} ]{0,8}",
        "[a-z]{1,4} {0,4}",
        "(a\u{308}|\u{e4}|e\u{301}|\u{e9}|\u{df}|ss){0,3}",
        "\\PC{0,8}",
    ];
    let row = (
        any::<u64>(),
        any::<i16>(),
        proptest::option::weighted(0.9, text.clone()),
        proptest::option::weighted(0.9, text),
        proptest::option::weighted(0.9, any::<[u8; 16]>()),
    );
    let hex = |bytes: &[u8]| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let literal = |text: &Option<String>| match text {
        None => "NULL".to_owned(),
        Some(text) => match engine {
            Engine::Postgres => {
                format!("convert_from('\\x{}'::bytea, 'UTF8')", hex(text.as_bytes()))
            }
            Engine::MySql => format!("CONVERT(X'{}' USING utf8mb4)", hex(text.as_bytes())),
            _ => format!("CAST(X'{}' AS TEXT)", hex(text.as_bytes())),
        },
    };
    let mut expected = BTreeSet::new();
    for n in 0..ROWS {
        let (big, small, txt, padded, uid) = row.new_tree(&mut runner).expect("is made").current();
        let big = match engine {
            Engine::MySql => big.to_string(),
            _ => big.cast_signed().to_string(),
        };
        expected.insert(format!("tag:big-{n}-{big}"));
        expected.insert(format!("tag:small-{n}-{small}"));
        let uid = uid.map(|bytes| {
            let digits = hex(&bytes);
            let parts = [
                &digits[..8],
                &digits[8..12],
                &digits[12..16],
                &digits[16..20],
                &digits[20..],
            ];
            expected.insert(format!("tag:uid-{n}-{}", parts.join("-")));
            match engine {
                Engine::Postgres => format!("'{digits}'::uuid"),
                _ => format!("X'{digits}'"),
            }
        });
        let uid = uid.unwrap_or_else(|| "NULL".to_owned());
        let (txt, padded) = (literal(&txt), literal(&padded));
        db.execute(&format!(
            "INSERT INTO sample VALUES ({n}, {big}, {small}, {txt}, {padded}, {uid})"
        ))
        .await;
    }
    with_pool!(db, pool => {
        let rows = sqlx::query_as::<_, (i32, Option<String>, Option<String>)>("SELECT n, txt, padded FROM sample");
        let rows = rows.fetch_all(&pool).await.expect("are read");
        assert_eq!(rows.len(), ROWS);
        for (n, txt, padded) in rows {
            expected.extend(txt.map(|txt| format!("tag:txt-{n}-{txt}")));
            expected.extend(padded.map(|padded| format!("tag:padded-{n}-{padded}")));
        }
    });
    let written = written(&db).await;
    let missing: Vec<_> = expected.difference(&written).collect();
    let others: Vec<_> = written.difference(&expected).collect();
    assert!(
        missing.is_empty() && others.is_empty(),
        "{missing:?} {others:?}"
    );
}

/// `ON CONFLICT`, `ON DUPLICATE KEY` and `REPLACE`.
async fn insert_that_changes_a_row_names_its_old_and_its_new_values(db: Db) {
    let trigger = products(&db).await;
    install(&db, &trigger).await;
    let both = &[
        "tag:category-5",
        "tag:category-6",
        "tag:product-1",
        "tag:products",
    ][..];
    let upsert = "INSERT INTO product VALUES (1, 6, 'a', 10, 0) ON CONFLICT (id) DO UPDATE SET category_id = 6";
    let replace = "REPLACE INTO product VALUES (1, 6, 'a', 10, 0)";
    let cases = match engine(&db) {
        Engine::Postgres => vec![(upsert, both)],
        Engine::MySql => vec![
            (
                "INSERT INTO product VALUES (1, 6, 'a', 10, 0) ON DUPLICATE KEY UPDATE category_id = 6",
                both,
            ),
            (replace, both),
        ],
        // On SQLite, the row that REPLACE removes fires no trigger, so the old category is not invalidated. The
        // guide says so.
        _ => vec![
            (upsert, both),
            (
                replace,
                &["tag:category-6", "tag:product-1", "tag:products"],
            ),
        ],
    };
    for (change, names) in cases {
        db.execute("DELETE FROM product").await;
        db.execute("INSERT INTO product VALUES (1, 5, 'a', 10, 0)")
            .await;
        written(&db).await;
        db.execute(change).await;
        assert_eq!(written(&db).await, set(names), "{change}");
    }
    if engine(&db) == Engine::Sqlite {
        let change = format!("PRAGMA recursive_triggers = ON; {replace}");
        db.execute("UPDATE product SET category_id = 5").await;
        written(&db).await;
        db.execute(&change).await;
        assert_eq!(written(&db).await, set(both), "{change}");
    }
}

async fn change_that_is_rolled_back_writes_nothing(db: Db) {
    let trigger = products(&db).await;
    install(&db, &trigger).await;
    db.execute("INSERT INTO product VALUES (1, 5, 'a', 10, 0)")
        .await;
    written(&db).await;
    drop(db.uncommitted("UPDATE product SET price = 11").await);
    assert_eq!(written(&db).await, set(&[]));
    let done = db.uncommitted("UPDATE product SET price = 11").await;
    done.commit().await.expect("is committed");
    assert_eq!(written(&db).await.len(), 3);
}

async fn insert_id_and_affected_rows_stay_the_applications(db: Db) {
    db.store().await;
    let key = match engine(&db) {
        Engine::MySql => "BIGINT PRIMARY KEY AUTO_INCREMENT",
        Engine::Postgres => "BIGINT PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY",
        _ => "INTEGER PRIMARY KEY",
    };
    db.execute(&format!("CREATE TABLE product (id {key}, price INTEGER)"))
        .await;
    let trigger = Trigger::on("product")
        .column("id", ColumnType::Integer)
        .tag("product-{id}")
        .list_tag("products")
        .columns(["price"]);
    install(&db, &trigger).await;
    assert_eq!(
        db.execute("INSERT INTO product (price) VALUES (1), (2), (3)")
            .await,
        3
    );
    assert_eq!(
        db.execute("UPDATE product SET price = price + 1 WHERE id < 3")
            .await,
        2
    );
    let returned = "INSERT INTO product (price) VALUES (4) RETURNING id";
    assert_eq!(db.int(returned).await, Some(4));
    assert_eq!(db.execute("DELETE FROM product WHERE id > 2").await, 2);
    let names = written(&db).await;
    assert_eq!(names.len(), 5, "{names:?}");
}

async fn triggers_are_made_again_and_removed(db: Db) {
    let trigger = products(&db).await;
    install(&db, &trigger).await;
    install(&db, &trigger).await;
    db.execute("INSERT INTO product VALUES (1, 5, 'a', 10, 0)")
        .await;
    assert_eq!(written(&db).await.len(), 3);
    for statement in trigger.drop(engine(&db)).expect("is valid") {
        db.execute(&statement).await;
    }
    db.execute("UPDATE product SET price = 11").await;
    assert_eq!(written(&db).await, set(&[]));
}

#[cfg(feature = "postgres")]
perennial_testkit::on_database! {
    postgres_alone = perennial_testkit::Db::postgres();
    many_names_of_one_statement_become_the_beginning_of_the_template
    each_row_of_a_partitioned_table_counts
    columns_without_an_equality_and_strange_names_are_compared
}

#[cfg(feature = "postgres")]
async fn many_names_of_one_statement_become_the_beginning_of_the_template(db: Db) {
    let trigger = products(&db).await;
    install(&db, &trigger.max_names(3)).await;
    let insert = |rows: std::ops::Range<i64>| {
        format!(
            "INSERT INTO product SELECT n, n / 2, 'a', 10, 0 FROM generate_series({}, {}) n",
            rows.start,
            rows.end - 1
        )
    };
    db.execute(&insert(0..3)).await;
    let names = written(&db).await;
    assert!(
        names.contains("tag:product-2") && names.len() == 6,
        "{names:?}"
    );
    db.execute(&insert(3..7)).await;
    let expected = [
        "tag:category-1",
        "tag:category-2",
        "tag:category-3",
        "tag:products",
        "tag_prefix:product-",
    ];
    assert_eq!(written(&db).await, set(&expected));
}

#[cfg(feature = "postgres")]
async fn each_row_of_a_partitioned_table_counts(db: Db) {
    db.store().await;
    db.execute(
        "CREATE TABLE product (id BIGINT, price BIGINT, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE product_low PARTITION OF product FOR VALUES FROM (0) TO (100)",
    )
    .await;
    let trigger = Trigger::on("product")
        .column("id", ColumnType::Integer)
        .tag("product-{id}")
        .list_tag("products")
        .columns(["price"])
        .for_each_row();
    install(&db, &trigger).await;
    db.execute("INSERT INTO product VALUES (1, 10), (2, 10)")
        .await;
    assert_eq!(
        written(&db).await,
        set(&["tag:product-1", "tag:product-2", "tag:products"])
    );
    // By the partition's own name.
    db.execute("UPDATE product_low SET price = 11 WHERE id = 1")
        .await;
    assert_eq!(written(&db).await, set(&["tag:product-1", "tag:products"]));
    db.execute("UPDATE product SET price = price").await;
    assert_eq!(written(&db).await, set(&[]));
}

#[cfg(feature = "postgres")]
async fn columns_without_an_equality_and_strange_names_are_compared(db: Db) {
    db.store().await;
    db.execute(
        r#"CREATE SCHEMA "The shop";
        CREATE TABLE "The shop"."Product ""x""" ("Id of it" BIGINT PRIMARY KEY, data JSON, place POINT, names TEXT[], doc XML)"#,
    )
    .await;
    let trigger = Trigger::on(r#"Product "x""#)
        .schema("The shop")
        .column("Id of it", ColumnType::Integer)
        .tag("product-{Id of it}");
    install(&db, &trigger).await;
    // A table of the same name in another schema has functions of its own.
    db.execute(r#"CREATE TABLE "Product ""x""" ("Id of it" BIGINT PRIMARY KEY)"#)
        .await;
    for schema in ["public", "The shop"] {
        install(&db, &trigger.clone().schema(schema)).await;
    }
    let table = r#""The shop"."Product ""x""""#;
    db.execute(&format!(
        r#"INSERT INTO {table} VALUES (7, '{{"a": 1}}', '(1,2)', '{{a,b}}', '<a/>')"#
    ))
    .await;
    assert_eq!(written(&db).await, set(&["tag:product-7"]));
    for change in [
        r#"data = '{"a": 2}'"#,
        "place = '(1,3)'",
        "names = '{a,c}'",
        "doc = '<b/>'",
    ] {
        db.execute(&format!("UPDATE {table} SET {change}")).await;
        assert_eq!(written(&db).await, set(&["tag:product-7"]), "{change}");
        db.execute(&format!("UPDATE {table} SET {change}")).await;
        assert_eq!(written(&db).await, set(&[]), "{change}");
    }
}
