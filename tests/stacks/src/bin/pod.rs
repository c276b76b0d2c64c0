//! A site in a container: it says when it is ready and warm, and ends within its grace period.
//!
//! `DATABASE_URL` is its database and `PORT` its port. The image needs a read-only file system alone, with a
//! volume for an SQLite file.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::get};
use perennial::{DAY, Perennial, Refresh};

static IS_READY: AtomicBool = AtomicBool::new(false);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let port = std::env::var("PORT").unwrap_or_else(|_| "8080".to_owned());
    // A pod may start before its database.
    let builder = Perennial::builder().connect_lazily();
    // The new revision makes the new code regenerate the pages of the previous one.
    let builder = builder.revision(std::env::var("REVISION").unwrap_or_else(|_| "1".to_owned()));
    let site = builder.open(&url).await?;
    let page = || async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        "a page that takes two seconds"
    };
    let app = Router::new()
        .route("/", get(page).layer(site.layer(Refresh::every(DAY))))
        .route("/live", get(|| async {}))
        .route("/ready", get(ready));
    let listener = tokio::net::TcpListener::bind(format!("0.0.0.0:{port}")).await?;
    let (warming, pages) = (site.clone(), app.clone());
    tokio::spawn(async move {
        // `warm` reads what other pods have stored, and generates the rest. Each page that it visits also
        // causes an event.
        warming.warm(pages, ["/"]).await;
        IS_READY.store(true, SeqCst);
    });
    axum::serve(listener, app)
        .with_graceful_shutdown(told_to_stop())
        .await?;
    // Ends running regenerations, and releases their leases.
    site.shutdown().await;
    Ok(())
}

/// Says nothing about the database: a site serves what it has while the database is away.
async fn ready() -> StatusCode {
    match IS_READY.load(SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Waits for SIGTERM. A load balancer goes on sending requests for a while, and they are answered.
async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut told = signal(SignalKind::terminate()).expect("signals can be heard");
    told.recv().await;
    IS_READY.store(false, SeqCst);
}
