//! What a driver itself owes, by the drivers of sqlx's pools.

use perennial::sql::Database;
use perennial_driver_tests::OfDriver;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use perennial_testkit::Db;
use perennial_testkit::Folder;

/// The connections of each pool: fewer than callers.
const CONNECTIONS: u32 = 4;

async fn sqlite_file() -> Option<OfDriver> {
    let folder = Folder::new();
    let options: sqlx::sqlite::SqliteConnectOptions = folder.url().parse().expect("a URL");
    let options = options
        .create_if_missing(true)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Off);
    let open = move || {
        let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(CONNECTIONS);
        Database::from(pool.connect_lazy_with(options.clone()))
    };
    Some(OfDriver::new(open, folder))
}

#[cfg(feature = "postgres")]
async fn postgres_server() -> Option<OfDriver> {
    let db = Db::postgres().await?;
    let url = db.url().to_owned();
    let open = move || {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
        Database::from(pool.connect_lazy(&url).expect("a URL"))
    };
    Some(OfDriver::new(open, db))
}

#[cfg(feature = "mysql")]
async fn mysql_server() -> Option<OfDriver> {
    let db = Db::mysql().await?;
    let url = db.url().to_owned();
    let open = move || {
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(CONNECTIONS);
        Database::from(pool.connect_lazy(&url).expect("a URL"))
    };
    Some(OfDriver::new(open, db))
}

mod sqlite {
    perennial_driver_tests::driver_contract! { super::super::sqlite_file }
}

#[cfg(feature = "postgres")]
mod postgres {
    perennial_driver_tests::driver_contract! { super::super::postgres_server }
}

#[cfg(feature = "mysql")]
mod mysql {
    perennial_driver_tests::driver_contract! { super::super::mysql_server }
}
