//! The database in memory, with the faults of a test.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{self, sleep},
};

use super::memory::{Memory, micros};
use perennial::{Builder, Error, Perennial, canonical_key};
use perennial_store::{Backend, Call, CallFuture, Reply, error::BoxError};

/// A database in memory. Nothing is written to disk, and no SQL is run.
///
/// Clones share the same data. The database's clock follows Tokio's, so that stored versions age
/// with [`advance`](super::advance).
///
/// One condition holds at a time: each of [`fail`](Self::fail), [`hang`](Self::hang),
/// [`slow_down`](Self::slow_down), [`lose_replies`](Self::lose_replies),
/// [`refuse_writes`](Self::refuse_writes) and
/// [`recover`](Self::recover) replaces the one before. A condition holds for all sites of the
/// database, for calls that begin afterwards, and for calls that hang.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), perennial::Error> {
/// use perennial::{DAY, Perennial, Refresh};
/// use perennial_testing::Database;
///
/// let database = Database::new();
/// let site = database.open(Perennial::builder())?;
/// let greeting = || async { Ok::<_, std::io::Error>("hello") };
///
/// database.fail();
/// let policy = Refresh::every(DAY);
/// let content = site.content("greeting", &policy, greeting).await?;
/// assert_eq!(content.to_string(), "hello", "generated, and not stored");
/// assert_eq!(database.generations("greeting"), 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Database(Arc<Shared>);

#[derive(Default)]
struct Shared {
    memory: Memory,
    condition: watch::Sender<Condition>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Condition {
    #[default]
    Well,
    Fails,
    Hangs,
    Slow(Duration),
    LosesReplies,
    RefusesWrites,
}

impl Database {
    /// Creates an empty database. Its clock shows the beginning of the year 2020.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a site with this database in place of an SQL database.
    ///
    /// Each opened site stands for one process: the sites have separate memories and share the
    /// store. [`table_prefix`](Builder::table_prefix), `listen` and `connect_lazily` have no
    /// effect: the site opens while the database fails, too.
    ///
    /// # Errors
    ///
    /// [`Invalid`](perennial::ErrorKind::Invalid) for an empty revision.
    pub fn open(&self, builder: Builder) -> Result<Perennial, Error> {
        builder.with_store(Box::new(self.clone()))
    }

    /// Makes each call of a site to this database return an error at once.
    pub fn fail(&self) {
        self.set(Condition::Fails);
    }

    /// Makes calls wait until another condition is set.
    ///
    /// A call is not carried out if the site has given it up by then, for example after the
    /// [statement timeout](Builder::statement_timeout).
    pub fn hang(&self) {
        self.set(Condition::Hangs);
    }

    /// Delays each call by `delay`.
    ///
    /// A call is not carried out if the site has given it up by then.
    pub fn slow_down(&self, delay: Duration) {
        self.set(Condition::Slow(delay));
    }

    /// Carries each call out, and then returns an error, as when a connection breaks.
    pub fn lose_replies(&self) {
        self.set(Condition::LosesReplies);
    }

    /// Makes calls that write return an error at once, as on a server that has become read-only.
    pub fn refuse_writes(&self) {
        self.set(Condition::RefusesWrites);
    }

    /// Makes calls succeed again, and carries out the calls that hang.
    ///
    /// A site may take some seconds to notice: after a failure a process tries again when its pause
    /// or [cooldown](perennial::Refresh::cooldown) is over.
    pub fn recover(&self) {
        self.set(Condition::Well);
    }

    /// Sets the database's clock forward, as an administrator does. Tokio's clock does not change.
    ///
    /// A cached version ages by Tokio's clock, so a version in memory does not become stale. To
    /// make time pass for both clocks, use [`advance`](super::advance).
    pub fn set_clock_forward(&self, by: Duration) {
        self.0.memory.move_clock(micros(by));
    }

    /// Sets the database's clock back, as an administrator does. Tokio's clock does not change.
    pub fn set_clock_back(&self, by: Duration) {
        self.0.memory.move_clock(-micros(by));
    }

    /// Returns how often a version of the page or content `key` was stored, by all sites together.
    ///
    /// The key is that of [`Perennial::invalidate`]; versions that differ in headers, host or
    /// nesting count together. A version with the same content as the version before counts, too.
    /// Failed generators do not count, nor do versions that were served unsaved while the database
    /// was away.
    pub fn generations(&self, key: &str) -> u64 {
        self.0.memory.generations(&canonical_key(key))
    }

    fn set(&self, condition: Condition) {
        self.0.condition.send_replace(condition);
    }
}

impl Database {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let mut changes = self.0.condition.subscribe();
        // The sender lives as long as `self`: there is no error.
        let condition = match changes.wait_for(|now| *now != Condition::Hangs).await {
            Ok(condition) => *condition,
            Err(_) => Condition::Fails,
        };
        match condition {
            Condition::Fails | Condition::Hangs => return Err("the database fails".into()),
            Condition::Slow(delay) => sleep(delay).await,
            Condition::RefusesWrites if call.writes() => {
                return Err("the database is read-only".into());
            }
            Condition::Well | Condition::LosesReplies | Condition::RefusesWrites => {}
        }
        let reply = self.0.memory.apply(&call);
        match condition {
            Condition::LosesReplies => Err("the connection to the database is lost".into()),
            _ => Ok(reply),
        }
    }
}

impl Backend for Database {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("condition", &*self.0.condition.borrow())
            .finish_non_exhaustive()
    }
}

/// Advances Tokio's paused clock by `time`, without waiting.
///
/// Timers within this time fire in their order, and tasks run in between, as they would in real
/// time: a task with an interval of a millisecond runs 86 million times in a day.
/// (`tokio::time::advance` jumps instead, and tasks run afterwards.)
///
/// # Panics
///
/// The clock is not paused: write `#[tokio::test(start_paused = true)]`.
pub async fn advance(time: Duration) {
    // Panics on a clock that runs, in place of a test that sleeps for days.
    time::advance(Duration::ZERO).await;
    sleep(time).await;
}
