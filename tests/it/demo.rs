//! The demonstration of the bookshop: its stories go as promised, and its shops end with it.

use std::time::Duration;

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;

use crate::support::{Folder, Program, exchange, get, until};

async fn state(demo: &Program) -> Value {
    let reply = get(demo.address, "/state").await;
    serde_json::from_str(reply.text()).expect("is JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_story_goes_as_promised() {
    let folder = Folder::new();
    let url = folder.url();
    let demo = tokio::task::spawn_blocking(move || Program::start("bookshop", &url, ""));
    let demo = demo.await.expect("starts");
    assert!(get(demo.address, "/").await.text().contains("Watch for"));
    for story in 1..=5 {
        let path = format!("/story/{story}");
        let reply = tokio::time::timeout(
            Duration::from_secs(120),
            exchange(demo.address, "POST", &path, &[], ""),
        );
        let reply = reply.await.expect("ends");
        let told: Value = serde_json::from_str(reply.text()).expect("is JSON");
        assert_eq!(told["ok"], true, "{told}");
    }
    // The status page is behind its login.
    assert_eq!(get(demo.address, "/status/entries").await.status, 401);
    let operator = [("authorization", "Basic b3BlcmF0b3I6ZGVtbw==")];
    let entries = exchange(demo.address, "GET", "/status/entries", &operator, "").await;
    assert!(entries.text().contains(">/demo</a>"), "{}", entries.text());

    let state = state(&demo).await;
    assert_eq!(state["stories"].as_array().map(Vec::len), Some(5));
    let count = |side: &str| state[side]["generations"].as_u64().expect("a number");
    assert!(count("without") > 5 * count("with"), "{state}");

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
