//! PostgreSQL tells of invalidations by itself, where it is asked to: LISTEN and NOTIFY.

use sqlx::{PgPool, postgres::PgListener};
use tokio::time::sleep;

use crate::{
    error::Error,
    sql::Database,
    timing::{LISTEN_AGAIN, LISTEN_PAUSE},
};

#[doc(hidden)]
impl Database {
    /// Returns a future that calls `heard` after notifications, once for all that arrive within 50
    /// ms.
    ///
    /// # Errors
    ///
    /// The database has no notifications, or the pool a single connection.
    pub fn listen<F: Fn() + Send + Sync>(
        &self,
        prefix: &str,
        heard: F,
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
                if let Err(error) = hear(&pool, &channel, &heard).await {
                    tracing::debug!(%error, "no longer listening; trying again");
                }
                sleep(LISTEN_AGAIN).await;
            }
        })
    }
}

/// Runs until the connection is lost.
async fn hear(pool: &PgPool, channel: &str, heard: &(impl Fn() + Sync)) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    while listener.try_recv().await?.is_some() {
        sleep(LISTEN_PAUSE).await;
        // One sync covers all notifications that have arrived.
        while listener.next_buffered().is_some() {}
        heard();
    }
    Ok(())
}
