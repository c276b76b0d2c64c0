//! The work of a site beside its pages: awaited locks, exclusive routes, once-only work, and
//! idempotent requests.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use perennial::locks::Fence;
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_jobs::{ExclusiveLayer, Once, OnceOutcome};
use tower::{Layer, ServiceExt};

use crate::{
    ground::What,
    process::{Process, hold},
    random::Random,
};

/// The longest wait for a lock.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// Records the end of work, also of cancelled work.
struct Working {
    process: Arc<Process>,
    name: String,
    how: &'static str,
}

impl Working {
    fn begin(process: &Arc<Process>, name: &str, fence: i64) -> Self {
        let (process, name) = (Arc::clone(process), name.to_owned());
        process.note(What::WorkBegan {
            name: name.clone(),
            fence,
        });
        Self {
            process,
            name,
            how: "cancelled",
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let (name, how) = (self.name.clone(), self.how);
        self.process.note(What::WorkEnded { name, how });
    }
}

/// Runs the work with this name, as far as permitted. With `ill`, the work may fail, and callers may leave
/// before its end.
pub(crate) async fn run(process: Arc<Process>, name: String, mut random: Random, ill: bool) {
    let time = random.time(Duration::from_secs(3), Duration::from_millis(50));
    let fails = ill && random.below(3) == 0;
    let begun = tokio::time::Instant::now();
    let kind = name.split('-').next().unwrap_or_default();
    let work = async {
        match kind {
            "job" => wait(&process, time).await,
            "vault" => exclusive(&process, time).await,
            "week" => once(&process, &name, time).await,
            "mail" => retried(&process, &name, time, fails).await,
            _ => post(&process, &name, time).await,
        }
    };
    let how = if ill && random.below(8) == 0 {
        tokio::time::timeout(time / 2, work).await.unwrap_or("left")
    } else {
        work.await
    };
    let waited = begun.elapsed();
    process.note(What::WorkAnswered { name, how, waited });
}

async fn wait(process: &Arc<Process>, time: Duration) -> &'static str {
    let locks = process.site.locks().lease_duration(Duration::from_secs(3));
    match locks.lock("job").wait(WAIT).await {
        Ok(lease) => {
            // The lock is held from here on.
            tokio::spawn(hold(Arc::clone(process), lease, time));
            "ran"
        }
        Err(error)
            if matches!(
                error.kind(),
                perennial::ErrorKind::Database | perennial::ErrorKind::Timeout
            ) =>
        {
            "away"
        }
        Err(_) => "taken",
    }
}

async fn exclusive(process: &Arc<Process>, time: Duration) -> &'static str {
    let inner = Arc::clone(process);
    let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
        let fence = request.extensions().get::<Fence>().map_or(0, |it| it.0);
        let process = Arc::clone(&inner);
        async move {
            let mut working = Working::begin(&process, "vault", fence);
            tokio::time::sleep(time).await;
            working.how = "done";
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }
    });
    let locks = process.site.locks().lease_duration(Duration::from_secs(3));
    let layer = ExclusiveLayer::new(&locks, |_| "vault".into()).wait(WAIT);
    let request = Request::new(Full::new(Bytes::new()));
    match layer
        .cancel_when_lost()
        .layer(service)
        .oneshot(request)
        .await
    {
        Ok(response) => match response.status() {
            StatusCode::OK => "ran",
            StatusCode::CONFLICT => "taken",
            StatusCode::SERVICE_UNAVAILABLE => "away",
            _ => "lost",
        },
        Err(never) => match never {},
    }
}

async fn once(process: &Arc<Process>, name: &str, time: Duration) -> &'static str {
    let work = || async {
        let mut working = Working::begin(process, name, 0);
        tokio::time::sleep(time).await;
        working.how = "done";
    };
    match Once::new(&process.site.locks(), name).run(work).await {
        Ok(outcome) => said(&outcome),
        Err(_) => "away",
    }
}

async fn retried(process: &Arc<Process>, name: &str, time: Duration, fails: bool) -> &'static str {
    let work = || async {
        let mut working = Working::begin(process, name, 0);
        tokio::time::sleep(time).await;
        working.how = if fails { "failed" } else { "done" };
        if fails { Err(()) } else { Ok(()) }
    };
    match Once::new(&process.site.locks(), name)
        .run_until_done(|_| work())
        .await
    {
        Ok(OnceOutcome::Ran(Err(()))) => "failed",
        Ok(outcome) => said(&outcome),
        Err(_) => "away",
    }
}

fn said<T>(outcome: &OnceOutcome<T>) -> &'static str {
    match outcome {
        OnceOutcome::Ran(_) => "ran",
        OnceOutcome::AlreadyDone { .. } => "done before",
        OnceOutcome::InProgress => "in progress",
        OnceOutcome::NotYet => "not yet",
        _ => unreachable!("all outcomes are above"),
    }
}

async fn post(process: &Arc<Process>, name: &str, time: Duration) -> &'static str {
    let (inner, of) = (Arc::clone(process), name.to_owned());
    let service = tower::service_fn(move |_: Request<Full<Bytes>>| {
        let (process, name) = (Arc::clone(&inner), of.clone());
        async move {
            let mut working = Working::begin(&process, &name, 0);
            tokio::time::sleep(time).await;
            working.how = "done";
            // The response names the process, so a test that looks at it would notice a second run.
            let body = Bytes::from(format!("{name} of {}", process.number));
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        }
    });
    let layer = IdempotencyLayer::new(&process.site.locks(), |_| Some(Scope::of("one")))
        .unknown_after(Duration::from_secs(15));
    let request = Request::post("/pay").header("idempotency-key", name);
    let request = request.body(Full::new(Bytes::from("1")));
    let response = layer.layer(service).oneshot(request.expect("a request"));
    let response = match response.await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("infallible").to_bytes();
    match head.status {
        StatusCode::OK => {
            let body = String::from_utf8_lossy(&body).into_owned();
            process.note(What::Paid {
                name: name.to_owned(),
                body,
            });
            "ran"
        }
        StatusCode::CONFLICT if head.headers.contains_key(header::RETRY_AFTER) => "in progress",
        StatusCode::CONFLICT => "unknown",
        StatusCode::SERVICE_UNAVAILABLE => "away",
        _ => "refused",
    }
}
