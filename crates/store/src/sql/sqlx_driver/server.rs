//! How Perennial opens a small pool of connections to a server.

use sqlx::{ConnectOptions, Connection, Pool};

use super::{CONNECTIONS, SqlxKind, driver_error};
use crate::{
    driver::DriverError,
    error::Error,
    sql::{Connect, without_password},
    timing::CONNECT_LIMIT,
};

/// Opens a pool. `begin` are the first statements on each connection.
pub(super) async fn open<DB: SqlxKind>(
    url: &str,
    connect: Connect,
    begin: &'static [&'static str],
) -> Result<Pool<DB>, Error> {
    let cannot = |hint: &str, error| {
        let context = format!("cannot open the database {:?}{hint}", without_password(url));
        Error::database(context, error)
    };
    let options = url.parse::<<DB::Connection as Connection>::Options>();
    let options = options.map_err(|error| cannot("", driver_error::<DB>(error)))?;
    // The store logs what is slow, by the operation's name.
    let options = options.disable_statement_logging();
    if connect == Connect::Now {
        // A pool would try for a while, and then report no more than a timeout.
        let first = async { options.connect().await?.close().await };
        let first = match tokio::time::timeout(CONNECT_LIMIT, first).await {
            Ok(first) => first.map_err(driver_error::<DB>),
            Err(_) => Err(DriverError::broken(format!(
                "the server did not answer within {CONNECT_LIMIT:?}"
            ))),
        };
        let hint = " (a site that is to start while its database is unavailable: `Builder::connect_lazily`)";
        first.map_err(|error| cannot(hint, error))?;
    }
    Ok(sqlx::pool::PoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECT_LIMIT)
        // A pool tests each connection on its return. A second test before its use would cost a
        // round trip.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                for statement in begin {
                    let done = DB::run(connection, (*statement).into(), &[]).await;
                    done.map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
                }
                Ok(())
            })
        })
        .connect_lazy_with(options))
}
