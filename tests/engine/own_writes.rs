//! The author of a change and the pages that show it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header, request::Parts},
    routing::{get, post},
};
use perennial::{Generation, Perennial, Refresh, layer::Holes};
use perennial_store::{Backend, Invalidate};
use tokio::time::{Instant, sleep};

use crate::other_processes::Counted;
use perennial_testkit::{
    request,
    virtual_time::{Shared, here},
};

/// No visitor waits for the new version, but for the author.
const HOUR: Refresh = Refresh::every(Duration::from_hours(1)).in_background();
const GENERATOR: Duration = Duration::from_millis(300);

struct Process {
    list: Arc<AtomicUsize>,
    site: Perennial,
    statements: Counted,
    address: &'static Router,
}

/// A process with a list and a form that changes the list.
fn process(shared: &Shared, list: &Arc<AtomicUsize>) -> Process {
    let statements = Counted::new(shared);
    let site = Perennial::builder()
        .read_own_writes()
        .with_store(Box::new(statements.clone()));
    let site = site.expect("opens");
    let (shown, changed) = (list.clone(), list.clone());
    let show = get(async move || {
        sleep(GENERATOR).await;
        shown.load(SeqCst).to_string()
    });
    let read = list.clone();
    let show_read_before = get(async move || {
        let read = read.load(SeqCst);
        sleep(GENERATOR).await;
        read.to_string()
    });
    let (parts, part) = (site.clone(), list.clone());
    let show_a_part = get(async move || {
        sleep(GENERATOR).await;
        let list = async move |generation: Generation| {
            generation.tag("list");
            Ok::<_, Infallible>(part.load(SeqCst).to_string())
        };
        let list = parts.content("list", HOUR, list).await;
        let title = parts
            .content("title", HOUR, async || Ok::<_, Infallible>(""))
            .await;
        format!(
            "{}{}",
            title.expect("is generated"),
            list.expect("is generated")
        )
    });
    // The list is asked for in three ways: as content of its own, in a hole of a page, and in a handler
    // that bypasses the cache.
    let (own, shown) = (site.clone(), list.clone());
    let slow_list = move || {
        let (site, list) = (own.clone(), shown.clone());
        async move {
            let generate = async move |generation: Generation| {
                generation.tag("list");
                sleep(GENERATOR).await;
                Ok::<_, Infallible>(list.load(SeqCst).to_string())
            };
            let content = site.content("slow-list", HOUR, generate).await;
            content.map(|content| content.to_string())
        }
    };
    let in_hole = slow_list.clone();
    let with_hole = get(async |holes: Holes| holes.text("list"));
    let with_hole = with_hole.layer(site.layer(HOUR).hole("list", move |_: Parts| in_hole()));
    let personal = get(async move || slow_list().await.expect("is made"));
    let personal = personal.layer(site.layer(HOUR).bypass_if(|_| true));
    let change = post(async move || changed.fetch_add(1, SeqCst).to_string());
    let writes = site.invalidate_on_success("list");
    let (own, changed) = (site.clone(), list.clone());
    let change_itself = post(async move || {
        own.invalidate_tag("list").await.expect("is stored");
        changed.fetch_add(1, SeqCst).to_string()
    });
    let app = Router::new()
        .route("/list", show.layer(site.layer(HOUR).tag("list")))
        .route("/part", show_a_part.layer(site.layer(HOUR)))
        .route(
            "/read-before",
            show_read_before.layer(site.layer(HOUR).tag("list")),
        )
        .route(
            "/own",
            get(async || "")
                .post(async || "")
                .layer(site.layer(HOUR).invalidate_on_unsafe()),
        )
        .route("/hole", with_hole)
        .route("/personal", personal)
        .route("/change", change.layer(writes))
        .route(
            "/change-itself",
            change_itself.layer(site.invalidate_by_response_tags()),
        );
    Process {
        list: Arc::clone(list),
        site,
        statements,
        address: here(app),
    }
}

async fn ask(
    address: &'static Router,
    method: &str,
    path: &str,
    cookie: Option<&str>,
) -> (HeaderMap, String) {
    let cookie = cookie.map(|cookie| ("cookie", cookie));
    let reply = request(address, method, path, cookie.as_slice()).await;
    assert_eq!(reply.status, 200);
    (reply.headers.clone(), reply.text().to_owned())
}

/// Two processes with the first list in memory.
async fn two_processes() -> [Process; 2] {
    let (shared, list) = (Shared::new(), Arc::new(AtomicUsize::new(1)));
    let processes = [(); 2].map(|()| process(&shared, &list));
    for process in &processes {
        assert_eq!(ask(process.address, "GET", "/list", None).await.1, "1");
    }
    processes
}

/// Changes the list, and returns the author's cookie.
async fn change(address: &'static Router) -> String {
    change_by(address, "/change").await
}

async fn change_by(address: &'static Router, path: &str) -> String {
    let (headers, _) = ask(address, "POST", path, None).await;
    let cookie = headers[header::SET_COOKIE].to_str().expect("text");
    assert!(
        cookie.ends_with("; Max-Age=10; Path=/; HttpOnly; SameSite=Lax"),
        "{cookie}"
    );
    cookie.split(';').next().expect("a pair").to_owned()
}

#[tokio::test(start_paused = true)]
async fn author_of_a_change_sees_it_in_each_process() {
    let [here, there] = two_processes().await;
    for (number, process) in [(2, &here), (3, &there), (4, &there)] {
        sleep(Duration::from_secs(2)).await;
        // Another visitor's request makes the process sync just before the change.
        ask(process.address, "GET", "/list", None).await;
        let cookie = change(here.address).await;
        let (_, shown) = ask(process.address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, number.to_string());
        // The page is fresh now, and a request with the cookie is a hit.
        process.statements.take();
        let (headers, shown) = ask(process.address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, number.to_string());
        let status = headers["cache-status"].to_str().expect("text");
        assert!(status.starts_with("perennial; hit; ttl=35"), "{status}");
        assert!(process.statements.take().len() <= 1);
    }
    // Changes in quick succession, whose syncs have to wait for their turn.
    for number in 5..9 {
        let cookie = change(here.address).await;
        let (_, shown) = ask(there.address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, number.to_string());
    }
}

/// As in a transaction of the handler's own.
#[tokio::test(start_paused = true)]
async fn author_sees_what_the_handler_itself_has_invalidated() {
    let [here, there] = two_processes().await;
    let cookie = change_by(here.address, "/change-itself").await;
    let (_, shown) = ask(there.address, "GET", "/list", Some(&cookie)).await;
    assert_eq!(shown, "2");
}

/// A visitor of one process was faster than the author, who comes to the other one.
#[tokio::test(start_paused = true)]
async fn author_waits_for_the_version_that_another_process_generates() {
    let [here, there] = two_processes().await;
    for number in 2..5 {
        sleep(Duration::from_secs(2)).await;
        let cookie = change(here.address).await;
        // The policy regenerates in the background: the visitor gets the old page, and the
        // generator runs.
        ask(here.address, "GET", "/list", None).await;
        sleep(GENERATOR / 3).await;
        let author = ask(there.address, "GET", "/list", Some(&cookie));
        let visitor = async {
            sleep(GENERATOR / 6).await;
            let asked = Instant::now();
            let (_, shown) = ask(there.address, "GET", "/list", None).await;
            (shown, asked.elapsed())
        };
        let ((_, shown), visitor) = tokio::join!(author, visitor);
        assert_eq!(shown, number.to_string());
        // Nobody else waits.
        assert_eq!(visitor, ((number - 1).to_string(), Duration::ZERO));
    }
}

/// The content is asked for in the author's own request, by a function of a hole or by a handler.
#[tokio::test(start_paused = true)]
async fn author_sees_the_change_in_content_of_the_authors_own_request() {
    for path in ["/hole", "/personal"] {
        let [here, there] = two_processes().await;
        for process in [&here, &there] {
            let (_, shown) = ask(process.address, "GET", path, None).await;
            assert_eq!(shown, "1");
        }
        for number in 2..5 {
            sleep(Duration::from_secs(2)).await;
            let cookie = change(here.address).await;
            // A visitor finds the content stale, gets the old version, and thereby starts the
            // generator.
            let (_, shown) = ask(there.address, "GET", path, None).await;
            assert_eq!(shown, (number - 1).to_string(), "{path}");
            sleep(GENERATOR / 3).await;
            for process in [&there, &here] {
                let (_, shown) = ask(process.address, "GET", path, Some(&cookie)).await;
                assert_eq!(shown, number.to_string(), "{path}");
            }
            // Nobody else waits.
            let begun = Instant::now();
            ask(here.address, "GET", path, None).await;
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }
}

/// The wait for content ends before that of the hole does, which would show nothing.
#[tokio::test(start_paused = true)]
async fn author_gets_the_old_content_where_the_new_one_takes_longer_than_a_hole() {
    let shared = Shared::new();
    let site = Perennial::builder()
        .read_own_writes()
        .with_store(Box::new(Counted::new(&shared)));
    let site = site.expect("opens");
    let (content, runs) = (site.clone(), Arc::new(AtomicUsize::new(0)));
    let list = move || {
        let (site, runs) = (content.clone(), runs.clone());
        async move {
            let generate = async move |generation: Generation| {
                generation.tag("list");
                let run = runs.fetch_add(1, SeqCst);
                sleep(Duration::from_secs(if run == 0 { 0 } else { 20 })).await;
                Ok::<_, Infallible>(run.to_string())
            };
            let content = site.content("list", HOUR, generate).await;
            content.map(|content| content.to_string())
        }
    };
    let page = get(async |holes: Holes| holes.text("list"));
    let layer = site.layer(HOUR).hole("list", move |_: Parts| list());
    let change = post(async || "").layer(site.invalidate_on_success("list"));
    let app = Router::new()
        .route("/", page.layer(layer))
        .route("/change", change);
    let address = here(app);
    assert_eq!(ask(address, "GET", "/", None).await.1, "0");
    let cookie = change_by(address, "/change").await;
    let begun = Instant::now();
    assert_eq!(ask(address, "GET", "/", Some(&cookie)).await.1, "0");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

/// A generator that has read the list before the change is not the author's.
#[tokio::test(start_paused = true)]
async fn author_does_not_share_a_generation_that_began_before_the_change() {
    let [process, _] = two_processes().await;
    let address = process.address;
    let show = async |cookie| ask(address, "GET", "/read-before", cookie).await.1;
    assert_eq!(show(None).await, "1");
    process
        .site
        .invalidate_tag("list")
        .await
        .expect("is stored");
    assert_eq!(show(None).await, "1", "and the next generation begins");
    sleep(GENERATOR / 3).await;
    let cookie = change(address).await;
    let begun = Instant::now();
    assert_eq!(show(Some(&cookie)).await, "2");
    assert!(begun.elapsed() < 3 * GENERATOR, "{:?}", begun.elapsed());
}

/// Another process begins to generate the page after the change, of which it has not heard yet, and has the
/// part from before the change in memory. The lock's row has told it the epoch of the change.
#[tokio::test(start_paused = true)]
async fn author_gets_no_page_with_a_part_from_before_the_change() {
    for since_change in [0, 100, 400, 900].map(Duration::from_millis) {
        let [here, there] = two_processes().await;
        let show =
            async |process: &Process, cookie| ask(process.address, "GET", "/part", cookie).await.1;
        assert_eq!(show(&here, None).await, "1");
        assert_eq!(show(&there, None).await, "1");
        sleep(Duration::from_secs(2)).await;
        there.site.invalidate("/part").await.expect("is stored");
        // A request for another page makes the process sync now.
        ask(there.address, "GET", "/list", None).await;
        sleep(Duration::from_millis(50)).await;
        let cookie = change(here.address).await;
        assert_eq!(
            show(&there, None).await,
            "1",
            "and the next generation begins"
        );
        sleep(since_change).await;
        assert_eq!(show(&here, Some(&cookie)).await, "2", "{since_change:?}");
    }
}

/// The number of the latest epoch says nothing to a process: a revision that is stored again leaves no name.
#[tokio::test(start_paused = true)]
async fn page_with_parts_costs_one_sync_where_the_database_has_a_later_epoch() {
    let (shared, list) = (Shared::new(), Arc::new(AtomicUsize::new(1)));
    let process = process(&shared, &list);
    let store_revision = async || {
        let revision = Invalidate::new(vec!["revision:1".to_owned()]);
        shared.call(revision.into()).await.expect("is stored");
    };
    store_revision().await;
    for round in 0..3 {
        process.site.caught_up().await.expect("answers");
        process.site.purge("/part").await.expect("is purged");
        store_revision().await;
        process.statements.take();
        assert_eq!(ask(process.address, "GET", "/part", None).await.1, "1");
        let statements = process.statements.take();
        assert_eq!(statements["sync"], 1, "{round}: {statements:?}");
        // What was generated lasts.
        sleep(Duration::from_secs(2)).await;
        let (headers, _) = ask(process.address, "GET", "/part", None).await;
        let status = headers["cache-status"].to_str().expect("text");
        assert!(status.starts_with("perennial; hit; ttl=35"), "{status}");
    }
}

/// In the process that has made the change there is nothing to wait for: it knows the change.
#[tokio::test(start_paused = true)]
async fn author_waits_for_no_sync_in_the_process_of_the_change() {
    let [here, there] = two_processes().await;
    let mut longest = Duration::ZERO;
    for round in 0..50 {
        // Others change the list as well, in both processes.
        if round % 3 == 0 {
            change(there.address).await;
        }
        let cookie = change_by(here.address, ["/change", "/change-itself"][round % 2]).await;
        let begun = Instant::now();
        let (_, shown) = ask(here.address, "GET", "/list", Some(&cookie)).await;
        longest = longest.max(begun.elapsed() - GENERATOR);
        assert_eq!(shown, here.list.load(SeqCst).to_string());
        sleep(Duration::from_millis(37 * round as u64 % 700)).await;
    }
    // The clock of a test ticks in whole milliseconds, and each of a generator's sleeps may take one tick
    // longer.
    assert!(longest < Duration::from_millis(20), "{longest:?}");
}

/// An author who has changed something in two processes sees both changes in each of them, whether the
/// requests came one after the other or at the same time.
#[tokio::test(start_paused = true)]
async fn author_of_changes_in_two_processes_sees_both_in_each() {
    for first in [0, 1] {
        for reads_in in [0, 1] {
            let processes = two_processes().await;
            // Neither request has the cookie of the other one.
            let cookies = [
                change(processes[first].address).await,
                change_by(processes[1 - first].address, "/own").await,
            ];
            // A browser keeps the latest cookie of a name.
            let latest = cookies.iter().map(|cookie| cookie.split_once('='));
            let latest: BTreeMap<_, _> = latest.map(|pair| pair.expect("a pair")).collect();
            let latest: Vec<_> = latest
                .iter()
                .map(|(name, it)| format!("{name}={it}"))
                .collect();
            let cookies = latest.join("; ");
            let reader = &processes[reads_in];
            let (_, shown) = ask(reader.address, "GET", "/list", Some(&cookies)).await;
            assert_eq!(shown, "2");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn author_has_the_cookie_from_each_layer_of_the_site() {
    let (shared, list) = (Shared::new(), Arc::new(AtomicUsize::new(1)));
    let process = process(&shared, &list);
    for path in ["/change", "/own"] {
        let (headers, _) = ask(process.address, "POST", path, None).await;
        assert!(headers.contains_key(header::SET_COOKIE), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn invented_epochs_cost_a_statement_a_second_and_regenerate_nothing() {
    let (shared, list) = (Shared::new(), Arc::new(AtomicUsize::new(1)));
    let process = process(&shared, &list);
    ask(process.address, "GET", "/list", None).await;
    process.statements.take();
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < Duration::from_secs(10) {
        let epochs = [i64::MAX, i64::MIN, 0, 1].map(|it| format!("perennial-epoch-0-1={it}"));
        let asking = epochs
            .iter()
            .map(|it| ask(process.address, "GET", "/list", Some(it)));
        for (_, shown) in futures_util::future::join_all(asking).await {
            assert_eq!(shown, "1");
        }
        asked += epochs.len();
        // If nothing waits, time passes nevertheless.
        sleep(Duration::from_millis(1)).await;
    }
    // The process sends one sync each second. Cookies with epochs that it has not heard of cause at most
    // one more each second, however many there are.
    let statements = process.statements.take();
    assert!(
        statements["sync"] <= 22 && statements.len() == 1,
        "{statements:?}"
    );
    assert!(asked >= 36, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn code_waits_until_its_process_knows_what_was_invalidated() {
    let (shared, list) = (Shared::new(), Arc::new(AtomicUsize::new(1)));
    let [here, there] = [(); 2].map(|()| process(&shared, &list));
    ask(there.address, "GET", "/list", None).await;
    list.store(2, SeqCst);
    here.site.purge_tag("list").await.expect("is purged");
    there.site.caught_up().await.expect("answers");
    assert_eq!(ask(there.address, "GET", "/list", None).await.1, "2");
}

/// A page that takes long, or fails; and a form that changes it.
fn slow_or_failing(fails: &Arc<AtomicBool>) -> (Perennial, Counted, &'static Router) {
    let statements = Counted::new(&Shared::new());
    let site = Perennial::builder()
        .read_own_writes()
        .with_store(Box::new(statements.clone()));
    let site = site.expect("opens");
    let (runs, fails) = (Arc::new(AtomicUsize::new(0)), Arc::clone(fails));
    let show = get(async move || {
        let run = runs.fetch_add(1, SeqCst) + 1;
        if run > 1 {
            sleep(Duration::from_secs(10)).await;
        }
        if fails.load(SeqCst) {
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        } else {
            Ok(run.to_string())
        }
    });
    let writes = site.invalidate_on_success("list");
    let app = Router::new()
        .route("/list", show.layer(site.layer(HOUR).tag("list")))
        .route("/change", post(async || "").layer(writes));
    (site, statements, here(app))
}

#[tokio::test(start_paused = true)]
async fn author_gets_the_old_page_where_there_is_no_new_one() {
    let fails = Arc::new(AtomicBool::new(false));
    let (_site, statements, address) = slow_or_failing(&fails);
    assert_eq!(ask(address, "GET", "/list", None).await.1, "1");
    fails.store(true, SeqCst);
    let cookie = change(address).await;
    for _ in 0..3 {
        let (_, shown) = ask(address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, "1", "in place of a failure");
        sleep(Duration::from_secs(1)).await;
    }
    // During the cooldown, 100 requests come with copies of the cookie.
    statements.take();
    for _ in 0..100 {
        let (_, shown) = ask(address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, "1");
    }
    let statements = statements.take();
    assert!(statements.values().sum::<usize>() <= 2, "{statements:?}");
}

#[tokio::test(start_paused = true)]
async fn invented_epoch_waits_for_no_new_version() {
    let (site, _, address) = slow_or_failing(&Arc::default());
    assert_eq!(ask(address, "GET", "/list", None).await.1, "1");
    site.invalidate_tag("list").await.expect("is stored");
    for epoch in [i64::MAX - 1, 1 << 62] {
        let (cookie, begun) = (format!("perennial-epoch-0-1={epoch}"), Instant::now());
        let (_, shown) = ask(address, "GET", "/list", Some(&cookie)).await;
        assert_eq!(shown, "1");
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
    }
}
