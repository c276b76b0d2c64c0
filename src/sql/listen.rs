//! PostgreSQL tells of invalidations by itself, where it is asked to: LISTEN and NOTIFY.

use std::time::Duration;

use sqlx::{PgPool, postgres::PgListener};

use crate::sql::Heard;

/// The pause after a connection was lost; also that between two notifications that are acted on.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(50));

/// Calls `heard` whenever something may have been invalidated.
///
/// What is sent while there is no connection is lost: it is a hint, and no more.
pub(super) async fn listen(pool: PgPool, channel: String, heard: Heard) {
    loop {
        if let Err(error) = hear(&pool, &channel, &heard).await {
            tracing::debug!(%error, "no longer listening; trying again");
        }
        tokio::time::sleep(PAUSES.0).await;
    }
}

/// Until the connection is lost.
async fn hear(pool: &PgPool, channel: &str, heard: &Heard) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    while listener.try_recv().await?.is_some() {
        tokio::time::sleep(PAUSES.1).await;
        // Those that have come meanwhile are answered by one question.
        while listener.next_buffered().is_some() {}
        heard();
    }
    Ok(())
}
