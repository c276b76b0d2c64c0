//! A store that calls a hook before and after each step.

use std::{sync::Arc, time::Duration};

use perennial::testing::internal::{Edition, LeaseRow, LockRow, Probe, Pruned, Store, StoreFuture};

/// The side of a step on which a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

/// Called with the name of a step; the step goes on when the future is ready.
pub(crate) type Hook = Arc<dyn Fn(&'static str, Side) -> HookFuture + Send + Sync>;
pub(crate) type HookFuture = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Hooked {
    pub(crate) store: Box<dyn Store>,
    pub(crate) hook: Hook,
}

macro_rules! hooked {
    ($($step:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Store for Hooked {
            $(
                fn $step<'a>(&'a self, $($argument: $type),*) -> StoreFuture<'a, $answer> {
                    Box::pin(async move {
                        (self.hook)(stringify!($step), Side::Before).await;
                        let answer = self.store.$step($($argument),*).await;
                        (self.hook)(stringify!($step), Side::After).await;
                        answer
                    })
                }
            )*
        }
    };
}

hooked! {
    probe(key: &'a str, name: &'a str, known: i64) -> Probe;
    try_lock(name: &'a str, owner: &'a str, length: Duration, seen: Option<i64>) -> Option<i64>;
    extend(lease: &'a LeaseRow, length: Duration) -> bool;
    release(lease: &'a LeaseRow, cooldown: Duration) -> bool;
    publish(key: &'a str, lease: &'a LeaseRow, edition: &'a Edition<'a>) -> bool;
    renew(key: &'a str, lease: &'a LeaseRow, edition: &'a Edition<'a>, known: i64) -> bool;
    remove(key: &'a str, lease: &'a LeaseRow) -> bool;
    invalidate(name: &'a str) -> i64;
    invalidated(since: i64, most: usize) -> Vec<(String, i64)>;
    invalidated_for_long(after: &'a str, most: usize) -> Vec<(String, i64)>;
    purge(key: &'a str, lock_prefix: &'a str) -> ();
    prune_entries(after: Option<&'a str>) -> Option<Pruned>;
    inspect(name: &'a str) -> Option<LockRow>;
    held() -> Vec<LockRow>;
    break_lock(name: &'a str) -> bool;
    reclaim(strays: &'a [&'a LeaseRow]) -> ();
    prune_locks(unused: Duration, after: Option<&'a str>) -> Option<String>;
    forget_invalidated(before: i64, purged: Duration, oldest: i64, after: Option<i64>) -> Option<i64>;
}
