//! A store that calls a hook before and after each step.

use std::{pin::Pin, sync::Arc};

use perennial::testing::internal::{BoxError, Call, Link, Reply, Store};

/// The side of a step on which a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

/// A hook gets the name of a step. The step continues when the future is ready.
pub(crate) type Hook = Arc<dyn Fn(&'static str, Side) -> HookFuture + Send + Sync>;
pub(crate) type HookFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Hooked {
    pub(crate) store: Box<dyn Store>,
    pub(crate) hook: Hook,
}

impl Link for Hooked {
    async fn send(&self, call: Call) -> Result<Reply, BoxError> {
        let step = call.step();
        (self.hook)(step, Side::Before).await;
        let answer = self.store.send(call).await;
        (self.hook)(step, Side::After).await;
        answer
    }
}
