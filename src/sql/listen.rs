//! PostgreSQL tells of invalidations by itself, where it is asked to: LISTEN and NOTIFY.

use sqlx::{PgPool, postgres::PgListener};
use tokio::time::sleep;

use crate::{
    sql::Heard,
    timing::{LISTEN_AGAIN, LISTEN_PAUSE},
};

/// Calls `heard` whenever something may have been invalidated.
///
/// What is sent while there is no connection is lost: it is a hint, and no more.
pub(super) async fn listen(pool: PgPool, channel: String, heard: Heard) {
    loop {
        if let Err(error) = hear(&pool, &channel, &heard).await {
            tracing::debug!(%error, "no longer listening; trying again");
        }
        sleep(LISTEN_AGAIN).await;
    }
}

/// Until the connection is lost.
async fn hear(pool: &PgPool, channel: &str, heard: &Heard) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    while listener.try_recv().await?.is_some() {
        sleep(LISTEN_PAUSE).await;
        // Those that have come meanwhile are answered by one question.
        while listener.next_buffered().is_some() {}
        heard();
    }
    Ok(())
}
