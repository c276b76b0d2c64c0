//! Five stories. Each ends in a sentence that is computed from what the visitors saw.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use perennial::entries::EntryState;

use super::{
    Demo, KEY,
    copy::{COOLDOWN, INTERVAL, LEASE},
    figures::Counts,
};

/// Longer than any step of a story.
const HANG: Duration = Duration::from_secs(60);

/// The difference of two counts.
fn since(now: Counts, before: Counts) -> Counts {
    Counts {
        requests: now.requests - before.requests,
        errors: now.errors - before.errors,
        stale: now.stale - before.stale,
        waited: now.waited - before.waited,
        generations: now.generations - before.generations,
    }
}

fn times(number: usize) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}

async fn until(
    what: &str,
    mut holds: impl FnMut() -> bool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > HANG {
            return Err(format!("never came about: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Tells a story. Returns whether it went as promised, and the sentence.
pub(super) async fn tell(
    demo: &Demo,
    number: u8,
) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
    demo.settle().await?;
    let told = match number {
        1 => demo.stale_under_load().await,
        2 => demo.holder_dies().await,
        3 => demo.generator_fails().await,
        4 => demo.database_is_locked().await,
        5 => demo.first_visit_ever().await,
        _ => Err("there are five stories".into()),
    };
    demo.shops.set(0, false, false).await?;
    told
}

impl Demo {
    /// Makes a new version with a fast generator, and waits until both shops serve it.
    async fn settle(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.shops.set(0, false, false).await?;
        self.make_stale().await?;
        let began = Instant::now();
        while !self.is_settled().await? {
            if began.elapsed() > HANG {
                return Err("the shops do not serve a new version".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Returns true if both shops serve the stored version, and nothing has made it stale.
    async fn is_settled(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let entry = self.site.entry(KEY).await?;
        let is_fresh = entry.is_some_and(|entry| entry.state == EntryState::Fresh);
        let stored = self.site.stored_response(KEY).await?;
        let text = stored.map(|it| String::from_utf8_lossy(it.body()).into_owned());
        let stored = text.and_then(|text| self.figures.generation_of(&text));
        let served = [0, 1].map(|number| Some(self.figures.latest(number)));
        Ok(is_fresh && served == [stored; 2] && self.figures.holder().is_none())
    }

    /// Waits until a shop has learned of the change and generates, and returns the shop.
    async fn leased(&self) -> Result<usize, Box<dyn Error + Send + Sync>> {
        until("a process has the lease", || {
            self.figures.holder().is_some()
        })
        .await?;
        Ok(self.figures.holder().unwrap_or_default())
    }

    /// Waits until both shops serve a version that is newer than all before.
    async fn regrown(&self, before: Counts) -> Result<(), Box<dyn Error + Send + Sync>> {
        until("both shops serve the next version", || {
            let newest = self.figures.counts(true).generations;
            newest > before.generations
                && (0..2).all(|it| !self.shops.is_open(it) || self.figures.latest(it) == newest)
        })
        .await
    }

    async fn stale_under_load(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.shops.set(1500, false, false).await?;
        let (began, before, own) = (
            Instant::now(),
            self.figures.counts(true),
            self.figures.counts(false),
        );
        self.make_stale().await?;
        self.leased().await?;
        self.crowd(200).await;
        self.regrown(before).await?;
        let (with, without) = (
            since(self.figures.counts(true), before),
            since(self.figures.counts(false), own),
        );
        let slowest = self.figures.slowest(true, began);
        let ok = with.generations == 1 && with.errors == 0 && with.stale > 0 && with.waited == 0;
        Ok((
            ok,
            format!(
                "One page became stale under {} visitors of two processes: Perennial generated it {}, {} visitors got the old page \
                 meanwhile, and the slowest waited {} ms. The processes' own caches generated it {}, and their slowest visitor waited {} ms.",
                with.requests,
                times(with.generations),
                with.stale,
                slowest.as_millis(),
                times(without.generations),
                self.figures.slowest(false, began).as_millis(),
            ),
        ))
    }

    async fn holder_dies(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.shops.set(2000, false, false).await?;
        let before = self.figures.counts(true);
        self.make_stale().await?;
        until("a process has the lease", || {
            self.figures.holder().is_some()
        })
        .await?;
        let holder = self.figures.holder().unwrap_or_default();
        let killed = Instant::now();
        self.shops.kill(holder);
        let (name, other) = (["A", "B"][holder], ["B", "A"][holder]);
        self.regrown(before).await?;
        let took = killed.elapsed();
        self.shops.restart(holder).await?;
        let with = since(self.figures.counts(true), before);
        let ok = with.errors == 0 && with.generations == 1;
        Ok((
            ok,
            format!(
                "Process {name} was killed (kill -9) while it generated. Its lease of {} s ended, process {other} took over, and the new page was there \
                 {:.1} s after the kill; {} visitors got the old page meanwhile, and {} an error.",
                LEASE.as_secs(),
                took.as_secs_f64(),
                with.stale,
                with.errors,
            ),
        ))
    }

    async fn generator_fails(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.shops.set(0, true, false).await?;
        let before = self.figures.counts(true);
        self.make_stale().await?;
        tokio::time::sleep(COOLDOWN).await;
        let failing = since(self.figures.counts(true), before);
        self.shops.set(0, false, false).await?;
        let mended = Instant::now();
        self.regrown(before).await?;
        let with = since(self.figures.counts(true), before);
        let ok = failing.generations == 0 && with.errors == 0 && with.stale > 0;
        Ok((
            ok,
            format!(
                "The generator failed for {} s: {} visitors got the old page, and {} an error. {:.1} s after it was mended, the page was new.",
                COOLDOWN.as_secs(),
                with.stale,
                with.errors,
                mended.elapsed().as_secs_f64(),
            ),
        ))
    }

    async fn database_is_locked(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        let (began, before) = (Instant::now(), self.figures.counts(true));
        let locked = Duration::from_secs(5);
        self.make_stale().await?;
        self.lock_database(locked).await?;
        let during = since(self.figures.counts(true), before);
        self.regrown(before).await?;
        let slowest = self.figures.slowest(true, began);
        let with = since(self.figures.counts(true), before);
        let ok = with.errors == 0 && during.requests > 20 && slowest < locked;
        Ok((
            ok,
            format!(
                "The database took no writes for {} s: {} visitors were served from memory meanwhile, {} got an error, and the slowest waited {} ms.",
                locked.as_secs(),
                during.requests,
                with.errors,
                slowest.as_millis(),
            ),
        ))
    }

    async fn first_visit_ever(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.shops.set(1000, false, false).await?;
        let (before, own) = (self.figures.counts(true), self.figures.counts(false));
        // A generation from before the purge would not be stored, and its visitors would be served by
        // the handler.
        until("no process generates", || self.figures.holder().is_none()).await?;
        let begun = Instant::now();
        self.purge().await?;
        self.leased().await?;
        self.crowd(200).await;
        self.regrown(before).await?;
        let (with, without) = (
            since(self.figures.counts(true), before),
            since(self.figures.counts(false), own),
        );
        // On a busy machine the page may be stale before all of the crowd have come.
        let due = 1 + (begun.elapsed().as_secs() / INTERVAL.as_secs()) as usize;
        let ok = (1..=due).contains(&with.generations) && with.errors == 0 && with.waited > 0;
        Ok((
            ok,
            format!(
                "The page was visited for the first time, by 200 visitors at once: Perennial generated it {} for both processes, {} visitors waited \
                 for it, and {} got an error. The processes' own caches generated it {}.",
                times(with.generations),
                with.waited,
                with.errors,
                times(without.generations),
            ),
        ))
    }
}
