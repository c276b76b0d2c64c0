//! The shop: an axum site over one database, whose lists regrow by themselves.
//!
//! The home page, the books and the orders are live. Perennial stores `/best-sellers`,
//! `/new-releases` and the sidebar. The first request after the interval regenerates them, once for
//! all copies of the shop on the same database. The lists follow the table of books, too: a trigger makes
//! them stale in the transaction that changes a book, whoever changes it. They greet each visitor by name
//! all the same: the name is a hole of the stored page.

use std::{
    error::Error,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Router,
    extract::{Path, RawQuery, State},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use humantime::{format_duration, format_rfc3339_seconds};
use perennial::{
    Key, Perennial, Refresh,
    driver::Engine,
    layer::Holes,
    locks::Locks,
    sql::{Database, Trigger},
};
use sqlx::{AnyPool, AssertSqlSafe};

use crate::options::Options;
use example_common as common;

/// Opens the shop, with its routes as `finish` returns them.
pub(crate) async fn run(
    options: &Options,
    finish: impl FnOnce(&Perennial, Router) -> Router,
) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await?;
    // These are the shop's own tables, and it uses them through sqlx's pool for any kind of
    // database. If your application uses only one kind (`SqlitePool`), it can share its pool with
    // the site: `Perennial::with_pool(pool)`.
    sqlx::any::install_default_drivers();
    let database = Database::open(&options.database).await?;
    let locks = Locks::with_pool(database.clone()).await?;
    let pool = AnyPool::connect(&options.database).await?;
    furnish(&pool, &locks, &database).await?;
    let site = Perennial::builder()
        .trigger(books_trigger())
        .read_own_writes();
    let site = site.with_pool(database).await?;

    let best = Refresh::every(options.best_sellers_every);
    let new = Refresh::every(options.new_releases_every);
    let shop = Shop {
        pool: pool.clone(),
        site: site.clone(),
        // The sidebar must not delay the page.
        sidebar: best.clone().in_background(),
        slow: options.slow,
    };
    // The key has no query, so that visitors cannot invent pages.
    let list = |policy| {
        let layer = site.layer(&policy).key(Key::path());
        layer.tag("catalogue").hole("greeting", greeting)
    };
    let app = Router::new()
        .route("/", get(home))
        .route("/books/{id}", get(book))
        .route("/buy/{id}", post(buy))
        .route("/hello", post(hello))
        // The trigger names the tag of the lists. The layer lets the visitor who added the book see the new
        // lists at once.
        .route(
            "/books",
            post(add_book).layer(site.invalidate_by_response_tags()),
        )
        .route("/best-sellers", get(best_sellers).layer(list(best)))
        .route("/new-releases", get(new_releases).layer(list(new)))
        .fallback(async || Failure::NotFound)
        .with_state(shop);
    let app = finish(&site, app);

    introduce(options, listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    // No visitor is left. Running regenerations end, so that the next process need not wait for
    // their leases.
    site.shutdown().await;
    pool.close().await;
    Ok(())
}

fn introduce(options: &Options, address: SocketAddr) {
    let next = SocketAddr::new(address.ip(), address.port().wrapping_add(1));
    common::print(format_args!(
        "The bookshop is open at http://{address}/ (the orders that it begins with are made up).

Buy a book; the best-sellers know of it when they are {best} old, not before:
    curl -X POST http://{address}/buy/1
    curl http://{address}/best-sellers
Add a book; the new releases know of it within a second, in all copies:
    curl -d 'title=The+Secret+of+Roots&author=You&year=2026' http://{address}/books
    curl http://{address}/new-releases
Change a price by SQL alone; the lists show it within a second, in all copies, as the table has a trigger:
    UPDATE books SET price = 500 WHERE id = 42
Start a second copy; it is the same site:
    cargo run --release -p bookshop {features}-- --shop --database {database} --listen {next}
Start both with --slow 20s --best-sellers-every 1m, and reload in two windows: one waits for the new list, at most 1 s, and the
other has the old one at once. Kill the copy that generates: within 15 s the other takes over.
    kill -9 {id}
",
        best = format_duration(options.best_sellers_every),
        features = match options.database.split(':').next() {
            Some("postgres" | "postgresql") => "--features postgres ",
            Some("mysql" | "mariadb") => "--features mysql ",
            _ => "",
        },
        database = common::without_password(&options.database),
        id = std::process::id(),
    ));
}

/// Makes and fills the tables once. Several copies may start at once: a lock admits one at a time.
async fn furnish(pool: &AnyPool, locks: &Locks, database: &Database) -> Result<(), Box<dyn Error>> {
    let lease = loop {
        match locks.try_lock("bookshop/furnish").await? {
            Some(lease) => break lease,
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    for table in SCHEMA {
        sqlx::query(table).execute(pool).await?;
    }
    let books: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM books")
        .fetch_one(pool)
        .await?;
    if books == 0 {
        // No text but our own.
        let books = (1..).zip(CATALOGUE).map(|(id, (title, author, year))| {
            let [title, author] = [title, author].map(|text| text.replace('\'', "''"));
            let price = 799 + id * 137 % 1500;
            format!("({id}, '{title}', '{author}', {year}, {price})")
        });
        let books = books.collect::<Vec<_>>().join(", ");
        let books = format!("INSERT INTO books (id, title, author, year, price) VALUES {books}");
        // The orders that a new shop begins with. They are always the same: one for every three
        // hours, going back from now.
        let now = now();
        let orders = (0..300).map(|n| {
            let book = 1 + (n % 7 * 5 + n % 11 * n % 13) % CATALOGUE.len();
            format!("({book}, {})", now - 10_800 * n as i64)
        });
        let orders = orders.collect::<Vec<_>>().join(", ");
        let orders = format!("INSERT INTO orders (book, bought_at) VALUES {orders}");
        let mut transaction = pool.begin().await?;
        for sql in [books, orders] {
            let insert = sqlx::query(AssertSqlSafe(sql));
            insert.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
    }
    // In a real shop this is a migration: `perennial triggers` prints it.
    if !books_trigger().check(database).await?.is_empty() {
        let mut connection = pool.acquire().await?;
        let engine = match connection.backend_name() {
            "PostgreSQL" => Engine::Postgres,
            "MySQL" => Engine::MySql,
            _ => Engine::Sqlite,
        };
        for statement in books_trigger().create(engine)? {
            let statement = sqlx::raw_sql(AssertSqlSafe(statement));
            statement.execute(&mut *connection).await?;
        }
    }
    Ok(lease.release().await?)
}

const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS books (
        id BIGINT PRIMARY KEY, title VARCHAR(200) NOT NULL, author VARCHAR(200) NOT NULL, year BIGINT NOT NULL,
        price BIGINT NOT NULL DEFAULT 1000
    )",
    "CREATE TABLE IF NOT EXISTS orders (book BIGINT NOT NULL REFERENCES books (id), bought_at BIGINT NOT NULL)",
];

/// A change of what the lists show makes them stale.
fn books_trigger() -> Trigger {
    let shown = ["title", "author", "year", "price"];
    Trigger::on("books").list_tag("catalogue").columns(shown)
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

#[derive(Clone)]
struct Shop {
    pool: AnyPool,
    site: Perennial,
    sidebar: Refresh,
    slow: Duration,
}

struct Book {
    id: i64,
    title: String,
    author: String,
    year: i64,
    /// In cents.
    price: i64,
    sold: i64,
}

/// The greatest age of the orders that count, in seconds.
const LATELY: i64 = 30 * 86_400;

impl Shop {
    /// Returns books with the number of their recent sales: all of them, or those that the rest of
    /// the statement selects.
    async fn books(&self, rest: &str) -> Result<Vec<Book>, sqlx::Error> {
        // Each kind of database writes the place of an argument in its own way. A number is harmless, so it
        // stands in the SQL itself.
        let sales = format!(
            "SELECT id, title, author, year, price, COUNT(book) AS sold
            FROM books LEFT JOIN orders ON book = id AND bought_at > {}
            GROUP BY id, title, author, year, price {rest}",
            now() - LATELY
        );
        let rows = sqlx::query_as::<_, (i64, String, String, i64, i64, i64)>(AssertSqlSafe(sales));
        let rows = rows.fetch_all(&self.pool).await?;
        let books = rows.into_iter();
        let books = books.map(|(id, title, author, year, price, sold)| Book {
            id,
            title,
            author,
            year,
            price,
            sold,
        });
        Ok(books.collect())
    }

    /// Generates a list as HTML, with the time and the process of the generation.
    async fn list(&self, name: &str, rest: &str) -> Result<String, sqlx::Error> {
        tracing::info!(name, "generating");
        let began = Instant::now();
        tokio::time::sleep(self.slow).await;
        let books = self.books(rest).await?;
        let took = began.elapsed();
        tracing::info!(name, ?took, "generated");
        let items = books.iter().map(item).collect::<String>();
        let list = if books.is_empty() {
            "<p>Nobody has bought a book lately. Be the first!</p>".to_owned()
        } else {
            format!(r#"<ol class="list">{items}</ol>"#)
        };
        let ms = took.as_secs_f64() * 1e3;
        let now = format_rfc3339_seconds(SystemTime::now());
        let id = std::process::id();
        Ok(format!(
            r#"{list}<p class="made">Generated at <time>{now}</time> in {ms:.1} ms by process {id}.</p>"#
        ))
    }

    async fn sidebar(&self) -> String {
        let shop = self.clone();
        let top = "HAVING COUNT(book) > 0 ORDER BY sold DESC, title, id LIMIT 5";
        let generate = async move || shop.list("top 5", top).await;
        let content = self.site.content("sidebar/top-5", &self.sidebar, generate);
        match content.await {
            Ok(list) => format!("<aside><h2>Top 5 of 30 days</h2>{list}</aside>"),
            // A page without its sidebar is better than none.
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "there is no sidebar");
                String::new()
            }
        }
    }
}

/// Greets a visitor by the name in a cookie: for pages that are made for one visitor, and for the holes of those
/// that are stored.
fn greeting_of(headers: &HeaderMap) -> String {
    let cookies = headers.get_all(header::COOKIE).iter();
    let pairs = cookies
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    let name = pairs
        .filter_map(|pair| pair.trim().strip_prefix("visitor="))
        .next();
    let name = name.and_then(|name| form_urlencoded::parse(name.as_bytes()).next());
    match name {
        Some((name, _)) => format!("Hello, {name}!"),
        None => "Hello!".to_owned(),
    }
}

async fn greeting(visitor: Parts) -> String {
    greeting_of(&visitor.headers)
}

/// A form with the visitor's name.
async fn hello(form: String) -> Result<Response, Failure> {
    let mut fields = form_urlencoded::parse(form.as_bytes());
    let name = fields
        .find(|(field, _)| field == "name")
        .map(|(_, name)| name.trim().to_owned());
    let name = name.filter(|name| (1..=50).contains(&name.chars().count()));
    let name = form_urlencoded::byte_serialize(name.ok_or(Failure::Nameless)?.as_bytes())
        .collect::<String>();
    let cookie = format!("visitor={name}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax");
    Ok((
        [(header::SET_COOKIE, cookie)],
        Redirect::to("/new-releases"),
    )
        .into_response())
}

async fn home(State(shop): State<Shop>, headers: HeaderMap) -> Result<Html<String>, Failure> {
    let books = shop.books("ORDER BY title, id").await?;
    let books: String = books.iter().map(card).collect();
    let main = format!(r#"<h1>All our books</h1><ul class="shelf">{books}</ul>"#);
    let greeting = escape(&greeting_of(&headers));
    Ok(page(
        "All our books",
        &greeting,
        &main,
        &shop.sidebar().await,
    ))
}

const THANKS: &str =
    r#"<p class="thanks">Thank you! The lists will know of it when they are made anew.</p>"#;

async fn book(
    State(shop): State<Shop>,
    Path(id): Path<i64>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Html<String>, Failure> {
    let books = shop.books(&format!("HAVING id = {id}")).await?;
    let book = books.into_iter().next().ok_or(Failure::NotFound)?;
    let thanks = query
        .filter(|query| query == "thanks")
        .map_or("", |_| THANKS);
    let main = format!(
        r#"{thanks}<ul class="shelf">{}</ul><p>Sold in the last 30 days, at this moment: {}</p>"#,
        card(&book),
        book.sold,
    );
    let greeting = escape(&greeting_of(&headers));
    Ok(page(&book.title, &greeting, &main, &shop.sidebar().await))
}

async fn buy(State(shop): State<Shop>, Path(id): Path<i64>) -> Result<Redirect, Failure> {
    let now = now();
    let order =
        format!("INSERT INTO orders (book, bought_at) SELECT id, {now} FROM books WHERE id = {id}");
    let order = sqlx::query(AssertSqlSafe(order));
    let done = order.execute(&shop.pool).await?;
    match done.rows_affected() {
        0 => Err(Failure::NotFound),
        _ => Ok(Redirect::to(&format!("/books/{id}?thanks"))),
    }
}

/// A form with a title, an author and a year.
async fn add_book(State(shop): State<Shop>, form: String) -> Result<Redirect, Failure> {
    let field = |name: &str| {
        let mut fields = form_urlencoded::parse(form.as_bytes());
        let text = fields.find(|(it, _)| it == name)?.1.trim().to_owned();
        let fits = (1..=200).contains(&text.chars().count()) && !text.contains(char::is_control);
        fits.then_some(text)
    };
    let (Some(title), Some(author)) = (field("title"), field("author")) else {
        return Err(Failure::Incomplete);
    };
    let year: i64 = field("year")
        .and_then(|year| year.parse().ok())
        .filter(|year| (1..=9999).contains(year))
        .ok_or(Failure::Incomplete)?;
    let mut connection = shop.pool.acquire().await?;
    let [first, second] = match connection.backend_name() {
        "MySQL" => ["?", "?"],
        _ => ["$1", "$2"],
    };
    let insert = format!(
        "INSERT INTO books (id, title, author, year) SELECT MAX(id) + 1, {first}, {second}, {year} FROM books"
    );
    let insert = sqlx::query(AssertSqlSafe(insert)).bind(title).bind(author);
    insert.execute(&mut *connection).await?;
    Ok(Redirect::to("/new-releases"))
}

async fn best_sellers(State(shop): State<Shop>, holes: Holes) -> Result<Html<String>, Failure> {
    let best = "HAVING COUNT(book) > 0 ORDER BY sold DESC, title, id LIMIT 20";
    let list = shop.list("best-sellers", best).await?;
    let main = format!(
        "<h1>Best-sellers</h1><p>By the orders of the last 30 days; in a tie, by title.</p>{list}"
    );
    Ok(page("Best-sellers", &holes.text("greeting"), &main, ""))
}

async fn new_releases(State(shop): State<Shop>, holes: Holes) -> Result<Html<String>, Failure> {
    let list = shop
        .list("new releases", "ORDER BY year DESC, title, id LIMIT 15")
        .await?;
    let main = format!(
        "<h1>New releases</h1><p>The newest first; those of a year by title.</p>{list}{NEW_BOOK}{NAME}"
    );
    Ok(page("New releases", &holes.text("greeting"), &main, ""))
}

/// The answer to a visitor in place of a page.
enum Failure {
    NotFound,
    Incomplete,
    Nameless,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, title) = match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "We don't have that"),
            Self::Incomplete => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "A book has a title and an author of up to 200 characters, and a year",
            ),
            Self::Nameless => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "A name has up to 50 characters",
            ),
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "Something broke here")
            }
        };
        let main = format!(r#"<h1>{title}</h1><p><a href="/">All our books</a></p>"#);
        (status, page(title, "", &main, "")).into_response()
    }
}

/// The catalogue's form. A real shop would require a login.
const NEW_BOOK: &str = r#"<form class="new" method="post" action="/books"><h2>Add a book</h2>
<input name="title" placeholder="Title" required maxlength="200"> <input name="author" placeholder="Author" required maxlength="200">
<input name="year" type="number" placeholder="Year" required> <button>Add</button></form>"#;

const NAME: &str = r#"<form class="new" method="post" action="/hello"><h2>Who are you?</h2>
<input name="name" placeholder="Your name" required maxlength="50"> <button>Greet me</button></form>"#;

/// Returns a page. The greeting is HTML already, or a mark.
fn page(title: &str, greeting: &str, main: &str, aside: &str) -> Html<String> {
    Html(format!(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · The Perennial Bookshop</title>
<style>{STYLE}</style>
<header><a href="/">The Perennial Bookshop</a>
<nav><span>{greeting}</span> <a href="/best-sellers">Best-sellers</a> <a href="/new-releases">New releases</a></nav></header>
<div><main>{main}</main>{aside}</div>
<footer>A demonstration: its first 300 orders are made up, nothing is charged, nothing is sent.</footer>
</html>
"#,
        title = escape(title),
    ))
}

fn card(book: &Book) -> String {
    let Book {
        id, year, price, ..
    } = book;
    let (title, author) = (escape(&book.title), escape(&book.author));
    let price = euros(*price);
    let hue = id * 47 % 360;
    format!(
        r#"<li><a class="cover" style="--hue: {hue}" href="/books/{id}">{title}</a>
<span>{author}, {year}, {price}</span> <form method="post" action="/buy/{id}"><button>Buy</button></form></li>
"#
    )
}

fn item(book: &Book) -> String {
    let Book {
        id,
        year,
        price,
        sold,
        ..
    } = book;
    let (title, author) = (escape(&book.title), escape(&book.author));
    let price = euros(*price);
    format!(
        r#"<li><a href="/books/{id}">{title}</a> <span>{author}, {year} · {price} · <b>{sold} sold</b></span></li>
"#
    )
}

/// A price as the pages show it.
pub(crate) fn euros(cents: i64) -> String {
    format!("€\u{a0}{}.{:02}", cents / 100, cents % 100)
}

/// Text as HTML, also within double quotes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = "
:root { color-scheme: light dark; --quiet: light-dark(#666057, #a39c90); --line: light-dark(#e2dccf, #3a362f);
  --accent: light-dark(#1f6b4a, #7fd0a8); --card: light-dark(#fff, #24211c);
  font: 16px/1.5 system-ui, sans-serif; color: light-dark(#25221d, #ece6da); background: light-dark(#faf7f1, #1a1814) }
body { max-width: 66rem; margin: auto; padding: 0 1.25rem }
a { color: var(--accent); text-decoration: none } a:hover { text-decoration: underline }
header, body > div, nav { display: flex; flex-wrap: wrap; gap: .25rem 2rem }
header { justify-content: space-between; align-items: baseline; padding: 1.25rem 0; border-bottom: 1px solid var(--line) }
header > a { font-size: 1.4rem; color: inherit } header > a, h1, h2, .cover { font-family: Georgia, serif; font-weight: 500 }
h1 { margin: 1.5rem 0 .5rem } h2 { font-size: 1.2rem; margin: 0 }
body > div { align-items: start } main { flex: 1000 1 30rem; min-width: 0 }
aside { flex: 1 1 16rem; margin-top: 1.9rem; padding: 1rem 1.25rem .25rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem }
.shelf { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1.5rem 1.25rem; padding: 0 }
.shelf li { display: flex; flex-direction: column; gap: .4rem; max-width: 12rem } form { margin-top: auto }
.cover { display: grid; place-content: center; box-sizing: border-box; aspect-ratio: 3 / 4; padding: 0 .75rem 0 1.25rem; text-align: center;
  font-size: 1.1rem; line-height: 1.3; color: #fff; border-radius: .15rem .4rem .4rem .15rem;
  background: linear-gradient(90deg, hsl(var(--hue) 35% 24%) 6%, hsl(var(--hue) 35% 33%) 7%) }
.list { padding-left: 1.8rem; columns: 18rem } .list li { padding: .3rem 0; break-inside: avoid }
.list span { display: block } .list b { font-weight: 500 } .list li::marker, span, .made, footer { color: var(--quiet) }
span, .made, footer { font-size: .9rem }
button { font: inherit; padding: .2rem 1rem; color: var(--accent); background: none; border: 1px solid; border-radius: 1rem }
.new { margin-top: 2rem } input { font: inherit; padding: .2rem .6rem; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: .3rem }
.thanks { padding: .75rem 1rem; border-left: .25rem solid var(--accent); background: var(--card) }
footer { margin: 2rem 0; padding-top: 1rem; border-top: 1px solid var(--line) }
";

/// Title, author, and the year of the first publication in any language.
const CATALOGUE: [(&str, &str, i64); 42] = [
    ("Pride and Prejudice", "Jane Austen", 1813),
    ("Frankenstein", "Mary Shelley", 1818),
    ("Jane Eyre", "Charlotte Brontë", 1847),
    ("Wuthering Heights", "Emily Brontë", 1847),
    ("Moby-Dick", "Herman Melville", 1851),
    ("Alice's Adventures in Wonderland", "Lewis Carroll", 1865),
    ("Dracula", "Bram Stoker", 1897),
    ("Mrs Dalloway", "Virginia Woolf", 1925),
    ("The Great Gatsby", "F. Scott Fitzgerald", 1925),
    ("Brave New World", "Aldous Huxley", 1932),
    ("The Hobbit", "J. R. R. Tolkien", 1937),
    ("Nineteen Eighty-Four", "George Orwell", 1949),
    ("Fahrenheit 451", "Ray Bradbury", 1953),
    ("Things Fall Apart", "Chinua Achebe", 1958),
    ("To Kill a Mockingbird", "Harper Lee", 1960),
    ("Catch-22", "Joseph Heller", 1961),
    ("A Wizard of Earthsea", "Ursula K. Le Guin", 1968),
    ("Slaughterhouse-Five", "Kurt Vonnegut", 1969),
    ("Invisible Cities", "Italo Calvino", 1972),
    ("The C Programming Language", "Kernighan & Ritchie", 1978),
    ("Gödel, Escher, Bach", "Douglas R. Hofstadter", 1979),
    ("The Name of the Rose", "Umberto Eco", 1980),
    ("Midnight's Children", "Salman Rushdie", 1981),
    ("Neuromancer", "William Gibson", 1984),
    ("The Handmaid's Tale", "Margaret Atwood", 1985),
    ("Beloved", "Toni Morrison", 1987),
    ("The Remains of the Day", "Kazuo Ishiguro", 1989),
    ("Small Gods", "Terry Pratchett", 1992),
    ("Atonement", "Ian McEwan", 2001),
    ("Never Let Me Go", "Kazuo Ishiguro", 2005),
    ("Half of a Yellow Sun", "Chimamanda Ngozi Adichie", 2006),
    ("Wolf Hall", "Hilary Mantel", 2009),
    ("The Fifth Season", "N. K. Jemisin", 2015),
    ("The Underground Railroad", "Colson Whitehead", 2016),
    ("Circe", "Madeline Miller", 2018),
    ("Girl, Woman, Other", "Bernardine Evaristo", 2019),
    ("Piranesi", "Susanna Clarke", 2020),
    ("Project Hail Mary", "Andy Weir", 2021),
    ("Orbital", "Samantha Harvey", 2023),
    ("Prophet Song", "Paul Lynch", 2023),
    ("James", "Percival Everett", 2024),
    ("Dream Count", "Chimamanda Ngozi Adichie", 2025),
];
