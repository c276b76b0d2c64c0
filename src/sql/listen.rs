//! PostgreSQL tells of invalidations by itself, where it is asked to: LISTEN and NOTIFY.

use sqlx::{PgPool, postgres::PgListener};
use tokio::time::sleep;

use crate::timing::{LISTEN_AGAIN, LISTEN_PAUSE};

/// Calls `heard` whenever something may have been invalidated.
///
/// Notifications while there is no connection are lost: a notification is only a hint.
pub(super) async fn listen(pool: PgPool, channel: String, heard: impl Fn() + Sync) {
    loop {
        if let Err(error) = hear(&pool, &channel, &heard).await {
            tracing::debug!(%error, "no longer listening; trying again");
        }
        sleep(LISTEN_AGAIN).await;
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
