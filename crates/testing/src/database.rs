//! The public [`Database`] of this crate: a site's database in memory. A test can make it fail, hang or lose
//! replies, and can move its clock.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{self, sleep},
};

use super::memory::{Memory, micros};
use perennial::{Builder, Error, Perennial, canonical_key};
use perennial_store::{Backend, Call, CallFuture, Reply, error::BoxError};

/// A database in memory, without SQL. Clones share the same data. The database's clock follows Tokio's,
/// so that stored versions age with [`advance`].
///
/// One condition holds at a time: each of [`fail`](Self::fail), [`hang`](Self::hang),
/// [`slow_down`](Self::slow_down), [`lose_replies`](Self::lose_replies),
/// [`refuse_writes`](Self::refuse_writes) and [`recover`](Self::recover) replaces the one before.
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
    /// Creates an empty database. Its clock starts at the beginning of 2020.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a site with this database. Each opened site stands for one process.
    ///
    /// [`table_prefix`](Builder::table_prefix), `listen` and `connect_lazily` have no effect.
    ///
    /// # Errors
    ///
    /// [`Invalid`](perennial::ErrorKind::Invalid) for an empty revision.
    pub fn open(&self, builder: Builder) -> Result<Perennial, Error> {
        builder.with_store(Box::new(self.clone()))
    }

    /// Makes every call of a site to this database fail at once.
    pub fn fail(&self) {
        self.set(Condition::Fails);
    }

    /// Makes calls hang until another state of the database is set. If the site has given up waiting for a call
    /// by then, the call is not executed.
    pub fn hang(&self) {
        self.set(Condition::Hangs);
    }

    /// Carries out each call only when this delay has passed, so its answer shows the state at the end of the
    /// delay. If the site has given up waiting for a call by then, the call is not executed.
    pub fn slow_down(&self, delay: Duration) {
        self.set(Condition::Slow(delay));
    }

    /// Carries each call out, and then returns an error, as when a connection breaks.
    pub fn lose_replies(&self) {
        self.set(Condition::LosesReplies);
    }

    /// Makes calls fail if they write, as on a server that has become read-only.
    pub fn refuse_writes(&self) {
        self.set(Condition::RefusesWrites);
    }

    /// Lets calls succeed again, and executes those that hang. A site asks its database again a second after a
    /// failure. A page whose generation has failed is tried again after its
    /// [cooldown](perennial::Refresh::cooldown).
    pub fn recover(&self) {
        self.set(Condition::Well);
    }

    /// Sets the database's clock forward, as an administrator might. Tokio's clock, by which cached versions
    /// age, does not change.
    pub fn set_clock_forward(&self, by: Duration) {
        self.0.memory.move_clock(micros(by));
    }

    /// Sets the database's clock back; Tokio's clock does not change.
    pub fn set_clock_back(&self, by: Duration) {
        self.0.memory.move_clock(-micros(by));
    }

    /// Returns how many times a version of the page or content `key` (and of its variants) was stored, by all
    /// sites together.
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

/// Advances Tokio's paused clock by `time`, without waiting. Timers within this time fire in their
/// order, and tasks run in between.
///
/// # Panics
///
/// The clock is not paused: write `#[tokio::test(start_paused = true)]`.
pub async fn advance(time: Duration) {
    // Panics if the clock is not paused, because the test would otherwise really sleep for the given time,
    // which may be days.
    time::advance(Duration::ZERO).await;
    sleep(time).await;
}
