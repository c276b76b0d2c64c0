//! How Perennial opens an SQLite file: in WAL mode, with a busy timeout, and with patience where several
//! processes open a new file at once.

use std::str::FromStr;

use sqlx::{
    ConnectOptions,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
    },
};

use super::{CONNECTIONS, driver_error};
use crate::{
    error::Error,
    sql::Connect,
    timing::{BUSY_TIMEOUT, Backoff, OPEN_PAUSES},
};

pub(super) async fn open(url: &str, connect: Connect) -> Result<SqlitePool, Error> {
    let cannot = |error| {
        Error::database(
            format!("cannot open the database {url:?}"),
            driver_error::<sqlx::Sqlite>(error),
        )
    };
    let options = SqliteConnectOptions::from_str(url)
        .map_err(cannot)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode a crash of the process loses nothing. A crash of the machine may lose the
        // latest versions, which are generated again.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        // The store logs what is slow, by the operation's name.
        .disable_statement_logging();

    let in_memory = url.contains(":memory:") || url.contains("mode=memory");
    if options.get_filename().as_os_str().is_empty() && !in_memory {
        return Err(Error::invalid(format!(
            "cannot open the database {url:?}: it names no file; write `sqlite://site.db`, or `sqlite::memory:` for a database \
             that ends with the process"
        )));
    }

    // An in-memory database disappears when its last connection closes.
    let pool = SqlitePoolOptions::new();
    let pool = if in_memory {
        pool.max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
    } else {
        pool.max_connections(CONNECTIONS)
    };
    if connect == Connect::Lazily {
        return Ok(pool.connect_lazy_with(options));
    }
    let mut backoff = Backoff::new(OPEN_PAUSES).limit(BUSY_TIMEOUT);
    loop {
        match pool.clone().connect_with(options.clone()).await {
            Ok(pool) => return Ok(pool),
            // SQLITE_BUSY: if several processes set a new file to WAL mode at the same time, SQLite
            // refuses some of them without waiting.
            Err(error) if code(&error) == Some(5) && backoff.pause().await => {}
            Err(error) => return Err(cannot(error)),
        }
    }
}

/// Returns SQLite's primary code, the lowest byte of an extended code.
fn code(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?;
    Some(code.parse::<u32>().ok()? & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sqlx's own warning about a slow statement is switched off. It would contain the whole text, and
    /// Perennial's warning has the name of the operation instead.
    #[tokio::test]
    async fn sqlx_logs_no_statements() {
        let pool = open("sqlite::memory:", Connect::Now).await.expect("opens");
        let options = format!("{:?}", pool.connect_options());
        for said in ["statements_level: Off", "slow_statements_level: Off"] {
            assert!(options.contains(said), "{options}");
        }
    }
}
