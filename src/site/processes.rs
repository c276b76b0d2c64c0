//! The statistics that the processes of a site share through its database, so that a status page can show the
//! whole site and not only one process.

use std::sync::{Arc, OnceLock, Weak};

use perennial_store::{Error, NoteProcess, Processes, PruneProcesses};
use tokio::{sync::Mutex, time::Instant};
use tracing::Instrument;

use super::Perennial;
use crate::{
    cache::Cache,
    event::{Figures, LastHour, ProcessStats},
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
    /// Locked while the row is written, so that the last figures are written last.
    state: Mutex<RowState>,
}

/// What the next row depends on.
#[derive(Default)]
struct RowState {
    last_hour: LastHour,
    /// The site was shut down, and nothing is written any more.
    has_ended: bool,
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
    /// A task writes one row of 2 to 6 KB into the database at once, and then every ten seconds, until the
    /// [shutdown](Self::shutdown), which writes the last figures, or until the site is dropped. The row of a process
    /// that has ended is removed within two hours, by another process that shares its figures. Calling it again does
    /// nothing.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    pub fn share_stats(&self) {
        let mut is_first = false;
        let own = self.sharing.0.get_or_init(|| {
            is_first = true;
            Arc::new(OwnRow {
                name: uuid::Uuid::new_v4().simple().to_string(),
                since: Instant::now(),
                began: unix_seconds(self.cache.store().wall_clock()),
                state: Mutex::default(),
            })
        });
        if is_first {
            let sharing = share(Arc::downgrade(&self.cache), Arc::clone(own));
            tokio::spawn(sharing.instrument(tracing::debug_span!("share_stats")));
        }
    }

    /// Returns the figures of the processes that [share](Self::share_stats) theirs, the latest ones first, a thousand at
    /// most. A process that has ended stays among them for an hour, so that the figures of the last hour are complete
    /// after a deploy. [`ended`](ProcessStats::ended) tells whether it was [shut down](Self::shutdown). If it was not,
    /// it has crashed or does not reach the database, and [`silent_for`](ProcessStats::silent_for) tells since when.
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

/// Converts microseconds since 1970 to whole seconds since 1970.
fn unix_seconds(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or_default() / 1_000_000
}

impl Sharing {
    /// Writes the last figures of this process, after its shutdown.
    pub(super) async fn end(&self, cache: &Cache) {
        if let Some(own) = self.0.get() {
            let mut state = own.state.lock().await;
            state.has_ended = true;
            own.write(cache, &mut state).await;
        }
    }
}

/// Writes the figures until the site ends.
async fn share(cache: Weak<Cache>, own: Arc<OwnRow>) {
    let mut pruned_at = None::<Instant>;
    while let Some(cache) = cache.upgrade() {
        let is_due = pruned_at.is_none_or(|at| at.elapsed() >= PROCESS_FORGOTTEN_AFTER);
        let prune = PruneProcesses::new(PROCESS_FORGOTTEN_AFTER);
        if is_due && cache.store().call(prune).await.is_ok() {
            pruned_at = Some(Instant::now());
        }
        {
            // While a shutdown waits for regenerations, the process still gives signs of life.
            let mut state = own.state.lock().await;
            if state.has_ended {
                return;
            }
            own.write(&cache, &mut state).await;
        }
        drop(cache);
        tokio::time::sleep(PROCESS_STATS_INTERVAL).await;
    }
}

impl OwnRow {
    /// Writes the row of this process.
    async fn write(&self, cache: &Cache, state: &mut RowState) {
        let (stats, up_for) = (cache.stats(), self.since.elapsed());
        let last_hour = &mut state.last_hour;
        last_hour.add(&stats, (self.began + up_for.as_secs()) / 60);
        let figures = Figures {
            label: cache.locks().own_label().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: cache.settings().revision.clone(),
            up_for_s: up_for.as_secs_f64(),
            ended: state.has_ended,
            stats,
            last_hour: last_hour.rows(),
            failures: cache.observer().failures(),
        };
        let note = NoteProcess::new(&*self.name, figures.encode());
        // The store logs an error. While the process runs, the next round tries again.
        let _ = cache.store().call(note).await;
    }
}
