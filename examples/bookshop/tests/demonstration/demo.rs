//! The demonstration: its rounds and stories go as promised, and its shops end with it.

use std::process::Command;

use perennial::Perennial;
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;

use perennial_testkit::{
    Folder, get,
    program::{Program, example},
    until,
};

async fn state(demo: &Program) -> Value {
    let reply = get(demo.address, "/state").await;
    serde_json::from_str(reply.text()).expect("is JSON")
}

async fn address_of(demo: &Program, shop: usize) -> std::net::SocketAddr {
    let state = state(demo).await;
    let address = state["shops"][shop]["address"].as_str().expect("text");
    address.parse().expect("an address")
}

/// The six stories are told in order. Each checks its promise, and the program fails with it.
#[test]
fn plain_text_tells_two_rounds_and_six_stories() {
    let folder = Folder::new();
    let mut command = Command::new(example("bookshop"));
    command.args(["--plain", "--database", &folder.url()]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.matches("Watch for: ").count(), 6, "{said}");
    assert_eq!(said.matches("Round at ").count(), 2, "{said}");
    assert!(said.contains("visitors: "), "{said}");
    assert!(!said.contains('✗'), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_shows_a_round_and_the_shops_end_with_it() {
    let folder = Folder::new();
    let url = folder.url();
    let own_url = url.clone();
    // A short lease is shown, too, as it is read from the history.
    let demo = tokio::task::spawn_blocking(move || Program::start("bookshop", &url, "--slow=1ms"));
    let demo = demo.await.expect("starts");
    assert!(get(demo.address, "/").await.text().contains("this round"));
    until("a lease of a millisecond is shown", async || {
        let state = state(&demo).await;
        let lease = &state["leases"][0];
        lease["state"] == "published"
            && lease["holder"]
                .as_str()
                .is_some_and(|it| it.starts_with("process "))
    })
    .await;
    until(
        "the counts are those of one generation beside two",
        async || {
            let round = &state(&demo).await["round"];
            round["with"]["generations"] == 1 && round["without"]["generations"] == 2
        },
    )
    .await;
    // The status page of each shop is behind its login.
    for shop in 0..2 {
        let address = address_of(&demo, shop).await;
        assert_eq!(get(address, "/status/entries").await.status, 401);
        let operator = [("authorization", "Basic b3BlcmF0b3I6ZGVtbw==")];
        let entries =
            perennial_testkit::request(address, "GET", "/status/entries", &operator).await;
        assert!(entries.text().contains(">/demo</a>"), "{}", entries.text());
    }

    // The processes that a deploy has ended were shut down, and still count in the last hour.
    let site = Perennial::open(&own_url).await.expect("opens");
    until("a deploy has ended both shops", async || {
        let processes = site.processes().await.expect("answers");
        processes.iter().filter(|it| it.ended).count() == 2
    })
    .await;
    until("both shops are open again", async || {
        let state = state(&demo).await;
        [0, 1]
            .iter()
            .all(|shop: &usize| state["shops"][*shop]["up"] == true)
    })
    .await;
    let state = state(&demo).await;

    // The shops end with the demonstration, however it ends.
    let pids = [0, 1].map(|shop| state["shops"][shop]["pid"].as_i64().expect("a number"));
    demo.signal(Signal::KILL);
    until("the shops end", async || {
        let is_gone = |pid: i64| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            test_kill_process(pid.expect("a process")).is_err()
        };
        pids.into_iter().all(is_gone)
    })
    .await;
}
