//! Parts of pages, through several levels: staleness, and the limit of regenerations at once.

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, routing::get as route};
use perennial::{Builder, Error, Generation, Perennial, Refresh};

use perennial_testkit::{
    get,
    hooked::{Hook, Hooked, When},
};

const HOUR: Refresh = Refresh::every(Duration::from_hours(1));
const SECOND: Duration = Duration::from_secs(1);

/// A page with the part `middle`, which has the part `lowest`. The lowest part is the datum of its
/// generation, and takes two seconds.
#[derive(Clone)]
struct Levels {
    site: Perennial,
    datum: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    as_values: bool,
    placeholder: bool,
}

impl Levels {
    fn of(database: &perennial_testing::Database, builder: Builder) -> Self {
        Self {
            site: database.open(builder).expect("opens"),
            datum: Arc::new(AtomicUsize::new(1)),
            fails: Arc::default(),
            as_values: false,
            placeholder: false,
        }
    }

    async fn lowest(self) -> Result<String, Error> {
        let Self {
            site, datum, fails, ..
        } = self;
        let generate = async move |generation: Generation| {
            generation.tag("datum");
            tokio::time::sleep(2 * SECOND).await;
            if fails.load(SeqCst) {
                Err("there is no datum")
            } else {
                Ok(datum.load(SeqCst).to_string())
            }
        };
        if self.as_values {
            let value = site.value::<String, _, _>("lowest", HOUR, generate).await;
            return value.map(|value| value.to_string());
        }
        let content = if self.placeholder {
            site.content_or("lowest", HOUR, "soon", generate).await
        } else {
            site.content("lowest", HOUR, generate).await
        };
        content.map(|content| content.to_string())
    }

    async fn middle(self) -> Result<String, Error> {
        let (site, as_values) = (self.site.clone(), self.as_values);
        let generate = move || async move {
            let lowest = self.lowest().await.unwrap_or_else(|_| "none".into());
            Ok::<_, Infallible>(format!("a[{lowest}]"))
        };
        if as_values {
            let value = site.value::<String, _, _>("middle", HOUR, generate).await;
            return value.map(|value| value.to_string());
        }
        let content = site.content("middle", HOUR, generate).await;
        content.map(|content| content.to_string())
    }

    fn app(&self) -> Router {
        let levels = self.clone();
        let page = move || {
            let levels = levels.clone();
            async move {
                let middle = levels.middle().await.expect("is generated");
                format!("page[{middle}]")
            }
        };
        let layer = self.site.layer(HOUR);
        Router::new().route("/", route(page).layer(layer))
    }

    async fn invalidate_all(&self) {
        for name in ["lowest", "middle", "/"] {
            self.site.invalidate(name).await.expect("is invalidated");
        }
    }
}

async fn visit(app: &Router) -> String {
    get(app, "/").await.text().to_owned()
}

/// Visits the page once a second for a time, and returns the last answer.
async fn visit_for(app: &Router, time: Duration) -> String {
    for _ in 0..time.as_secs() {
        visit(app).await;
        perennial_testing::advance(SECOND).await;
    }
    visit(app).await
}

/// The parts run on the permit of the page, at any depth.
#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_has_a_stale_part() {
    for (as_values, at_once) in [(false, 1), (true, 1), (false, 32), (true, 32)] {
        let database = perennial_testing::Database::new();
        let builder = Perennial::builder().max_regenerations(at_once);
        let mut levels = Levels::of(&database, builder);
        levels.as_values = as_values;
        let app = levels.app();
        assert_eq!(visit_for(&app, 10 * SECOND).await, "page[a[1]]");
        levels.datum.store(2, SeqCst);
        levels.invalidate_all().await;
        let time = if at_once == 1 { 30 } else { 20 } * SECOND;
        assert_eq!(visit_for(&app, time).await, "page[a[2]]");
        // The page of fresh parts lasts.
        let generations = database.generations("/");
        visit_for(&app, 60 * SECOND).await;
        assert_eq!(database.generations("/"), generations);
    }
}

/// The process invalidates the page itself, before it has heard of the earlier change, which applies to the
/// part that it has in memory. Its next sync answers, or does not.
#[tokio::test(start_paused = true)]
async fn page_does_not_outlive_a_change_of_its_part_that_was_not_heard_of_in_time() {
    for (as_values, syncs_hang) in [(false, false), (true, false), (false, true), (true, true)] {
        let database = perennial_testing::Database::new();
        let here = Levels::of(&database, Perennial::builder());
        let hang = Arc::new(AtomicBool::new(false));
        let hangs = Arc::clone(&hang);
        let hook: Hook = Arc::new(move |operation, when| {
            match operation == "sync" && when == When::Before && hangs.load(SeqCst) {
                true => Box::pin(pending()),
                false => Box::pin(ready(())),
            }
        });
        let store = Box::new(database.clone());
        let site = Perennial::builder().with_store(Box::new(Hooked { store, hook }));
        let there = Levels {
            site: site.expect("opens"),
            as_values,
            ..here.clone()
        };
        let app = there.app();
        assert_eq!(visit_for(&app, 10 * SECOND).await, "page[a[1]]");
        // The next sync is a second away.
        there.site.caught_up().await.expect("answers");
        hang.store(syncs_hang, SeqCst);
        here.datum.store(2, SeqCst);
        here.site.invalidate_tag("datum").await.expect("is stored");
        there.site.invalidate("/").await.expect("is stored");
        visit_for(&app, 10 * SECOND).await;
        hang.store(false, SeqCst);
        let shown = visit_for(&app, 30 * SECOND).await;
        assert_eq!(shown, "page[a[2]]", "{as_values} {syncs_hang}");
        // The page of fresh parts lasts.
        let generations = database.generations("/");
        visit_for(&app, 60 * SECOND).await;
        assert_eq!(database.generations("/"), generations);
    }
}

/// The process learns its own invalidation before the next sync tells it whether there were earlier ones.
#[tokio::test(start_paused = true)]
async fn invalidated_page_with_fresh_parts_is_generated_once() {
    let database = perennial_testing::Database::new();
    let levels = Levels::of(&database, Perennial::builder());
    let app = levels.app();
    assert_eq!(visit_for(&app, 10 * SECOND).await, "page[a[1]]");
    levels.site.caught_up().await.expect("answers");
    let generations = database.generations("/");
    levels.site.invalidate("/").await.expect("is stored");
    for _ in 0..3 {
        assert_eq!(visit(&app).await, "page[a[1]]");
    }
    assert_eq!(database.generations("/"), generations + 1);
}

/// The epochs of two databases have nothing to do with each other.
#[tokio::test(start_paused = true)]
async fn invalidated_page_with_a_part_of_another_site_is_generated_once() {
    let databases = [(); 2].map(|()| perennial_testing::Database::new());
    let [page, part] = &databases;
    let page_site = page.open(Perennial::builder()).expect("opens");
    let part_site = part.open(Perennial::builder()).expect("opens");
    let show = route(async move || {
        let generate = async || Ok::<_, Infallible>("part");
        let content = part_site.content("part", HOUR, generate).await;
        content.expect("is generated").to_string()
    });
    let app = Router::new().route("/", show.layer(page_site.layer(HOUR)));
    assert_eq!(visit_for(&app, 10 * SECOND).await, "part");
    part.fail();
    let generations = page.generations("/");
    page_site.invalidate("/").await.expect("is stored");
    assert_eq!(visit_for(&app, 10 * SECOND).await, "part");
    assert_eq!(page.generations("/"), generations + 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_has_a_placeholder() {
    let database = perennial_testing::Database::new();
    let mut levels = Levels::of(&database, Perennial::builder());
    levels.placeholder = true;
    let app = levels.app();
    assert_eq!(visit(&app).await, "page[a[soon]]");
    assert_eq!(visit_for(&app, 20 * SECOND).await, "page[a[1]]");
}

/// The handler serves a page without the part that has failed.
#[tokio::test(start_paused = true)]
async fn a_page_is_stale_soon_whose_part_lacks_a_part_that_failed() {
    for as_values in [false, true] {
        let database = perennial_testing::Database::new();
        let mut levels = Levels::of(&database, Perennial::builder());
        levels.as_values = as_values;
        levels.fails.store(true, SeqCst);
        let app = levels.app();
        assert_eq!(visit(&app).await, "page[a[none]]");
        levels.fails.store(false, SeqCst);
        assert_eq!(visit_for(&app, 60 * SECOND).await, "page[a[1]]");
    }
}

/// A part that outlasts its page keeps the permit: it is a generator that runs.
#[tokio::test(start_paused = true)]
async fn a_part_that_outlasts_its_page_keeps_the_permit() {
    let database = perennial_testing::Database::new();
    let levels = Levels::of(&database, Perennial::builder().max_regenerations(1));
    let other = || {
        let site = levels.site.clone();
        let datum = Arc::clone(&levels.datum);
        async move {
            let generate =
                move || async move { Ok::<_, Infallible>(datum.load(SeqCst).to_string()) };
            let content = site.content("other", HOUR, generate).await;
            content.expect("is generated").to_string()
        }
    };
    let middle = || levels.clone().middle();
    assert_eq!(middle().await.expect("is generated"), "a[1]");
    assert_eq!(other().await, "1");
    levels.datum.store(2, SeqCst);
    levels.invalidate_all().await;
    levels
        .site
        .invalidate("other")
        .await
        .expect("is invalidated");
    // After the soft timeout of the lowest part, the middle part is generated from the old version of the
    // lowest one.
    assert_eq!(middle().await.expect("is served"), "a[1]");
    assert_eq!(other().await, "1");
    perennial_testing::advance(3 * SECOND).await;
    assert_eq!(other().await, "2");
}

#[tokio::test(start_paused = true)]
async fn pages_are_made_again_when_a_part_of_theirs_is_invalidated() {
    for (as_values, target) in [
        (false, "key"),
        (false, "tag"),
        (true, "key"),
        (true, "tag"),
        (false, "purge"),
    ] {
        let database = perennial_testing::Database::new();
        let mut here = Levels::of(&database, Perennial::builder());
        here.as_values = as_values;
        let there = Levels {
            site: database.open(Perennial::builder()).expect("opens"),
            ..here.clone()
        };
        let apps = [here.app(), there.app()];
        for app in &apps {
            assert_eq!(visit_for(app, 5 * SECOND).await, "page[a[1]]");
        }
        assert_eq!(database.generations("/"), 1);
        here.datum.store(2, SeqCst);
        let invalidated = match target {
            "key" => there.site.invalidate("lowest").await,
            "tag" => there.site.invalidate_tag("datum").await,
            _ => there.site.purge_tag("datum").await,
        };
        invalidated.expect("is invalidated");
        perennial_testing::advance(2 * SECOND).await;
        for app in &apps {
            let first = visit(app).await;
            assert!(
                target != "purge" || first == "page[a[2]]",
                "{target}: {first}"
            );
            assert_eq!(visit_for(app, 10 * SECOND).await, "page[a[2]]", "{target}");
        }
        // The regeneration has waited for the parts: no page was stored with an old one.
        assert_eq!(database.generations("/"), 2, "{target}");
    }
}

#[tokio::test(start_paused = true)]
async fn interval_of_a_page_ends_with_that_of_its_earliest_part() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let page = || {
        let site = site.clone();
        route(move || {
            let site = site.clone();
            async move {
                let part = |key, seconds| {
                    let minute = Refresh::every(seconds * SECOND);
                    site.content(key, minute, || async { Ok::<_, Infallible>("part") })
                };
                let (quick, slow) = (part("quick", 60).await, part("slow", 600).await);
                format!("{}{}", quick.expect("is made"), slow.expect("is made"))
            }
        })
    };
    let layers = [site.layer(HOUR), site.layer(HOUR.outlives_parts())];
    let [ends, outlives] = layers.map(|layer| Router::new().route("/{n}", page().layer(layer)));
    let ask = async |app: &Router, path: &str| {
        get(app, path).await;
        perennial_testing::advance(SECOND).await;
    };
    for (after, expected) in [(0, [1, 1]), (50, [1, 1]), (15, [2, 1]), (600, [3, 1])] {
        perennial_testing::advance(after * SECOND).await;
        ask(&ends, "/ends").await;
        ask(&outlives, "/outlives").await;
        let generations = ["/ends", "/outlives"].map(|key| database.generations(key));
        assert_eq!(generations, expected, "after {after} s more");
    }
    site.invalidate("slow").await.expect("is invalidated");
    ask(&outlives, "/outlives").await;
    assert_eq!(database.generations("/outlives"), 2);
}

#[tokio::test(start_paused = true)]
async fn contents_that_ask_for_each_other_end() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    const POLICY: Refresh = HOUR.generator_timeout(Duration::from_secs(8));
    let inner = site.clone();
    let other = move || {
        let site = inner.clone();
        async move {
            let first = site.content("first", POLICY, || async { Ok::<_, Infallible>("1") });
            let first = first.await;
            Ok::<_, Infallible>(first.map_or("none".to_owned(), |first| first.to_string()))
        }
    };
    let outer = site.clone();
    let inner = other.clone();
    let first = move || {
        let (site, other) = (outer.clone(), inner.clone());
        async move {
            let other = site.content("other", POLICY, other).await;
            let other = other.map_or("none".to_owned(), |other| other.to_string());
            Ok::<_, Infallible>(format!("first of {other}"))
        }
    };
    let content = site
        .content("other", POLICY, other.clone())
        .await
        .expect("is made");
    assert_eq!(content.to_string(), "1");
    for _ in 0..3 {
        for key in ["first", "other"] {
            site.invalidate(key).await.expect("is invalidated");
        }
        let begun = tokio::time::Instant::now();
        site.content("first", POLICY, first.clone())
            .await
            .expect("is served");
        assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
        perennial_testing::advance(20 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn page_of_a_thousand_parts_is_made_again_at_each_invalidation() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let parts = site.clone();
    let whole = async move || {
        for n in 0..1000 {
            let key = format!("part-{n}");
            let part = parts.content(&key, HOUR, || async { Ok::<_, Infallible>("x") });
            part.await.expect("is made");
        }
        Ok::<_, Infallible>("whole")
    };
    // This page has the content above as its only part.
    let (within, part) = (site.clone(), whole.clone());
    let outer = async move || {
        let whole = within.content("whole", HOUR, part.clone()).await;
        whole.map(|whole| format!("[{whole}]"))
    };
    let ask = async || {
        let (whole, outer) = (whole.clone(), outer.clone());
        site.content("whole", HOUR, whole).await.expect("is made");
        site.content("outer", HOUR, outer).await.expect("is made");
        perennial_testing::advance(2 * SECOND).await;
    };
    ask().await;
    ask().await;
    for key in ["whole", "outer"] {
        assert_eq!(database.generations(key), 1, "{key}");
    }
    site.invalidate_tag("anything")
        .await
        .expect("is invalidated");
    ask().await;
    for key in ["whole", "outer"] {
        assert_eq!(database.generations(key), 2, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn page_does_not_fail_with_a_part_that_takes_too_long() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let (parts, takes) = (site.clone(), Arc::new(AtomicU64::new(0)));
    let slow = Arc::clone(&takes);
    let part = async move || {
        let time = Duration::from_secs(slow.load(SeqCst));
        let generate = async move || {
            tokio::time::sleep(time).await;
            Ok::<_, Infallible>("part")
        };
        parts
            .content("part", HOUR.generator_timeout(1000 * SECOND), generate)
            .await
    };
    part().await.expect("is made");
    site.invalidate("part").await.expect("is invalidated");
    takes.store(900, SeqCst);
    let page = async move || part().await.map(|part| format!("page[{part}]"));
    let page = site
        .content("page", HOUR.generator_timeout(40 * SECOND), page)
        .await;
    assert_eq!(page.expect("is made").text(), "page[part]");
}

#[tokio::test(start_paused = true)]
async fn a_stale_part_does_not_lengthen_a_declared_interval() {
    let database = perennial_testing::Database::new();
    let site = database.open(Perennial::builder()).expect("opens");
    let page = {
        let site = site.clone();
        move || {
            let site = site.clone();
            async move {
                let list = site.content_or("list", HOUR, "soon", async || {
                    tokio::time::sleep(20 * SECOND).await;
                    Ok::<_, Error>("the list")
                });
                let list = list.await.expect("is there").to_string();
                ([("cache-control", "max-age=1")], list)
            }
        }
    };
    let policy = Refresh::by_headers(3600 * SECOND);
    let app = Router::new().route("/", route(page).layer(site.layer(&policy)));
    for generations in 1..=2 {
        assert_eq!(visit(&app).await, "soon");
        assert_eq!(database.generations("/"), generations);
        perennial_testing::advance(2 * SECOND).await;
    }
}
