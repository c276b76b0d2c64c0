//! Six stories. Each ends in a sentence that is computed from what the visitors saw.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use perennial::entries::EntryState;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};

use super::{
    Demo, KEY,
    copy::{COOLDOWN, LEASE, Settings},
    figures::Counts,
    visitors::request,
};
use crate::shop::euros;

/// The title of each story, and a sentence with its point.
pub(super) const STORIES: [(&str, &str); 6] = [
    (
        "The page becomes stale under load",
        "200 more visitors come while one process holds the lease. The signs stay ◐, which is the old page at once, and the count of generations rises by one; beside it, by one for each process.",
    ),
    (
        "The process that generates is killed",
        "the process with the lease is killed, and its lease ends after 3 s. Then the other process has the lease, with a later fence.",
    ),
    (
        "The generator fails",
        "the table of leases shows a failed one, and visitors keep getting the old page (◐). The next attempt comes 3 s later.",
    ),
    (
        "The database takes no writes",
        "no lease is taken for 5 s, and visitors keep getting the page from memory.",
    ),
    (
        "The first visit ever, by 200 at once",
        "visitors of both processes wait (◆) for one generation.",
    ),
    (
        "A price is changed by SQL",
        "one UPDATE, and no line of the application: the shop's list of new releases has an interval of a week, and both processes show the new price about a second later.",
    ),
];

/// Longer than any step of a story.
const HANG: Duration = Duration::from_secs(60);

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

impl Demo {
    /// Runs a story, and records its end. Returns whether it went as promised, and the sentence.
    pub(super) async fn tell(
        &self,
        number: usize,
    ) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        let _alone = self.story.lock().await;
        self.settle().await?;
        let told = match number {
            1 => self.stale_under_load().await,
            2 => self.holder_dies().await,
            3 => self.generator_fails().await,
            4 => self.database_is_locked().await,
            5 => self.first_visit_ever().await,
            6 => self.price_by_sql().await,
            _ => Err("there are six stories".into()),
        };
        // The demonstration goes on as usual: with the usual settings, and with a version that
        // becomes stale by the clock.
        self.shops.set(self.usual()).await?;
        self.make_stale().await?;
        let (ok, sentence) = told?;
        self.figures.told(number, ok, &sentence);
        Ok((ok, sentence))
    }

    /// Sets the generator while a story runs: the page becomes stale by an invalidation alone.
    async fn generator(
        &self,
        delay_ms: u64,
        fails: bool,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let settings = Settings {
            delay_ms,
            fails,
            held: true,
        };
        self.shops.set(settings).await
    }

    /// Makes a new version with a fast generator, and waits until both shops serve it.
    async fn settle(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.generator(0, false).await?;
        // A run that began earlier would store a version that becomes stale by the clock in the
        // middle of the story.
        until("no process generates", || self.leases.holder().is_none()).await?;
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
        Ok(is_fresh && served == [stored; 2] && self.leases.holder().is_none())
    }

    /// Waits until a shop has learned of the change and generates, and returns the shop.
    async fn leased(&self) -> Result<usize, Box<dyn Error + Send + Sync>> {
        until("a process has the lease", || self.leases.holder().is_some()).await?;
        Ok(self.leases.holder().unwrap_or_default())
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
        self.generator(1500, false).await?;
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
            self.figures.counts(true).since(before),
            self.figures.counts(false).since(own),
        );
        let slowest = self.figures.slowest(true, began);
        let ok = with.generations == 1 && with.errors == 0 && with.stale > 0 && with.waited == 0;
        Ok((
            ok,
            format!(
                "One page became stale under {} visitors of two processes: Perennial generated it {}, {} visitors got the old page \
                 meanwhile, and the slowest waited {} ms. The processes' own caches generated it {}, and their slowest visitor waited {} ms.",
                with.visitors,
                times(with.generations),
                with.stale,
                slowest.as_millis(),
                times(without.generations),
                self.figures.slowest(false, began).as_millis(),
            ),
        ))
    }

    async fn holder_dies(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.generator(2000, false).await?;
        let before = self.figures.counts(true);
        self.make_stale().await?;
        until("a process has the lease", || self.leases.holder().is_some()).await?;
        let holder = self.leases.holder().unwrap_or_default();
        let killed = Instant::now();
        self.shops.kill(holder);
        let (name, other) = (["A", "B"][holder], ["B", "A"][holder]);
        self.regrown(before).await?;
        let took = killed.elapsed();
        self.shops.restart(holder).await?;
        let with = self.figures.counts(true).since(before);
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
        self.generator(500, true).await?;
        let before = self.figures.counts(true);
        self.make_stale().await?;
        tokio::time::sleep(COOLDOWN).await;
        let failing = self.figures.counts(true).since(before);
        self.generator(0, false).await?;
        let mended = Instant::now();
        self.regrown(before).await?;
        let with = self.figures.counts(true).since(before);
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
        let during = self.figures.counts(true).since(before);
        self.regrown(before).await?;
        let slowest = self.figures.slowest(true, began);
        let with = self.figures.counts(true).since(before);
        let ok = with.errors == 0 && during.visitors > 20 && slowest < locked;
        Ok((
            ok,
            format!(
                "The database took no writes for {} s: {} visitors were served from memory meanwhile, {} got an error, and the slowest waited {} ms.",
                locked.as_secs(),
                during.visitors,
                with.errors,
                slowest.as_millis(),
            ),
        ))
    }

    async fn price_by_sql(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        // The newest book, which is the first one of the list.
        const BOOK: i64 = 42;
        let mut connection = AnyConnection::connect(&self.database).await?;
        let price = format!("SELECT price FROM books WHERE id = {BOOK}");
        let price = sqlx::query_scalar(AssertSqlSafe(price));
        let before: i64 = price.fetch_one(&mut connection).await?;
        let after = if before > 1000 { 995 } else { 1295 };
        let shows = async |shop, cents| {
            let list = request("GET", self.shops.address(shop), "/new-releases").await?;
            Ok::<_, Box<dyn Error + Send + Sync>>(list.1.contains(&euros(cents)))
        };
        for shop in 0..2 {
            shows(shop, before).await?;
        }
        let change = format!("UPDATE books SET price = {after} WHERE id = {BOOK}");
        sqlx::raw_sql(AssertSqlSafe(change))
            .execute(&mut connection)
            .await?;
        let changed = Instant::now();
        let mut shown = [None; 2];
        while shown.iter().any(Option::is_none) && changed.elapsed() < HANG {
            for (shop, shown) in shown.iter_mut().enumerate() {
                if shown.is_none() && shows(shop, after).await? {
                    *shown = Some(changed.elapsed());
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let [a, b] = shown.map(|took| took.unwrap_or(HANG).as_secs_f64());
        Ok((
            shown.iter().all(Option::is_some),
            format!(
                "UPDATE books SET price = {after} WHERE id = {BOOK}: process A showed {} after {a:.1} s, and process B after {b:.1} s. \
                 The trigger on the table had named the list in the transaction of the change.",
                euros(after),
            ),
        ))
    }

    async fn first_visit_ever(&self) -> Result<(bool, String), Box<dyn Error + Send + Sync>> {
        self.generator(1000, false).await?;
        let (before, own) = (self.figures.counts(true), self.figures.counts(false));
        // A generation from before the purge would not be stored, and its visitors would be served by
        // the handler.
        until("no process generates", || self.leases.holder().is_none()).await?;
        self.purge().await?;
        self.leased().await?;
        self.crowd(200).await;
        self.regrown(before).await?;
        let (with, without) = (
            self.figures.counts(true).since(before),
            self.figures.counts(false).since(own),
        );
        let ok = with.generations == 1 && with.errors == 0 && with.waited > 0;
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
