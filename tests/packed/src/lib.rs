//! A shop that uses each crate.

#![forbid(unsafe_code)]

use axum::{
    Router,
    routing::{get, post},
};
use perennial::{Error, Perennial, Refresh};
use perennial_admin::{Access, Admin, CancellationToken};
use perennial_calendar::Calendar;
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_jobs::{ExclusiveLayer, Once};
use perennial_tokio_postgres::Deadpool;

/// Opens the shop's site on the pool that the shop has already.
///
/// # Errors
///
/// The database cannot be used.
pub async fn open(pool: Deadpool) -> Result<Perennial, Error> {
    Perennial::with_pool(pool).await
}

/// Returns the pages of the shop.
///
/// # Errors
///
/// The calendar is not valid.
pub fn app(site: &Perennial) -> Result<Router, Error> {
    let daily = Refresh::on_schedule(Calendar::daily("06:00", "Europe/Berlin")?);
    let locks = site.locks();
    let once = IdempotencyLayer::new(&locks, |_| Some(Scope::public()));
    let alone = ExclusiveLayer::new(&locks, |_| "report".into());
    let access = |_: &axum::http::request::Parts| Access::read_only("anybody");
    let status = Admin::new(site.clone(), CancellationToken::new(), access);
    let mail = Once::new(&locks, "mail");
    let send = async move || match mail.run(async || "sent").await {
        Ok(_) => "done",
        Err(_) => "failed",
    };
    Ok(Router::new()
        .route("/", get(async || "books").layer(site.layer(&daily)))
        .route("/pay", post(async || "paid").layer(once))
        .route("/report", post(async || "reported").layer(alone))
        .route("/mail", post(send))
        .nest("/status", status.router()))
}

#[cfg(test)]
mod tests {
    use axum::{
        body::{Body, to_bytes},
        http::Request,
    };
    use perennial_testing::Database;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn crates_work_together() {
        let database = Database::new();
        let site = database.open(Perennial::builder()).expect("opens");
        let app = app(&site).expect("is valid");
        let ask = async |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("idempotency-key", "k");
            let request = request.body(Body::empty()).expect("a request");
            let response = app.clone().oneshot(request).await.expect("infallible");
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), 1 << 20).await;
            (status, body.expect("is read"))
        };
        for _ in 0..2 {
            assert_eq!(ask("GET", "/").await, (200, "books".into()));
            assert_eq!(ask("POST", "/pay").await, (200, "paid".into()));
        }
        assert_eq!(database.generations("/"), 1);
        assert_eq!(ask("POST", "/report").await, (200, "reported".into()));
        assert_eq!(ask("POST", "/mail").await, (200, "done".into()));
        assert_eq!(ask("GET", "/status").await.0, 200);
    }
}
