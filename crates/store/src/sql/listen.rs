//! LISTEN and NOTIFY: PostgreSQL can tell a process of invalidations at once, where the site asks for it.

use sqlx::{PgPool, postgres::PgListener};
use tokio::time::sleep;

use crate::{
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
    /// The database has no notifications, or the pool a single connection.
    pub fn listen<F: Fn() + Send + Sync>(
        &self,
        prefix: &str,
        on_notification: F,
    ) -> Result<impl Future<Output = ()> + Send + use<F>, Error> {
        let pool = self.postgres().cloned().ok_or_else(|| {
            Error::invalid("only PostgreSQL notifies of invalidations: leave out `Builder::listen`")
        })?;
        if pool.options().get_max_connections() < 2 {
            return Err(Error::invalid(
                "`Builder::listen` takes one connection of the pool for good, and the pool has no other one: allow at least two \
                 (`PoolOptions::max_connections`), or leave it out",
            ));
        }
        let channel = format!("{prefix}invalidation");
        Ok(async move {
            loop {
                if let Err(error) = listen_until_failure(&pool, &channel, &on_notification).await {
                    tracing::debug!(%error, "no longer listening; trying again");
                }
                sleep(LISTEN_RETRY_PAUSE).await;
            }
        })
    }
}

/// Runs until the connection is lost.
async fn listen_until_failure(
    pool: &PgPool,
    channel: &str,
    on_notification: &(impl Fn() + Sync),
) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    while listener.try_recv().await?.is_some() {
        sleep(NOTIFICATION_WINDOW).await;
        // One sync covers all notifications that have arrived.
        while listener.next_buffered().is_some() {}
        on_notification();
    }
    Ok(())
}
