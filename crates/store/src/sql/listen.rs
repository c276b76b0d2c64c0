//! LISTEN and NOTIFY: PostgreSQL can tell a process of invalidations at once, where the site asks for it.

use futures_util::FutureExt;
use tokio::time::sleep;

use crate::{
    driver::{DriverError, Engine, Listener},
    error::Error,
    sql::Database,
    timing::{LISTEN_RETRY_PAUSE, NOTIFICATION_WINDOW},
};

#[doc(hidden)]
impl Database {
    /// Returns a future that calls `on_notification` after notifications, once for all that arrive within 50
    /// ms.
    ///
    /// # Errors
    ///
    /// The database has no notifications, the driver cannot listen, or the pool has a single connection.
    pub fn listen<F: Fn() + Send + Sync>(
        &self,
        prefix: &str,
        on_notification: F,
    ) -> Result<impl Future<Output = ()> + Send + use<F>, Error> {
        let driver = std::sync::Arc::clone(&self.pool);
        let channel = format!("{prefix}invalidation");
        if driver.engine() != Engine::Postgres {
            return Err(Error::invalid(
                "only PostgreSQL notifies of invalidations: leave out `Builder::listen`",
            ));
        }
        if driver.listen(channel.clone()).is_none() {
            return Err(Error::invalid(
                "this driver cannot listen to PostgreSQL's notifications: leave out `Builder::listen`, or use a pool of sqlx's",
            ));
        }
        if driver.max_connections() < 2 {
            return Err(Error::invalid(
                "`Builder::listen` takes one connection of the pool for good, and the pool has no other one: allow at least two \
                 (`PoolOptions::max_connections`), or leave it out",
            ));
        }
        Ok(async move {
            loop {
                let Some(listening) = driver.listen(channel.clone()) else {
                    return;
                };
                let ended = async { until_failure(listening.await?, &on_notification).await };
                if let Err(error) = ended.await {
                    tracing::debug!(%error, "no longer listening; trying again");
                }
                sleep(LISTEN_RETRY_PAUSE).await;
            }
        })
    }
}

/// Runs until the connection is lost.
async fn until_failure(
    mut listener: Box<dyn Listener>,
    on_notification: &(impl Fn() + Sync),
) -> Result<(), DriverError> {
    loop {
        listener.next().await?;
        sleep(NOTIFICATION_WINDOW).await;
        // One sync covers all notifications that have arrived.
        while let Some(arrived) = listener.next().now_or_never() {
            arrived?;
        }
        on_notification();
    }
}
