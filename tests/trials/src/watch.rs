//! Watchers of the database: its outages, and the stored versions.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{
    Perennial,
    locks::{LockKind, LockName},
};
use perennial_store::{Backend, Fence, Probe};
use sqlx::{AnyConnection, Connection};
use tokio::task::JoinSet;

use crate::{
    Result,
    history::{Fact, Micros},
    load::stale_paths,
    record::{Recorder, now},
};

/// The longest time of a write, with its connection. A longer one counts as failed.
const WRITE: Duration = Duration::from_secs(1);

/// A time without writes, from the first failed write to the next one that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) from: Micros,
    pub(crate) until: Micros,
}

#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    outages: Mutex<Vec<Outage>>,
    since: Mutex<Option<Micros>>,
    ends: AtomicBool,
}

impl Watch {
    pub(crate) fn begin(&self, url: &str, site: &Perennial, recorder: Recorder) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let (watch, url) = (self.clone(), url.to_owned());
        tasks.spawn(async move { watch.writes(&url).await });
        let (watch, site) = (self.clone(), site.clone());
        tasks.spawn(async move {
            if let Ok(store) = store(&site).await {
                watch.looks(&*store, &recorder).await;
            }
        });
        tasks
    }

    pub(crate) fn end(&self) {
        self.0.ends.store(true, SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.0.ends.load(SeqCst)
    }

    /// Returns true if the last write was done.
    pub(crate) fn takes_writes(&self) -> bool {
        let since = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_none()
    }

    pub(crate) fn outages(&self) -> Vec<Outage> {
        let outages = self.0.outages.lock();
        outages.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes on a new connection each time, as a program that starts.
    async fn writes(&self, url: &str) {
        while self.goes_on() {
            let from = now();
            let written = tokio::time::timeout(WRITE, write(url)).await;
            self.wrote(from, matches!(written, Ok(Ok(()))));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn wrote(&self, from: Micros, done: bool) {
        let mut since = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        match (done, *since) {
            (true, Some(from)) => {
                *since = None;
                let outages = self.0.outages.lock();
                let outage = Outage { from, until: now() };
                outages.unwrap_or_else(PoisonError::into_inner).push(outage);
            }
            (false, None) => *since = Some(from),
            _ => {}
        }
    }

    /// Reads the stored versions, through the same proxy as the site.
    async fn looks(&self, store: &dyn Backend, recorder: &Recorder) {
        while self.goes_on() {
            for key in stale_paths() {
                let name = LockName::of(LockKind::Page, key.as_str());
                let probe =
                    tokio::time::timeout(WRITE, store.ask(Probe::new(&name, Fence::NONE))).await;
                let Ok(Ok(probe)) = probe else { continue };
                let Some(entry) = probe.entry else { continue };
                let body = String::from_utf8_lossy(entry.content.body()).into_owned();
                recorder.note(&Fact::Stored {
                    key,
                    fence: entry.fence.0,
                    number: body.parse().expect("a page is a number"),
                    at: now(),
                });
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Returns the store of a site's database.
pub(crate) async fn store(site: &Perennial) -> Result<Box<dyn Backend>> {
    let store = site.database()?.store("perennial_").await?;
    Ok(store)
}

async fn write(url: &str) -> Result {
    let mut connection = AnyConnection::connect(url).await?;
    sqlx::query("INSERT INTO trial_writes VALUES (1)")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}

/// Makes the table of the writes.
pub(crate) async fn prepare(url: &str) -> Result {
    let mut connection = AnyConnection::connect(url).await?;
    // There may be none.
    let _ = sqlx::query("DROP TABLE trial_writes")
        .execute(&mut connection)
        .await;
    sqlx::query("CREATE TABLE trial_writes (id INT)")
        .execute(&mut connection)
        .await?;
    Ok(())
}
