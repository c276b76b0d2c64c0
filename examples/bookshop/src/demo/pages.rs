//! The demonstration's page, its state, and its buttons.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::Html,
    routing::{get, post},
};
use serde_json::{Value, json};

use super::{
    Demo,
    copy::{ROUND, Settings},
    leases, rounds,
    stories::STORIES,
};

pub(super) fn router(demo: &Arc<Demo>) -> Router {
    Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/state", get(state))
        .route("/act/{name}", post(act))
        .route("/story/{number}", post(story))
        .with_state(Arc::clone(demo))
}

async fn state(State(demo): State<Arc<Demo>>) -> Json<Value> {
    let now = SystemTime::now();
    let (round, leases) = (demo.figures.round(now), demo.leases.all());
    let round = round.unwrap_or_default();
    let mut state = demo.figures.snapshot();
    state["shops"] = demo.shops.snapshot();
    state["delay_ms"] = json!(demo.shops.settings().delay_ms);
    state["round_s"] = json!(ROUND.as_secs());
    let up_for = now.duration_since(demo.shops.since());
    state["up_ms"] = json!(up_for.unwrap_or_default().as_millis());
    let [with, without] = [round.with, round.without];
    state["round"] =
        json!({ "with": with, "without": without, "steps": rounds::steps(&round, &leases) });
    let leases = leases.iter().map(|lease| {
        let since = lease.began.duration_since(SystemTime::UNIX_EPOCH);
        json!({
            "fence": lease.fence, "holder": lease.holder(), "shop": lease.shop,
            "began_ms": since.unwrap_or_default().as_millis(),
            "ago_ms": now.duration_since(lease.began).unwrap_or_default().as_millis(),
            "held_ms": lease.held_for.as_millis(),
            "state": match lease.state {
                leases::State::Held => "held now",
                leases::State::Published => "published",
                leases::State::Failed => "failed",
                leases::State::Lost => "ended without a release",
            },
        })
    });
    state["leases"] = leases.collect();
    let stories = STORIES.map(|(title, watch)| json!([title, watch]));
    state["titles"] = json!(stories);
    Json(state)
}

async fn act(State(demo): State<Arc<Demo>>, Path(name): Path<String>) -> Result<(), StatusCode> {
    let generator = |delay_ms, fails| Settings {
        delay_ms,
        fails,
        ..demo.shops.settings()
    };
    let done = match &*name {
        "stale" => demo.make_stale().await,
        "purge" => demo.purge().await,
        "crowd" => {
            demo.crowd(200).await;
            Ok(())
        }
        "slow" => demo.shops.set(generator(5000, false)).await,
        "quick" => demo.shops.set(generator(200, false)).await,
        "usual" => {
            demo.shops
                .set(generator(demo.usual().delay_ms, false))
                .await
        }
        "fail" => {
            let delay = demo.shops.settings().delay_ms;
            demo.shops.set(generator(delay, true)).await
        }
        "kill-A" | "kill-B" => {
            let shop = usize::from(name == "kill-B");
            demo.shops.kill_and_restart(shop).await
        }
        "freeze-A" | "freeze-B" => {
            demo.shops.freeze(usize::from(name == "freeze-B"));
            Ok(())
        }
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
    Path(number): Path<usize>,
) -> Result<Json<Value>, StatusCode> {
    if !(1..=STORIES.len()).contains(&number) {
        return Err(StatusCode::NOT_FOUND);
    }
    match demo.tell(number).await {
        Ok((ok, sentence)) => Ok(Json(
            json!({ "story": number, "ok": ok, "sentence": sentence }),
        )),
        Err(error) => {
            tracing::error!(%error, number, "a story fails");
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
