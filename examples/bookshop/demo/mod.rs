//! The demonstration: two shops over one database, visitors, and a page that shows who regenerates
//! what and when. Every figure is measured here, by the visitors' answers.

pub(crate) mod copy;
mod figures;
mod login;
mod shops;
mod stories;
mod visitors;

use std::{error::Error, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    middleware,
    response::Html,
    routing::{get, post},
};
use perennial::{
    Perennial,
    locks::{LockKind, LockName},
};
use perennial_admin::CancellationToken;
use serde_json::{Value, json};

use crate::{common, shop::ShopOptions};
use figures::Figures;
use shops::Shops;

/// The key of the demonstration's page.
const KEY: &str = "/demo";

pub(crate) struct Demo {
    site: Perennial,
    database: String,
    shops: Shops,
    figures: Figures,
    /// One story at a time.
    story: tokio::sync::Mutex<()>,
}

pub(crate) async fn run(options: &ShopOptions) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await?;
    let site = Perennial::open(&options.database).await?;
    sqlx::any::install_default_drivers();
    let shops = Shops::start(&options.database).await;
    let shops = shops.map_err(|error| error.to_string())?;
    let demo = Arc::new(Demo {
        site,
        database: options.database.clone(),
        shops,
        figures: Figures::default(),
        story: tokio::sync::Mutex::default(),
    });
    visitors::begin(&demo);
    watch_lease(&demo);
    let shutdown = CancellationToken::new();
    let status = perennial_admin::router(demo.site.clone(), shutdown.clone(), login::access);
    let app = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/state", get(state))
        .route("/act/{name}", post(act))
        .route("/story/{number}", post(story))
        .with_state(Arc::clone(&demo))
        .nest("/status", status.layer(middleware::from_fn(login::ask)));
    say!("The demonstration is at http://{}/", listener.local_addr()?);
    for (name, address) in ["A", "B"].into_iter().zip(demo.shops.addresses()) {
        say!("Shop {name} is at http://{address}/");
    }
    let stop = async move {
        common::told_to_stop().await;
        // The streams of open status pages end.
        shutdown.cancel();
    };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    demo.shops.stop();
    Ok(())
}

/// Notes the holder of the page's lease, ten times a second.
fn watch_lease(demo: &Arc<Demo>) {
    let demo = Arc::clone(demo);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            let lock = LockName::of(LockKind::Page, KEY);
            let info = demo.site.locks().inspect(lock).await.ok().flatten();
            let holder = info.and_then(|info| Some((info.holder?.label, info.fence)));
            let holder = holder.and_then(|(label, fence)| {
                // A label is the host and the number of the process.
                let pid = label.rsplit(':').next()?.parse().ok()?;
                Some((demo.shops.with_pid(pid)?, fence))
            });
            demo.figures.lease(holder);
        }
    });
}

async fn state(State(demo): State<Arc<Demo>>) -> Json<Value> {
    let mut state = demo.figures.snapshot();
    state["shops"] = demo.shops.snapshot();
    state["interval_s"] = json!(copy::INTERVAL.as_secs());
    Json(state)
}

async fn act(State(demo): State<Arc<Demo>>, Path(name): Path<String>) -> Result<(), StatusCode> {
    let done = match &*name {
        "stale" => demo.make_stale().await,
        "purge" => demo.purge().await,
        "crowd" => {
            demo.crowd(200).await;
            Ok(())
        }
        "slow" => demo.shops.set(2000, false, false).await,
        "fast" => demo.shops.set(0, false, false).await,
        "fail" => demo.shops.set(0, true, false).await,
        "kill-A" | "kill-B" => {
            demo.shops
                .kill_and_restart(usize::from(name == "kill-B"))
                .await
        }
        "freeze-A" | "freeze-B" => demo.shops.freeze(usize::from(name == "freeze-B")),
        "database" => demo.lock_database(Duration::from_secs(5)).await,
        _ => return Err(StatusCode::NOT_FOUND),
    };
    done.map_err(|error| {
        tracing::error!(%error, name, "the demonstration fails");
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

async fn story(
    State(demo): State<Arc<Demo>>,
    Path(number): Path<u8>,
) -> Result<Json<Value>, StatusCode> {
    let _alone = demo.story.lock().await;
    match stories::tell(&demo, number).await {
        Ok((ok, sentence)) => {
            demo.figures.told(number, ok, &sentence);
            Ok(Json(
                json!({ "story": number, "ok": ok, "sentence": sentence }),
            ))
        }
        Err(error) => {
            tracing::error!(%error, number, "a story fails");
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

impl Demo {
    /// Makes the page stale behind both caches.
    async fn make_stale(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.shops.forget().await?;
        Ok(self.site.invalidate_tag("demo").await?)
    }

    /// Removes the page from both caches, as before the first visit ever.
    async fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.shops.forget().await?;
        Ok(self.site.purge(KEY).await?)
    }

    /// Sends visitors at once, to both shops and both caches.
    async fn crowd(&self, visitors: usize) {
        let visits = (0..visitors)
            .flat_map(|n| [true, false].map(|perennial| visitors::visit(self, n % 2, perennial)));
        futures_util::future::join_all(visits).await;
    }

    /// Keeps every other writer out of the database for a time.
    async fn lock_database(&self, time: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        use sqlx::{AnyConnection, Connection};
        let mut connection = AnyConnection::connect(&self.database).await?;
        let lock = match self.database.split(':').next() {
            Some("sqlite") => "BEGIN IMMEDIATE",
            _ => "BEGIN; LOCK TABLE perennial_lock IN EXCLUSIVE MODE",
        };
        sqlx::raw_sql(lock).execute(&mut connection).await?;
        tokio::time::sleep(time).await;
        Ok(sqlx::raw_sql("ROLLBACK")
            .execute(&mut connection)
            .await
            .map(drop)?)
    }
}
