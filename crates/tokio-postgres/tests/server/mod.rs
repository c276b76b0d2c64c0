//! Databases of a server, each for one test.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio_postgres::{Config, NoTls};

/// Removes its database when it is dropped.
pub(crate) struct Created {
    server: Config,
    name: String,
}

/// Makes an empty database on the server of `PERENNIAL_TEST_POSTGRES_URL`; `None` without one.
pub(crate) async fn database() -> Option<(Config, Created)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let Ok(url) = std::env::var("PERENNIAL_TEST_POSTGRES_URL") else {
        let all = std::env::var_os("PERENNIAL_TEST_ALL");
        assert!(all.is_none(), "PERENNIAL_TEST_POSTGRES_URL is not set");
        eprintln!("SKIPPED: PERENNIAL_TEST_POSTGRES_URL is not set; scripts/test starts a server");
        return None;
    };
    let server: Config = url.parse().expect("a URL");
    let name = format!("d{}_{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
    say(&server, &format!("CREATE DATABASE {name}")).await;
    let mut config = server.clone();
    config.dbname(&name);
    Some((config, Created { server, name }))
}

async fn say(server: &Config, sql: &str) {
    let (client, connection) = server.connect(NoTls).await.expect("connects");
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.expect("is done");
    drop(client);
    connection.await.expect("no panic").expect("ends");
}

impl Drop for Created {
    fn drop(&mut self) {
        let (server, sql) = (
            self.server.clone(),
            format!("DROP DATABASE {} WITH (FORCE)", self.name),
        );
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(say(&server, &sql));
        });
        // A database that cannot be dropped ends with its server.
        let _ = dropping.join();
    }
}
