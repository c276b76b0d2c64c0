//! On PostgreSQL, arguments are written into the text of a statement: no byte of a value becomes SQL, whatever
//! the session's settings and the encodings are. See `docs/design/0003`.

use perennial_store::sql::{dialect::literal, run::Arg};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRng, TestRunner},
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use perennial_testkit::Db;

/// The texts of one statement.
const AT_ONCE: usize = 64;

/// Texts that would be SQL in a literal that is written carelessly.
const CRAFTED: [&str; 12] = [
    "'; DROP TABLE perennial_lock; --",
    "\\'; SELECT pg_sleep(60); --",
    "\\\\' || current_user || '",
    "$$; SELECT 1; $$",
    "$1",
    "\u{5c}",
    // In GBK, SJIS and BIG5, the second byte of a character may be that of a backslash, which would
    // then no longer escape the quote after it.
    "\u{bf}'",
    "\u{bf}\\'",
    "\u{8fd}\u{5c}'",
    "\u{2019}\u{ff07}\u{2bc}",
    "\u{feff}\u{202e}'\u{0}",
    "%s {p} {names} ?",
];

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("connects")
}

async fn set(connection: &mut PgConnection, setting: &str) {
    let set = format!("SET {setting}");
    let done = connection.execute(sqlx::raw_sql(AssertSqlSafe(set))).await;
    done.expect("is set");
}

/// Returns the bytes that the server reads in each literal, in UTF-8; an error if it refuses one of them.
async fn read(
    connection: &mut PgConnection,
    arguments: &[Arg<'_>],
) -> Result<Vec<Vec<u8>>, sqlx::Error> {
    let columns = arguments.iter().map(|argument| match argument {
        Arg::Bytes(_) => literal(*argument),
        _ => format!("convert_to({}, 'UTF8')", literal(*argument)),
    });
    let columns: Vec<_> = columns.collect();
    let sql = format!("SELECT {}", columns.join(", "));
    let row = connection
        .fetch_one(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await?;
    assert_eq!(row.len(), arguments.len());
    (0..arguments.len())
        .map(|column| row.try_get_unchecked(column))
        .collect()
}

/// The encodings that a client of a database in UTF-8 may choose.
async fn encodings(connection: &mut PgConnection) -> Vec<String> {
    let sql = "SELECT DISTINCT pg_encoding_to_char(conforencoding) FROM pg_conversion
        WHERE contoencoding = pg_char_to_encoding('UTF8') UNION SELECT 'UTF8' UNION SELECT 'SQL_ASCII'";
    let rows = connection.fetch_all(sql).await.expect("are listed");
    let names = rows.iter().map(|row| row.get(0));
    names.collect()
}

fn values<T>(strategy: &impl Strategy<Value = T>) -> Vec<T> {
    let rng = TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut value = || strategy.new_tree(&mut runner).expect("is made").current();
    (0..AT_ONCE).map(|_| value()).collect()
}

/// A text of any characters, and of many that mean something in SQL.
fn any_text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        any::<char>(),
        prop::sample::select(vec![
            '\'', '\\', '"', '$', '\u{bf}', ';', '-', 'E', 'U', '\n'
        ]),
    ];
    let text = prop::collection::vec(character.prop_filter("no NUL", |c| *c != '\0'), 0..200);
    text.prop_map(String::from_iter)
}

#[tokio::test]
async fn each_text_and_each_byte_comes_back_in_every_session() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let mut connection = connect(db.url()).await;
    let encodings = encodings(&mut connection).await;
    assert!(encodings.len() > 30, "{encodings:?}");
    let mut texts = values(&any_text());
    texts.extend(CRAFTED.map(|text| text.replace('\0', "")));
    let bytes = values(&prop::collection::vec(any::<u8>(), 0..200));
    let arguments = texts.iter().map(|text| Arg::Text(text));
    let arguments = arguments.chain(bytes.iter().map(|bytes| Arg::Bytes(bytes)));
    let arguments: Vec<_> = arguments.collect();
    let expected = texts.iter().map(|text| text.as_bytes().to_vec());
    let expected: Vec<_> = expected.chain(bytes.iter().cloned()).collect();
    for encoding in &encodings {
        for conforming in ["on", "off"] {
            let mut connection = connect(db.url()).await;
            for setting in [
                &*format!("standard_conforming_strings = {conforming}"),
                "backslash_quote = on",
                "escape_string_warning = off",
                // The client does not notice this last setting.
                &format!("client_encoding = '{encoding}'"),
            ] {
                set(&mut connection, setting).await;
            }
            let read = read(&mut connection, &arguments).await;
            let read = read.unwrap_or_else(|error| panic!("{encoding} {conforming}: {error}"));
            assert!(read == expected, "{encoding} {conforming}");
        }
    }
}

#[tokio::test]
async fn each_character_comes_back() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let characters: Vec<_> = ('\u{1}'..=char::MAX).collect();
    let mut connection = connect(db.url()).await;
    for (encoding, conforming) in [
        ("UTF8", "on"),
        ("UTF8", "off"),
        ("GBK", "off"),
        ("GBK", "on"),
    ] {
        set(
            &mut connection,
            &format!("standard_conforming_strings = {conforming}"),
        )
        .await;
        set(&mut connection, &format!("client_encoding = '{encoding}'")).await;
        for part in characters.chunks(1 << 16) {
            let texts = part.chunks(1 << 12).map(String::from_iter);
            let texts: Vec<_> = texts.collect();
            let arguments: Vec<_> = texts.iter().map(|text| Arg::Text(text)).collect();
            let read = read(&mut connection, &arguments).await.expect("is read");
            let same = read
                .iter()
                .zip(&texts)
                .all(|(read, text)| *read == text.as_bytes());
            assert!(same, "{encoding}: from {:?} on", part[0]);
        }
    }
}

/// What a database cannot store is refused, and is not stored as something else.
#[tokio::test]
async fn text_that_a_database_cannot_store_is_refused() {
    let Some(db) = Db::postgres().await else {
        return;
    };
    let mut connection = connect(db.url()).await;
    read(&mut connection, &[Arg::Text("a\0b")])
        .await
        .expect_err("has a NUL");
    for (encoding, fits) in [("LATIN1", "\u{e4}'\\"), ("SQL_ASCII", "a'\\")] {
        let name = format!("{}_{}", db.name(), encoding.to_lowercase());
        db.execute(&format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ))
        .await;
        let url = db.url().replace(db.name(), &name);
        let mut connection = connect(&url).await;
        let text = format!(
            "SELECT octet_length({}), {} = ({})",
            literal(Arg::Text(fits)),
            literal(Arg::Text("\\")),
            "E'\\\\'"
        );
        let row = connection
            .fetch_one(sqlx::raw_sql(AssertSqlSafe(text)))
            .await;
        let row = row.expect("fits");
        assert_eq!(row.get::<i32, _>(0), 3, "{encoding}");
        assert!(row.get::<bool, _>(1));
        let text = format!("SELECT {}", literal(Arg::Text("\u{4e00}")));
        let refused = connection
            .fetch_one(sqlx::raw_sql(AssertSqlSafe(text)))
            .await;
        refused.expect_err("does not fit");
        drop(connection);
        db.execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
            .await;
    }
}
