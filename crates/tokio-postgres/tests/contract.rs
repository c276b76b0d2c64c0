//! The contract of Perennial's drivers, on the server of `PERENNIAL_TEST_POSTGRES_URL`.

use deadpool_postgres::{Manager, Pool};
use perennial_driver_tests::OfDriver;
use perennial_tokio_postgres::Deadpool;
use tokio_postgres::NoTls;

mod server;

async fn database() -> Option<OfDriver> {
    let (config, database) = server::database().await?;
    let open = move || {
        let manager = Manager::new(config.clone(), NoTls);
        let pool = Pool::builder(manager).max_size(4).build();
        Deadpool::new(pool.expect("no timeouts")).into()
    };
    Some(OfDriver::new(open, database))
}

perennial_driver_tests::contract! { crate::database }
