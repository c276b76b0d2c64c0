//! A payment that is charged once, however often the button is pressed.
//!
//! ```text
//! cargo run -p perennial-examples --bin payment
//! ```
//!
//! Open <http://127.0.0.1:3000>, and press a button many times: the page shows each answer, and that
//! the card is charged once. Several copies on one `--database` are one site. The form's key is made
//! with the page: a reloaded page can pay again.

use std::{error::Error, process::ExitCode, time::Duration};

use axum::{
    Form, Router,
    extract::State,
    http::StatusCode,
    response::Html,
    routing::{get, post},
};
use clap::Parser;
use example_common::{self as common, say};
use perennial::Perennial;
use perennial_idempotency::{IdempotencyLayer, Scope};
use sqlx::{AnyPool, AssertSqlSafe};

/// A payment that is charged once, however often the button is pressed.
#[derive(Parser)]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// The database, as in sqlite://site.db or postgres://user:password@host/database
    #[arg(long, default_value = "sqlite://payment.db")]
    database: String,
    /// The time that the bank takes.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "1s")]
    bank: Duration,
    /// The time after which a payment without an answer counts as unknown.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s")]
    unknown_after: Duration,
}

#[derive(Clone)]
struct Shop {
    pool: AnyPool,
    bank: Duration,
}

#[derive(serde::Deserialize)]
struct Payment {
    cents: i64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    common::log();
    common::exit("payment", run(&options).await)
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await?;
    let site = Perennial::open(&options.database).await?;
    sqlx::any::install_default_drivers();
    let pool = AnyPool::connect(&options.database).await?;
    let table = "CREATE TABLE IF NOT EXISTS charge (cents BIGINT NOT NULL)";
    sqlx::query(table).execute(&pool).await?;

    // This shop has no logins, so the form's random key alone identifies a payment. In a shop with
    // logins: `Scope::of(user)`.
    let once = IdempotencyLayer::new(&site.locks(), |_| Some(Scope::public()));
    let once = once.unknown_after(options.unknown_after);
    let app = Router::new()
        .route("/", get(form))
        .route("/pay", post(pay).layer(once))
        .route("/charges", get(charges))
        .with_state(Shop {
            pool,
            bank: options.bank,
        });
    let address = listener.local_addr()?;
    say!("http://{address} has a button to pay, and http://{address}/charges what was charged");
    axum::serve(listener, app)
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    // Waits for payments whose clients have gone.
    site.shutdown().await;
    Ok(())
}

async fn form(State(shop): State<Shop>) -> Html<String> {
    let page = include_str!("payment.html")
        .replace("{key}", &uuid::Uuid::new_v4().to_string())
        .replace("{bank}", &humantime::format_duration(shop.bank).to_string());
    Html(page)
}

/// Charges the card, which must not happen twice.
async fn pay(
    State(shop): State<Shop>,
    Form(Payment { cents }): Form<Payment>,
) -> Result<String, StatusCode> {
    tokio::time::sleep(shop.bank).await;
    let charge = format!("INSERT INTO charge (cents) VALUES ({cents})");
    let charged = sqlx::query(AssertSqlSafe(charge)).execute(&shop.pool).await;
    charged.map_err(|error| failed(&error))?;
    Ok(format!("receipt {}: {cents} cents", uuid::Uuid::new_v4()))
}

async fn charges(State(shop): State<Shop>) -> Result<String, StatusCode> {
    let charges = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM charge");
    let charges = charges.fetch_one(&shop.pool).await;
    let charges = charges.map_err(|error| failed(&error))?;
    Ok(format!("{charges}\n"))
}

fn failed(error: &sqlx::Error) -> StatusCode {
    tracing::error!(%error, "the database fails");
    StatusCode::INTERNAL_SERVER_ERROR
}
