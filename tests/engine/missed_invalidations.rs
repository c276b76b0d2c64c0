//! A page that changes although nobody has invalidated it is noticed, and told as far as it is known to be one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, extract::Path, routing::get as route};
use perennial::{
    DAY, Mode, Perennial, Refresh, Tags,
    event::{Event, Events, MissedInvalidation, Reason},
};
use perennial_testing::{self, advance};

use perennial_testkit::{get, virtual_time::Shared};

use crate::log_of_this_thread;

const HOUR: Duration = Duration::from_secs(3600);

/// Pages of a price that anybody changes.
struct Shop {
    shared: Shared,
    price: Arc<AtomicUsize>,
    site: Perennial,
    app: Router,
    events: Events,
    missed: Vec<Arc<MissedInvalidation>>,
    /// The reasons of regenerations.
    reasons: Vec<Reason>,
}

impl Shop {
    fn new(policy: Refresh) -> Self {
        Self::in_mode(policy, Mode::On)
    }

    fn in_mode(policy: Refresh, mode: Mode) -> Self {
        let shared = Shared::new();
        let site = shared.open(Perennial::builder().mode(mode));
        let price = Arc::new(AtomicUsize::new(10));
        let shown = Arc::clone(&price);
        let tagged = async move |Path(id): Path<u32>| {
            let tags = Tags::new([format!("product-{id}")]);
            let text = format!("<p>price: {} EUR</p>", shown.load(SeqCst));
            (axum::Extension(tags), text)
        };
        let shown = Arc::clone(&price);
        let untagged = async move || shown.load(SeqCst).to_string();
        let app = Router::new()
            .route("/{id}", route(tagged).layer(site.layer(&policy)))
            .route("/other", route(async || "").layer(site.layer(&policy)))
            .route("/untagged", route(untagged).layer(site.layer(policy)))
            .with_state(());
        let events = site.subscribe();
        Self {
            shared,
            price,
            site,
            app,
            events,
            missed: Vec::new(),
            reasons: Vec::new(),
        }
    }

    async fn visit(&mut self, path: &str) -> String {
        let page = get(&self.app, path).await.text().to_owned();
        self.hear();
        page
    }

    /// Reads the events before there are too many.
    fn hear(&mut self) {
        while let Some(event) = self.events.try_next() {
            match event {
                Event::MissedInvalidation(it) => self.missed.push(it),
                Event::Regenerated(it) if &*it.key != "/other" => self.reasons.push(it.reason),
                Event::Missed { events, .. } => panic!("{events} events are lost"),
                _ => {}
            }
        }
    }

    /// Returns the missed invalidations that are told after all is known, and the reasons of all regenerations
    /// meanwhile.
    async fn told(&mut self) -> (Vec<Arc<MissedInvalidation>>, Vec<Reason>) {
        // The first request starts a sync. When the answer to the sync has come, the process decides which
        // of the changed pages count as missed invalidations.
        for _ in 0..2 {
            advance(Duration::from_secs(6)).await;
            self.visit("/other").await;
        }
        advance(Duration::from_secs(1)).await;
        self.hear();
        (
            std::mem::take(&mut self.missed),
            std::mem::take(&mut self.reasons),
        )
    }
}

#[tokio::test(start_paused = true)]
async fn page_that_changes_by_its_age_alone_is_a_missed_invalidation() {
    let mut shop = Shop::new(Refresh::every(HOUR));
    shop.visit("/7").await;
    shop.price.store(12, SeqCst);
    advance(HOUR).await;
    assert_eq!(shop.visit("/7").await, "<p>price: 12 EUR</p>");
    let (missed, _) = shop.told().await;
    let [missed] = &*missed else {
        panic!("{missed:?}");
    };
    assert_eq!(&*missed.key, "/7");
    assert_eq!(missed.tags, ["product-7"]);
    assert_eq!(missed.bytes, 1, "of 10 and 12");
    assert!(missed.age >= HOUR);
    assert_eq!(&*missed.layer, "/{id}");
    assert_eq!(shop.site.stats().missed_invalidations, 1);
    assert_eq!(shop.site.missed_invalidations(), [Arc::clone(missed)]);
    let explained = shop.site.explain(shop.app.clone(), "/7").await;
    let explained = explained.expect("answers").expect("has a layer");
    assert_eq!(explained.missed_invalidation.as_ref(), Some(&**missed));
    let other = shop.site.explain(shop.app.clone(), "/other").await;
    let other = other.expect("answers").expect("has a layer");
    assert_eq!(other.missed_invalidation, None);
}

#[tokio::test(start_paused = true)]
async fn change_that_is_named_or_has_no_name_is_none() {
    let mut shop = Shop::new(Refresh::every(HOUR));
    for path in ["/1", "/2", "/3", "/untagged"] {
        shop.visit(path).await;
    }
    // The tag of the first page is invalidated by this process. That of the second page is invalidated by a
    // trigger, at the moment at which the page is regenerated because of its age.
    shop.price.store(12, SeqCst);
    shop.site
        .invalidate_tag("product-1")
        .await
        .expect("answers");
    shop.visit("/1").await;
    advance(HOUR).await;
    for path in ["/1", "/2", "/untagged"] {
        shop.visit(path).await;
    }
    shop.shared.commit_invalidation("row", "tag:product-2");
    // After this page's data have changed, its invalidation comes only a few seconds later.
    shop.visit("/3").await;
    advance(Duration::from_secs(3)).await;
    shop.site
        .invalidate_tag_prefix("product-3")
        .await
        .expect("answers");
    let (missed, _) = shop.told().await;
    assert_eq!(missed, []);
    // Unchanged content is none, whatever its age.
    advance(HOUR).await;
    shop.visit("/1").await;
    assert_eq!(shop.told().await.0, []);
}

#[tokio::test(start_paused = true)]
async fn verified_page_is_told_long_before_its_interval_is_over_and_nobody_waits() {
    let mut shop = Shop::new(Refresh::every(30 * DAY).verify(0.01));
    let pages: Vec<_> = (1..=50).map(|id| format!("/{id}")).collect();
    for page in &pages {
        shop.visit(page).await;
    }
    let (_, reasons) = shop.told().await;
    assert_eq!(reasons.len(), pages.len());
    shop.price.store(12, SeqCst);
    let (mut missed, mut verified) = (Vec::new(), 0);
    for hour in 0..100 {
        for page in &pages {
            let before = shop
                .site
                .stats()
                .requests(perennial::event::Served::Generated);
            shop.visit(page).await;
            let after = shop
                .site
                .stats()
                .requests(perennial::event::Served::Generated);
            assert_eq!(before, after, "{hour}: a visitor waited");
        }
        let (told, reasons) = shop.told().await;
        missed.extend(told);
        verified += reasons.len();
        assert!(
            reasons.iter().all(|reason| *reason == Reason::Verified),
            "{reasons:?}"
        );
        advance(HOUR).await;
    }
    // Each page is verified with a probability of 1 % an hour. In a hundred hours, 63 % of the 50 pages are
    // found to have changed, each of them once.
    assert!((30..=70).contains(&verified), "{verified}");
    assert!((22..=42).contains(&missed.len()), "{}", missed.len());
}

#[tokio::test(start_paused = true)]
async fn unused_verification_costs_no_regeneration() {
    let mut shop = Shop::new(Refresh::every(30 * DAY));
    shop.visit("/1").await;
    shop.told().await;
    for _ in 0..29 {
        advance(DAY).await;
        shop.visit("/1").await;
    }
    assert_eq!(shop.told().await.1, []);
}

#[tokio::test(start_paused = true)]
async fn developer_is_warned_once_for_each_page() {
    let log = log_of_this_thread();
    let mut shop = Shop::in_mode(Refresh::every(HOUR), Mode::Development);
    for price in 0..3 {
        shop.price.store(price, SeqCst);
        advance(HOUR).await;
        shop.visit("/7").await;
        shop.told().await;
    }
    let warnings = log.text();
    let warnings = warnings
        .lines()
        .filter(|line| line.contains("changed by itself"));
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("product-7") && warnings[0].contains("perennial triggers"),
        "{warnings:?}"
    );
}
