//! What a migration of a table does to its triggers: it works, or the writer sees an error, or the check tells.

use std::collections::BTreeSet;

use perennial::{
    driver::Engine,
    sql::{ColumnType, Trigger},
};
use perennial_testkit::{Db, on_each_database};

use crate::triggers::{engine, install, set, written};

on_each_database! {
    migration_works_or_is_refused_or_told
}

/// What a write of the table comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// The names are written.
    Named,
    /// Nothing is written.
    Silent,
    /// The writer gets the database's error.
    Fails,
}

/// A migration, with what comes of it.
struct Case {
    statements: &'static [&'static str],
    /// The migration itself is refused.
    is_refused: bool,
    change: &'static str,
    write: Write,
    /// What the check says, or nothing.
    told: &'static str,
}

impl Case {
    fn new(
        statements: &'static [&'static str],
        change: &'static str,
        write: Write,
        told: &'static str,
    ) -> Self {
        Self {
            statements,
            is_refused: false,
            change,
            write,
            told,
        }
    }

    /// A migration that the database refuses, as the trigger reads the column.
    fn refused(statements: &'static [&'static str]) -> Self {
        Self {
            is_refused: true,
            ..Self::new(statements, PRICE, Write::Named, "")
        }
    }
}

const PRICE: &str = "UPDATE product SET price = 11";

const RENAMED: &[&str] = &["ALTER TABLE product RENAME COLUMN price TO cost"];
const COST: &str = "UPDATE product SET cost = 11";
const DROPPED: &[&str] = &["ALTER TABLE product DROP COLUMN price"];
const TEMPLATE_DROPPED: &[&str] = &["ALTER TABLE product DROP COLUMN category"];
const SWAPPED: &[&str] = &[
    "CREATE TABLE swapped AS SELECT * FROM product",
    "ALTER TABLE product RENAME TO before",
    "ALTER TABLE swapped RENAME TO product",
];

fn cases(engine: Engine) -> Vec<Case> {
    use Write::{Fails, Named, Silent};
    let mut cases = vec![
        Case::new(
            &["ALTER TABLE product ADD COLUMN more INTEGER"],
            PRICE,
            Named,
            "",
        ),
        Case::new(
            &["ALTER TABLE product DROP COLUMN visits"],
            PRICE,
            Named,
            "",
        ),
        Case::new(
            &[
                "ALTER TABLE product RENAME TO goods",
                "ALTER TABLE goods RENAME TO product",
            ],
            PRICE,
            Named,
            "",
        ),
        // Triggers go with their table.
        Case::new(
            &["ALTER TABLE product RENAME TO goods"],
            "UPDATE goods SET price = 11",
            Named,
            "is missing",
        ),
    ];
    cases.extend(match engine {
        // When a column is renamed or dropped, SQLite adapts the triggers that use it, or refuses
        // the change.
        Engine::Sqlite => vec![
            Case::new(RENAMED, COST, Named, "no column \"price\""),
            Case::refused(DROPPED),
            Case::refused(TEMPLATE_DROPPED),
            // The procedure of SQLite's documentation.
            Case::new(
                &[
                    "CREATE TABLE new_product (id INTEGER PRIMARY KEY, category INTEGER, price INTEGER, visits INTEGER)",
                    "INSERT INTO new_product SELECT * FROM product",
                    "DROP TABLE product",
                    "ALTER TABLE new_product RENAME TO product",
                ],
                PRICE,
                Silent,
                "is missing",
            ),
        ],
        Engine::Postgres => vec![
            Case::new(RENAMED, COST, Fails, "no column \"price\""),
            Case::new(DROPPED, "DELETE FROM product", Fails, "no column \"price\""),
            Case::new(TEMPLATE_DROPPED, PRICE, Fails, "no column \"category\""),
            Case::new(
                &["ALTER TABLE product ALTER category TYPE NUMERIC(10, 2)"],
                "SELECT 1",
                Silent,
                "has the type numeric",
            ),
            Case::new(&["ALTER TABLE product ALTER category TYPE BIGINT"], PRICE, Named, ""),
            Case::new(
                &["ALTER TABLE product ALTER price TYPE JSON USING to_json(price)"],
                "UPDATE product SET price = '11'",
                Named,
                "",
            ),
            Case::new(&["VACUUM FULL product"], PRICE, Named, ""),
            Case::new(SWAPPED, PRICE, Silent, "is missing"),
        ],
        _ => vec![
            Case::new(RENAMED, COST, Fails, "no column \"price\""),
            Case::new(DROPPED, "UPDATE product SET visits = 1", Fails, "no column \"price\""),
            Case::new(TEMPLATE_DROPPED, PRICE, Fails, "no column \"category\""),
            Case::new(
                &["ALTER TABLE product MODIFY category NUMERIC(10, 2)"],
                "SELECT 1",
                Silent,
                "has the type decimal",
            ),
            Case::new(&["ALTER TABLE product MODIFY category BIGINT"], PRICE, Named, ""),
            Case::new(&["ALTER TABLE product MODIFY price JSON"], PRICE, Named, ""),
            Case::new(&["ALTER TABLE product ENGINE = InnoDB"], PRICE, Named, ""),
            // pt-online-schema-change and gh-ost swap the tables in this way in their last step.
            Case::new(
                &[
                    "CREATE TABLE swapped LIKE product",
                    "INSERT INTO swapped SELECT * FROM product",
                    "RENAME TABLE product TO before_it, swapped TO product",
                ],
                PRICE,
                Silent,
                "is missing",
            ),
        ],
    });
    cases
}

fn trigger() -> Trigger {
    Trigger::on("product")
        .column("id", ColumnType::Integer)
        .column("category", ColumnType::Integer)
        .tag("product-{id}")
        .tag("category-{category}")
        .columns(["price"])
}

async fn migration_works_or_is_refused_or_told(db: Db) {
    db.store().await;
    for case in cases(engine(&db)) {
        let Case {
            statements, change, ..
        } = case;
        for table in ["product", "goods", "before", "before_it", "swapped"] {
            let table = match engine(&db) {
                Engine::MySql => format!("`{table}`"),
                _ => format!("\"{table}\""),
            };
            db.execute(&format!("DROP TABLE IF EXISTS {table}")).await;
        }
        db.execute(
            "CREATE TABLE product (id INTEGER PRIMARY KEY, category INTEGER, price INTEGER, visits INTEGER)",
        )
        .await;
        db.execute("INSERT INTO product VALUES (1, 5, 10, 0)").await;
        install(&db, &trigger()).await;
        // All statements run on one connection, because another connection to SQLite may not have
        // noticed yet that a table is gone.
        let is_refused = db.try_execute(&statements.join(";")).await.is_err();
        assert_eq!(is_refused, case.is_refused, "{statements:?}");
        let done = db.try_execute(change).await;
        let names = written(&db).await;
        let write = match done {
            Err(_) => Write::Fails,
            Ok(_) if names == BTreeSet::new() => Write::Silent,
            Ok(_) => Write::Named,
        };
        assert_eq!(write, case.write, "{statements:?}: {change}");
        if write == Write::Named {
            assert_eq!(
                names,
                set(&["tag:product-1", "tag:category-5"]),
                "{statements:?}"
            );
        }
        let faults = trigger()
            .check(&db.database().await)
            .await
            .expect("answers");
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        let is_told = faults.iter().any(|fault| fault.contains(case.told));
        assert_eq!(is_told, !case.told.is_empty(), "{statements:?}: {faults:?}");
    }
}
