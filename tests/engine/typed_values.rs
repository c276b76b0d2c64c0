//! Typed values, placeholders, and what generators may return.

use std::{convert::Infallible, time::Duration};

use perennial::{DAY, ErrorKind, Perennial, Refresh, event::Outcome};
use serde::{Deserialize, Serialize};

const DAILY: Refresh = Refresh::every(DAY);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Book {
    title: String,
    stars: f64,
}

fn book() -> Book {
    Book {
        title: "Middlemarch".into(),
        stars: 4.5,
    }
}

/// The type after a change: an old value does not decode.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Rated {
    title: String,
    rating: u8,
}

fn rated() -> Rated {
    Rated {
        title: "Middlemarch".into(),
        rating: 9,
    }
}

fn fine<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

fn open(database: &perennial_testing::Database) -> Perennial {
    database.open(Perennial::builder()).expect("opens")
}

#[tokio::test(start_paused = true)]
async fn a_value_of_an_older_type_is_generated_anew() {
    let database = perennial_testing::Database::new();
    let (old, new) = (open(&database), open(&database));
    old.value::<Book, _, _>("book", DAILY, async || fine(book()))
        .await
        .expect("is made");
    let read = new
        .value::<Rated, _, _>("book", DAILY, async || fine(rated()))
        .await;
    assert_eq!(*read.expect("is made"), rated());
    // The new process keeps its own value in memory, and leaves the stored value to the old
    // process.
    let apart = new.stats().regenerations(Outcome::KeptApart);
    assert_eq!((database.generations("book"), apart), (1, 1));
    let kept = old
        .value::<Book, _, _>("book", DAILY, async || fine(book()))
        .await;
    assert_eq!(*kept.expect("a hit"), book());
    assert_eq!(database.generations("book"), 1);

    // Using two types for one key within one process is a defect of the program.
    let error = new
        .value::<Book, _, _>("book", DAILY, async || fine(book()))
        .await;
    let error = error.expect_err("another type");
    assert_eq!(error.kind(), ErrorKind::Generator);
    let cause = std::error::Error::source(&error)
        .expect("a cause")
        .to_string();
    assert!(cause.contains("perhaps two types share its key"), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_value_are_errors_of_the_generator() {
    let site = open(&perennial_testing::Database::new());
    let failed = site.value::<Book, _, _>("a", DAILY, async || Err::<Book, _>("no database"));
    assert_eq!(
        failed.await.expect_err("fails").kind(),
        ErrorKind::Generator
    );
    // The keys of a JSON object have to be text.
    type Odd = std::collections::BTreeMap<(u8, u8), u8>;
    let odd = site.value::<Odd, _, _>("b", DAILY, async || fine(Odd::from([((1, 2), 3)])));
    assert_eq!(
        odd.await.expect_err("cannot be encoded").kind(),
        ErrorKind::Generator
    );
    let slash = site.value::<Book, _, _>("/book", DAILY, async || fine(book()));
    assert_eq!(
        slash.await.expect_err("no such key").kind(),
        ErrorKind::Invalid
    );
}

#[tokio::test(start_paused = true)]
async fn a_placeholder_stands_in_for_the_first_version() {
    let database = perennial_testing::Database::new();
    let site = open(&database);
    let ask = async |site: &Perennial| {
        let generate = async || {
            tokio::time::sleep(Duration::from_secs(20)).await;
            fine("the list")
        };
        let content = site.content_or("list", DAILY, "wait", generate);
        content.await.expect("something").to_string()
    };
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(ask(&site).await, "wait");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "no one waits");
    perennial_testing::advance(Duration::from_secs(21)).await;
    assert_eq!(ask(&site).await, "the list");
    assert_eq!(database.generations("list"), 1);
    // Another process reads the existing version.
    assert_eq!(ask(&open(&database)).await, "the list");

    let failing = async || Err::<&str, _>("no database");
    for _ in 0..2 {
        let content = site.content_or("fails", DAILY, "instead", failing).await;
        assert_eq!(content.expect("the placeholder").text(), "instead");
        perennial_testing::advance(Duration::from_secs(1)).await;
    }
    let wrong = site.content_or("/key", DAILY, "instead", failing).await;
    assert_eq!(wrong.expect_err("no such key").kind(), ErrorKind::Invalid);

    // The database does not answer: the placeholder comes after half a second.
    database.hang();
    let begun = tokio::time::Instant::now();
    let content = site.content_or("hangs", DAILY, "instead", async || fine("made"));
    assert_eq!(content.await.expect("the placeholder").text(), "instead");
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn generators_return_bytes_of_any_kind() {
    let site = open(&perennial_testing::Database::new());
    let from_text = site.content("a", DAILY, async || fine("text")).await;
    let from_string = site.content("b", DAILY, async || fine(String::from("text")));
    let from_bytes = site.content("c", DAILY, async || fine(vec![0xff, 0])).await;
    for content in [from_text, from_string.await] {
        let content = content.expect("is made");
        assert_eq!(content.as_ref(), b"text");
        assert_eq!(&*content.into_bytes(), b"text");
    }
    let bytes = from_bytes.expect("is made");
    assert_eq!(bytes.as_ref(), [0xff, 0]);
    assert_eq!(bytes.text(), "\u{fffd}\0");
}

/// JSON has no NaN: it is encoded as `null`, which is no number.
#[tokio::test(start_paused = true)]
async fn a_value_whose_encoding_does_not_decode_never_replaces_a_value() {
    let database = perennial_testing::Database::new();
    let site = open(&database);
    let value = async |number: f64| {
        let made = site.value::<f64, _, _>("number", DAILY, async move || fine(number));
        made.await.map(|number| *number)
    };
    let error = value(f64::NAN).await.expect_err("cannot be decoded");
    assert_eq!(error.kind(), ErrorKind::Generator, "{error}");
    // The key recovers after the cooldown, and not after the interval.
    perennial_testing::advance(Duration::from_secs(31)).await;
    assert_eq!(value(1.5).await.ok(), Some(1.5));
    site.invalidate("number").await.expect("is invalidated");
    for _ in 0..3 {
        assert_eq!(value(f64::NAN).await.ok(), Some(1.5));
    }
    perennial_testing::advance(Duration::from_secs(31)).await;
    assert_eq!(value(2.5).await.ok(), Some(2.5));
}
