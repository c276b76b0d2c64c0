//! What all viewers of the status page in one process share: the latest events, the latest report, and the
//! stream for open pages. The database is asked once every five seconds, however many pages are open.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::State,
    http::HeaderName,
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use futures_util::{StreamExt, future, stream};
use perennial::{
    Perennial,
    entries::visible,
    event::{Event, Events},
};
use perennial_store::locked;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Admin, access::Viewer, pages::report_of};
use crate::{Report, size, time};

/// The number of events on the overview.
const LATEST: usize = 30;

/// The time for which the viewers of a process share a report.
const SHARED: Duration = Duration::from_secs(5);

/// The latest report.
#[derive(Default)]
pub(crate) struct SharedReport(tokio::sync::Mutex<Option<(Instant, Arc<Report>)>>);

impl SharedReport {
    /// Returns a report that is at most five seconds old, and makes a new one if there is none.
    pub(crate) async fn of(&self, site: &Perennial) -> Arc<Report> {
        let mut latest = self.0.lock().await;
        if let Some((at, report)) = &*latest
            && at.elapsed() < SHARED
        {
            return Arc::clone(report);
        }
        let report = Arc::new(Report::of(site).await);
        *latest = Some((Instant::now(), Arc::clone(&report)));
        report
    }
}

/// The latest events of this process.
#[derive(Clone, Default)]
pub(crate) struct Latest(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The lines of the events, newest first.
    texts: VecDeque<String>,
}

impl Latest {
    fn add(&self, event: &Event) {
        let mut seen = locked(&self.0);
        if let Some(text) = text_of(event) {
            seen.texts.push_front(text);
            seen.texts.truncate(LATEST);
        }
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        locked(&self.0).texts.iter().cloned().collect()
    }
}

/// Keeps the latest events until the shutdown.
pub(crate) fn watch(site: &Perennial, shutdown: &CancellationToken, latest: &Latest) {
    let mut events = site.subscribe();
    let latest = latest.clone();
    let keep = async move {
        while let Some(event) = events.next().await {
            latest.add(&event);
        }
    };
    let shutdown = shutdown.clone();
    tokio::spawn(async move { shutdown.run_until_cancelled(keep).await });
}

/// Returns the line of an event, or `None` if events of its kind are too frequent to be shown.
fn text_of(event: &Event) -> Option<String> {
    Some(match event {
        Event::Regenerated(ended) => {
            let key = visible(&ended.key);
            let (outcome, reason, took) = (ended.outcome, ended.reason, time(ended.took));
            match &ended.error {
                Some(error) => {
                    let error = visible(error);
                    format!("{key}: {outcome} after {took}: {error}; reason: {reason}")
                }
                None => format!(
                    "{key}: {outcome} after {took}, {}; reason: {reason}",
                    size(ended.bytes as u64)
                ),
            }
        }
        Event::LeaseTakenOver { key, .. } => {
            let key = visible(key);
            format!("{key}: the lease of a crashed or paused process was taken over")
        }
        Event::Invalidated { name, .. } => format!("invalidated {}", visible(name)),
        Event::Warmed { path, served, .. } => match served {
            Some(served) => format!("visited {}: {served}", visible(path)),
            None => format!("visited {}: no layer answered", visible(path)),
        },
        Event::Purged { key, .. } => format!("purged {}", visible(key)),
        Event::DatabaseUnavailable { operation, .. } => {
            format!("the database fails at {operation}")
        }
        Event::DatabaseBack { operation, .. } => format!("the database works again at {operation}"),
        Event::LockLost {
            kind, name, reason, ..
        } => format!(
            "lost the {} lock {}: {reason}",
            kind.as_str(),
            visible(name)
        ),
        Event::LockBroken { kind, name, .. } => {
            format!("broke the {} lock {}", kind.as_str(), visible(name))
        }
        Event::Missed { events, .. } => format!("{events} events were missed"),
        _ => return None,
    })
}

/// Sends each event and, every five seconds, the report as HTML, until the site is shut down.
pub(crate) async fn stream(viewer: Viewer, State(admin): State<Arc<Admin>>) -> Response {
    let sees = Arc::clone(&admin);
    let ticks = tokio::time::interval(SHARED);
    let reports = stream::unfold((ticks, sees, viewer), async |(mut ticks, sees, viewer)| {
        ticks.tick().await;
        let report = sees.report.of(&sees.site).await;
        let html = report_of(&viewer, &report).into_string();
        let event = sse::Event::default().event("report").json_data(html);
        Some((event, (ticks, sees, viewer)))
    });
    let texts = stream::unfold(admin.site.subscribe(), async |mut events: Events| {
        let event = events.next().await?;
        Some((text_of(&event), events))
    });
    let texts = texts.filter_map(future::ready);
    let texts = texts.map(|text| sse::Event::default().event("happened").json_data(text));
    let items = stream::select(Box::pin(reports), Box::pin(texts));
    let items = items.filter_map(async |item| item.ok().map(Ok::<_, Infallible>));
    let ended = admin.shutdown.clone().cancelled_owned();
    let sse = Sse::new(items.take_until(Box::pin(ended))).keep_alive(KeepAlive::default());
    // This makes a proxy in front send each event immediately.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (unbuffered, sse).into_response()
}
