//! A store that calls a hook before and after each operation.

use std::{pin::Pin, sync::Arc};

use perennial_store::{Backend, Call, CallFuture, Reply, error::BoxError};

/// The side of an operation on which a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The store has not been called.
    Before,
    /// The store has answered.
    After,
}

/// A hook gets the name of an operation. The operation continues when the future is ready.
pub type Hook = Arc<dyn Fn(&'static str, When) -> HookFuture + Send + Sync>;
/// The operation goes on when it is ready.
pub type HookFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store with a hook.
pub struct Hooked {
    /// The store itself.
    pub store: Box<dyn Backend>,
    /// Called before and after each operation.
    pub hook: Hook,
}

impl Hooked {
    async fn answer(&self, call: Call) -> Result<Reply, BoxError> {
        let operation = call.name();
        (self.hook)(operation, When::Before).await;
        let answer = self.store.call(call).await;
        (self.hook)(operation, When::After).await;
        answer
    }
}

impl Backend for Hooked {
    fn call(&self, call: Call) -> CallFuture<'_> {
        Box::pin(self.answer(call))
    }
}
