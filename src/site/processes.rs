//! The statistics that the processes of a site share through its database, so that a status page can show the
//! whole site and not only one process.

use std::sync::{Arc, OnceLock, Weak};

use perennial_store::{Error, ForgetProcess, NoteProcess, Processes};
use tokio::{sync::Mutex, time::Instant};
use tracing::Instrument;

use super::Perennial;
use crate::{
    cache::Cache,
    event::{LastHour, ProcessStats},
    timing::{PROCESS_FORGOTTEN_AFTER, PROCESS_STATS_INTERVAL},
};

/// The largest number of processes in an answer.
const MAX_PROCESSES: u32 = 1000;

/// What this process tells the others. The cell is empty while it shares nothing.
#[derive(Clone, Default)]
pub(super) struct Sharing(Arc<OnceLock<Arc<OwnRow>>>);

struct OwnRow {
    /// A random name, as labels may be equal.
    name: String,
    since: Instant,
    /// The time at that moment by this process's clock, in seconds since 1970.
    began: u64,
    /// Held while the row is written or removed, so that no write comes after the removal.
    turn: Mutex<()>,
}

impl Perennial {
    /// Shares the [figures](Self::stats) of this process with the other processes of the site, so that
    /// [`processes`](Self::processes) has the figures of all. If you do not call it, nobody else sees them. The
    /// status page of the crate `perennial-admin` calls it, and shows the sums.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// use perennial::event::Served;
    ///
    /// site.share_stats();
    /// let processes = site.processes().await?;
    /// let hits: u64 = processes.iter().map(|it| it.stats.requests(Served::Hit)).sum();
    /// # Ok(()) }
    /// ```
    ///
    /// A task writes one row of 2 to 5 KB into the database at once, and then every ten seconds, until the
    /// [shutdown](Self::shutdown) or until the site is dropped. The row of a process that has crashed is removed
    /// within two hours, by another process that shares its figures. Calling it again does nothing.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    pub fn share_stats(&self) {
        let mut is_first = false;
        let shared = self.sharing.0.get_or_init(|| {
            is_first = true;
            Arc::new(OwnRow {
                name: uuid::Uuid::new_v4().simple().to_string(),
                since: Instant::now(),
                began: unix_seconds(self.cache.store().wall_clock()),
                turn: Mutex::new(()),
            })
        });
        if is_first {
            let sharing = share(Arc::downgrade(&self.cache), Arc::clone(shared));
            tokio::spawn(sharing.instrument(tracing::debug_span!("share_stats")));
        }
    }

    /// Returns the figures of the processes that [share](Self::share_stats) theirs, the latest ones first, a thousand at
    /// most. One that was [shut down](Self::shutdown) is not among them. A process that has crashed is among them for up to an hour, with the time since its last sign of life.
    ///
    /// ```
    /// # async fn f(site: perennial::Perennial) -> Result<(), perennial::Error> {
    /// for process in site.processes().await? {
    ///     println!("{} runs {:?}, {:?} ago", process.label, process.revision, process.silent_for);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The database fails.
    pub async fn processes(&self) -> Result<Vec<ProcessStats>, Error> {
        let rows = self
            .cache
            .store()
            .call(Processes::new(MAX_PROCESSES))
            .await?;
        let recent = rows.iter().filter(|row| row.age < PROCESS_FORGOTTEN_AFTER);
        Ok(recent.filter_map(ProcessStats::decode).collect())
    }
}

/// Returns whole seconds of a time in microseconds since 1970.
fn unix_seconds(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or_default() / 1_000_000
}

impl Sharing {
    /// Removes this process from the list.
    pub(super) async fn end(&self, cache: &Cache) {
        if let Some(shared) = self.0.get() {
            // The store logs an error, and another process removes the row later.
            let _ = shared.forget(cache).await;
        }
    }
}

/// Writes the figures until the site ends.
async fn share(cache: Weak<Cache>, shared: Arc<OwnRow>) {
    let (mut forgotten_at, mut last_hour) = (None::<Instant>, LastHour::default());
    while let Some(cache) = cache.upgrade() {
        let is_due = forgotten_at.is_none_or(|at| at.elapsed() >= PROCESS_FORGOTTEN_AFTER);
        if is_due && shared.forget(&cache).await.is_ok() {
            forgotten_at = Some(Instant::now());
        }
        if !shared.note(&cache, &mut last_hour).await {
            return;
        }
        drop(cache);
        tokio::time::sleep(PROCESS_STATS_INTERVAL).await;
    }
}

impl OwnRow {
    /// Removes the row of this process, and those of processes that have long been silent.
    async fn forget(&self, cache: &Cache) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let forget = ForgetProcess::new(&*self.name, PROCESS_FORGOTTEN_AFTER);
        cache.store().call(forget).await
    }

    /// Writes the row of this process. Returns false after a shutdown.
    async fn note(&self, cache: &Cache, last_hour: &mut LastHour) -> bool {
        let _turn = self.turn.lock().await;
        if cache.is_shutting_down() {
            return false;
        }
        let (locks, revision) = (cache.locks(), cache.settings().revision.as_deref());
        let (label, up_for) = (locks.own_label(), self.since.elapsed());
        let stats = cache.stats();
        last_hour.add(&stats, (self.began + up_for.as_secs()) / 60);
        let figures = ProcessStats::encode(label, revision, up_for, stats, last_hour);
        // The store logs an error, and the next round tries again.
        let _ = cache
            .store()
            .call(NoteProcess::new(&*self.name, figures))
            .await;
        true
    }
}
