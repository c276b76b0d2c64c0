//! Invalidations reach another process under load, on each database.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use perennial::{Builder, Perennial};

use crate::{
    databases::Db,
    program::Gateway,
    support::{HANG, Origin, every, get, patient, serve, until},
};

on_each_database! {
    two_processes_learn_of_every_invalidation_under_load
}

/// Stores 1,000 pages, each with one of ten tags.
async fn fill(db: &Db) {
    let digits = crate::databases::four_digits();
    let (concat, bytes, headers) = match db.url().split(':').next().expect("a scheme") {
        "mysql" => (
            "concat('/page/', b.d, c.d, d.d)",
            "''",
            "concat('{\"tags\":[\"t', d.d, '\"]}')",
        ),
        "postgres" => (
            "'/page/' || b.d || c.d || d.d",
            "''::bytea",
            "'{\"tags\":[\"t' || d.d || '\"]}'",
        ),
        _ => (
            "'/page/' || b.d || c.d || d.d",
            "x''",
            "'{\"tags\":[\"t' || d.d || '\"]}'",
        ),
    };
    let body = match db.url().starts_with("postgres") {
        true => "'run 0 of a page'::bytea",
        false => "'run 0 of a page'",
    };
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("is later")
        .as_micros();
    let sql = format!(
        "INSERT INTO perennial_entry (name, fence, generated_at, stale_at, retain_until, epoch, bytes, metadata, status, headers, body)
        SELECT {concat}, 1, {now}, {now} + 3600000000, {now} + 3600000000, 0, 17, {headers}, 200, {bytes}, {body}
        FROM {digits} WHERE a.d = 0"
    );
    assert_eq!(db.execute(&sql).await, 1000);
}

/// A site with a memory of its own, which stands for a process.
struct Process {
    site: Perennial,
    address: SocketAddr,
}

impl Process {
    async fn start(db: &Db, builder: Builder, origin: &Origin) -> Self {
        let site = builder.with_pool(db.database().await).await.expect("opens");
        let layer = site.layer(every(Duration::from_secs(3600)));
        let address = serve(origin.router().layer(layer)).await;
        Self { site, address }
    }
}

const VISITORS: usize = 4;

/// A gateway in a process of its own and this process, both with all pages in memory and with
/// visitors.
async fn two_processes_learn_of_every_invalidation_under_load(db: Db) {
    let origin = Origin::default();
    let here = Process::start(&db, patient(), &origin).await;
    fill(&db).await;
    let gateway = Gateway::start(origin.serve().await, db.url(), "--every 1h --in-background");
    let addresses = [gateway.address, here.address];
    let pages: Vec<_> = (0..1000).map(|page| format!("/page/{page:03}")).collect();
    let known = Arc::new(AtomicUsize::new(0));
    let load = |from: usize| {
        let (pages, known) = (pages.clone(), Arc::clone(&known));
        tokio::spawn(async move {
            let mut client = Client::new(addresses);
            for page in pages.iter().skip(from).step_by(VISITORS) {
                for address in 0..2 {
                    assert_eq!(client.visit(address, page).await, (0, false), "{page}");
                }
            }
            known.fetch_add(1, SeqCst);
            for page in pages.iter().cycle().skip(from).step_by(7) {
                for address in 0..2 {
                    client.visit(address, page).await;
                }
                // The processor is others', too.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let loads: Vec<_> = (0..VISITORS).map(load).collect();
    let mut client = Client::new(addresses);
    // Each visit has a limit; all of them together take as long as the machine takes.
    while known.load(SeqCst) < VISITORS {
        assert!(loads.iter().all(|load| !load.is_finished()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(origin.begun(), 0, "all of them are stored");

    let fresh = (0, false);
    for (what, page, other) in [
        ("key", "/page/000", "/page/001"),
        ("prefix", "/page/123", "/page/130"),
        ("tag", "/page/557", "/page/558"),
    ] {
        for address in 0..2 {
            assert_eq!(client.visit(address, page).await, fresh);
        }
        match what {
            "key" => here.site.invalidate(page).await,
            "prefix" => here.site.invalidate_prefix("/page/12").await,
            _ => here.site.invalidate_tag("t7").await,
        }
        .expect("is done");
        client.hears(page).await;
        for address in 0..2 {
            assert_eq!(client.visit(address, other).await, fresh);
        }
    }
    // The first process of a new revision is a third process.
    let builder = patient().revision("2");
    let third = Process::start(&db, builder, &origin).await;
    get(third.address, "/").await;
    for page in ["/page/888", "/page/999"] {
        client.hears(page).await;
    }
    for load in loads {
        assert!(!load.is_finished(), "a visitor was not answered");
        load.abort();
    }
}

/// A visitor with open connections.
struct Client {
    client: hyper_util::client::legacy::Client<
        hyper_util::client::legacy::connect::HttpConnector,
        http_body_util::Empty<bytes::Bytes>,
    >,
    addresses: [SocketAddr; 2],
}

impl Client {
    fn new(addresses: [SocketAddr; 2]) -> Self {
        let executor = hyper_util::rt::TokioExecutor::new();
        let client = hyper_util::client::legacy::Client::builder(executor).build_http();
        Self { client, addresses }
    }

    /// Returns the number of the served run, and whether its version is known to be stale.
    async fn visit(&mut self, address: usize, path: &str) -> (usize, bool) {
        use http_body_util::BodyExt;

        let uri = format!("http://{}{path}", self.addresses[address]);
        let exchange = async {
            let reply = self.client.get(uri.parse().expect("a URI"));
            let (head, body) = reply.await.expect("an answer").into_parts();
            assert_eq!(head.status, 200, "{path}");
            let status = head.headers["cache-status"].to_str().expect("text");
            let body = body.collect().await.expect("a body").to_bytes();
            (status.contains("ttl=-"), body)
        };
        let (stale, body) = tokio::time::timeout(HANG, exchange)
            .await
            .expect("does not hang");
        let body = std::str::from_utf8(&body).expect("text");
        let run = body.split(' ').nth(1).and_then(|run| run.parse().ok());
        (run.unwrap_or_else(|| panic!("{path}: {body}")), stale)
    }

    /// Waits until each process knows that its version is stale, or has a new one.
    async fn hears(&mut self, path: &str) {
        for address in 0..2 {
            until(path, async || self.visit(address, path).await != (0, false)).await;
        }
    }
}
