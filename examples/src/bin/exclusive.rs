//! Routes that run once at a time: uploads to an album, whose count of photos stays right, and
//! syncs of one customer's devices.
//!
//! ```text
//! cargo run -p perennial-examples --bin exclusive
//! curl -i -X POST http://127.0.0.1:3000/albums/7/photos
//! curl -i -X POST http://127.0.0.1:3000/sync/ann & curl -i -X POST http://127.0.0.1:3000/sync/ann
//! ```
//!
//! Several copies on one `--database` are one site. With `--unlocked` the count goes wrong as soon
//! as two uploads coincide.

use std::{error::Error, process::ExitCode, time::Duration};

use axum::{
    Extension, Router,
    extract::{Path, State},
    http::{Method, StatusCode, request::Parts},
    routing::{get, post},
};
use clap::Parser;
use example_common::{self as common, say};
use perennial::{
    Perennial,
    locks::{Fence, LockName},
};
use perennial_jobs::ExclusiveLayer;
use sqlx::{AnyPool, AssertSqlSafe};

/// Routes that run once at a time: uploads to an album, and syncs of one customer.
#[derive(Parser)]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// The database, as in sqlite://site.db or postgres://user:password@host/database
    #[arg(long, default_value = "sqlite://exclusive.db")]
    database: String,
    /// The working time of a photo.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "200ms")]
    work: Duration,
    /// The time of a customer's sync.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "3s")]
    sync: Duration,
    /// The time that an upload waits for its album.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s")]
    wait: Duration,
    /// The time after which the lock of a crashed server is free.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "15s")]
    lease: Duration,
    /// Omits the locks, to show their effect.
    #[arg(long)]
    unlocked: bool,
}

#[derive(Clone)]
struct App {
    pool: AnyPool,
    work: Duration,
    sync: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    common::log();
    common::exit("exclusive", run(&options).await)
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await?;
    let site = Perennial::open(&options.database).await?;
    sqlx::any::install_default_drivers();
    let pool = AnyPool::connect(&options.database).await?;
    let table = "CREATE TABLE IF NOT EXISTS album (id BIGINT PRIMARY KEY, photos BIGINT NOT NULL, fence BIGINT NOT NULL)";
    sqlx::query(table).execute(&pool).await?;

    let mut photos = post(change).delete(change);
    let mut syncs = post(sync);
    if !options.unlocked {
        let locks = site.locks().lease_duration(options.lease);
        let alone = ExclusiveLayer::new(&locks, album).wait(options.wait);
        photos = photos.layer(alone.action("change the photos"));
        // A second device gets its refusal at once.
        let one_device = ExclusiveLayer::new(&locks, customer).wait(Duration::ZERO);
        syncs = syncs.layer(one_device.action("sync the bookmarks"));
    }
    let app = Router::new()
        .route("/albums/{id}", get(count))
        .route("/albums/{id}/photos", photos)
        .route("/sync/{customer}", syncs)
        .with_state(App {
            pool,
            work: options.work,
            sync: options.sync,
        });

    let address = listener.local_addr()?;
    say!("http://{address} has albums, as /albums/7: POST to or DELETE /albums/7/photos");
    axum::serve(listener, app)
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    Ok(())
}

/// The name of the lock that a change of an album takes. The name contains the album's number, as
/// two paths can be written differently (`7`, `07`) and mean the same album.
fn album(parts: &Parts) -> LockName {
    let id = segment(parts).parse::<i64>();
    // The handler refuses an album that is not a number.
    [
        "album".to_owned(),
        id.map_or(String::new(), |id| id.to_string()),
    ]
    .into()
}

/// Returns the name of a sync's lock.
fn customer(parts: &Parts) -> LockName {
    ["sync", "bookmarks", &segment(parts)].into()
}

/// Returns the album or the customer in the path, decoded as for the handler.
fn segment(parts: &Parts) -> String {
    let segment = parts.uri.path().split('/').nth(2).unwrap_or_default();
    percent_encoding::percent_decode_str(segment)
        .decode_utf8_lossy()
        .into_owned()
}

/// Adds a photo, or removes one: reads, works, and writes the number that was read, plus or minus
/// one.
async fn change(
    State(app): State<App>,
    Path(id): Path<i64>,
    method: Method,
    fence: Option<Extension<Fence>>,
) -> Result<String, Failure> {
    let add = format!("INSERT INTO album (id, photos, fence) VALUES ({id}, 0, 0)");
    // The error is ignored: the row already exists.
    let _ = sqlx::query(AssertSqlSafe(add)).execute(&app.pool).await;
    let photos = photos(&app.pool, id).await?;
    tokio::time::sleep(app.work).await;
    let photos = match method {
        Method::DELETE => photos - 1,
        _ => photos + 1,
    };
    // An overtaken holder changes nothing.
    let fence = fence.map_or(0, |Extension(Fence(fence))| fence);
    let write = format!(
        "UPDATE album SET photos = {photos}, fence = {fence} WHERE id = {id} AND fence <= {fence}"
    );
    let write = sqlx::query(AssertSqlSafe(write)).execute(&app.pool).await?;
    match write.rows_affected() {
        0 => Err(Failure(StatusCode::CONFLICT)),
        _ => Ok(format!("{photos}\n")),
    }
}

async fn count(State(app): State<App>, Path(id): Path<i64>) -> Result<String, Failure> {
    Ok(format!("{}\n", photos(&app.pool, id).await?))
}

async fn photos(pool: &AnyPool, id: i64) -> Result<i64, sqlx::Error> {
    let photos = format!("SELECT photos FROM album WHERE id = {id}");
    sqlx::query_scalar(AssertSqlSafe(photos))
        .fetch_one(pool)
        .await
}

/// Brings one device of a customer up to date, which takes time.
async fn sync(State(app): State<App>, Path(customer): Path<String>) -> String {
    tokio::time::sleep(app.sync).await;
    format!("{customer} is up to date\n")
}

struct Failure(StatusCode);

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::RowNotFound => Self(StatusCode::NOT_FOUND),
            error => {
                tracing::error!(%error, "the database fails");
                Self(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> axum::response::Response {
        self.0.into_response()
    }
}
