//! The demonstration: two shops over one database, visitors, and a page that shows who regenerates
//! what and when. Every count is measured here, by the visitors' answers; the leases are read from
//! the database.

pub(crate) mod copy;
mod figures;
mod leases;
mod login;
mod own;
mod pages;
pub(crate) mod plain;
mod rounds;
mod shops;
mod stories;
mod visitors;

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use perennial::Perennial;

use crate::options::Options;
use copy::Settings;
use example_common as common;
use figures::Figures;
use leases::Leases;
use shops::Shops;

/// The key of the demonstration's page.
const KEY: &str = "/demo";

/// The time between two looks at the leases in the database.
const LOOK: Duration = Duration::from_millis(100);

/// The time from the start to the first deploy.
const FIRST_DEPLOY: Duration = Duration::from_secs(10);

/// The time between two deploys.
const BETWEEN_DEPLOYS: Duration = Duration::from_secs(120);

struct Demo {
    site: Perennial,
    database: String,
    slow: Duration,
    shops: Shops,
    figures: Figures,
    leases: Leases,
    /// One story at a time.
    story: tokio::sync::Mutex<()>,
}

/// Runs the demonstration with its page.
pub(crate) async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let listener = common::listen(&options.listen).await;
    let listener = listener.map_err(|error| format!("{error}; --listen names another address"))?;
    let address = listener.local_addr()?;
    let demo = Demo::start(options, address.ip()).await?;
    demo.introduce(address);
    demo.deploy_now_and_then();
    axum::serve(listener, pages::router(&demo))
        .with_graceful_shutdown(common::told_to_stop())
        .await?;
    demo.shops.stop();
    Ok(())
}

impl Demo {
    /// Starts the shops, the visitors, and the look at the leases.
    async fn start(options: &Options, ip: IpAddr) -> Result<Arc<Self>, Box<dyn Error>> {
        let site = Perennial::open(&options.database).await?;
        sqlx::any::install_default_drivers();
        let shops = Shops::start(&options.database, ip, options.slow).await;
        let demo = Arc::new(Self {
            site,
            database: options.database.clone(),
            slow: options.slow,
            shops: shops.map_err(|error| error.to_string())?,
            figures: Figures::default(),
            leases: Leases::default(),
            story: tokio::sync::Mutex::default(),
        });
        demo.make_first_page().await;
        visitors::begin(&demo);
        demo.watch_leases();
        Ok(demo)
    }

    /// Visits each shop once behind both caches, as after a deploy: the visitors who are counted find a page, unless
    /// the generator takes longer than a visitor waits.
    async fn make_first_page(&self) {
        let first = |shop: usize| {
            let address = self.shops.address(shop);
            ["/own", KEY].map(|path| visitors::request("GET", address, path))
        };
        futures_util::future::join_all((0..2).flat_map(first)).await;
    }

    fn introduce(&self, address: SocketAddr) {
        let [a, b] = [0, 1].map(|shop| self.shops.address(shop));
        let stop = if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            "Ctrl-C stops it.".to_owned()
        } else {
            format!(
                "There is no terminal here: `kill {}` stops it.",
                std::process::id()
            )
        };
        common::print(format_args!(
            "The demonstration is at http://{address}/\n\n\
             Its generator takes {} s. Shop A is at http://{a}/ and shop B at http://{b}/\n{stop}",
            self.slow.as_secs_f64(),
        ));
    }

    /// Restarts the shops from time to time, except during a story. The page stays in the database, and a cache in the
    /// process is empty afterwards.
    fn deploy_now_and_then(self: &Arc<Self>) {
        let demo = Arc::clone(self);
        tokio::spawn(async move {
            let mut pause = FIRST_DEPLOY;
            loop {
                tokio::time::sleep(pause).await;
                pause = BETWEEN_DEPLOYS;
                let _alone = demo.story.lock().await;
                if let Err(error) = demo.shops.deploy().await {
                    tracing::error!(%error, "a shop does not start again");
                }
            }
        });
    }

    fn watch_leases(self: &Arc<Self>) {
        let demo = Arc::clone(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(LOOK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // One of the stories makes the database unavailable for a while, so an error is
                // ignored here. The leases are read again soon.
                let _ = demo.leases.read(&demo.site, &demo.shops).await;
            }
        });
    }

    /// Returns the settings of the generator when no story runs and nobody has changed them.
    fn usual(&self) -> Settings {
        Settings {
            delay_ms: self.slow.as_millis().try_into().unwrap_or(u64::MAX),
            fails: false,
            held: false,
        }
    }

    /// Makes the page stale behind both caches.
    async fn make_stale(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.shops.invalidate_own().await?;
        Ok(self.site.invalidate("/demo").await?)
    }

    /// Removes the page from both caches, as before the first visit ever.
    async fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.shops.purge_own().await?;
        Ok(self.site.purge(KEY).await?)
    }

    /// Sends visitors at once, to both shops and both caches.
    async fn crowd(&self, visitors: usize) {
        let visits = (0..visitors)
            .flat_map(|n| [true, false].map(|perennial| visitors::visit(self, n % 2, perennial)));
        futures_util::future::join_all(visits).await;
    }

    /// Keeps every other writer out of the database for a time.
    async fn lock_database(&self, time: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        use sqlx::{AnyConnection, Connection};
        let mut connection = AnyConnection::connect(&self.database).await?;
        let lock = match self.database.split(':').next() {
            Some("sqlite") => "BEGIN IMMEDIATE",
            _ => "BEGIN; LOCK TABLE perennial_lock IN EXCLUSIVE MODE",
        };
        sqlx::raw_sql(lock).execute(&mut connection).await?;
        tokio::time::sleep(time).await;
        Ok(sqlx::raw_sql("ROLLBACK")
            .execute(&mut connection)
            .await
            .map(drop)?)
    }
}
