//! Rows as another release, another program or a broken disk may leave them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use bytes::Bytes;
use perennial::{DAY, Refresh, entries::EntryFilter};
use perennial_store::{Epoch, LeaseRow, NewEntry, Publish, Release, TryLock};
use perennial_testkit::{Ask, fuzz, page, virtual_time::Shared};
use proptest::prelude::*;

use super::{OF_ORIGINS, lines};

const LEASE: Duration = Duration::from_secs(3600);

/// Lines: status, epoch, interval in microseconds, metadata, history (`|` for the end of a line), headers.
#[test]
fn any_row_is_served_or_generated_again() {
    let metadata = prop_oneof![
        "\\PC{0,40}",
        "\\{(\"(took|layer|revision|provisional|tags)\":([a-z0-9-]{0,20}|\"[a-z]{0,9}\"|\\[\"a\"\\]),?){0,4}\\}",
    ];
    let row = (
        200..600_u16,
        any::<i64>(),
        any::<u64>(),
        metadata,
        "[ -~]{0,60}",
        lines(OF_ORIGINS),
    );
    let inputs = row.prop_map(|(status, epoch, interval, metadata, history, lines)| {
        let row = [
            status.to_string(),
            epoch.to_string(),
            interval.to_string(),
            format!("metadata {metadata}"),
            format!("history {history}"),
        ];
        [row.to_vec(), lines].concat()
    });
    fuzz::lines(
        include_str!("corpus/stored_rows.txt"),
        inputs,
        async |input| {
            let [status, epoch, interval, metadata, history, fields @ ..] = input else {
                panic!("a row has five lines, and headers");
            };
            let shared = Shared::new();
            let (store, name) = (shared.store(), page("/"));
            let fence = store.ask(TryLock::new(&name, "hostile", LEASE, None)).await;
            let lease = LeaseRow {
                name,
                owner: "hostile".to_owned(),
                fence: fence.expect("answers").fence.expect("is free"),
            };
            let status: u16 = status.parse().expect("a status");
            let mut content = Response::new(Bytes::from_static(b"a row"));
            *content.headers_mut() = fuzz::headers(fields);
            *content.status_mut() = StatusCode::from_u16(status).expect("is a status");
            let entry = NewEntry {
                content,
                renews: None,
                epoch: Epoch(epoch.parse().expect("a number")),
                interval: Duration::from_micros(interval.parse().expect("a number")),
                metadata: metadata.trim_start_matches("metadata ").to_owned(),
                history: history.trim_start_matches("history ").replace('|', "\n"),
                retention: DAY,
                lasting: true,
            };
            let published = store.ask(Publish::new(&lease, entry)).await;
            assert!(published.expect("answers"));
            let released = store.ask(Release::new(&lease, Duration::ZERO)).await;
            released.expect("answers");

            let site = shared.site();
            let generated = Arc::new(Mutex::new(false));
            let noted = Arc::clone(&generated);
            let answer = move || {
                *noted.lock().expect("not poisoned") = true;
                async { "generated" }
            };
            let app = Router::new().fallback(answer);
            let app = app.layer(site.layer(Refresh::every(DAY)));
            let (parts, body) = (&app).ask(Request::new(Body::empty())).await;
            if *generated.lock().expect("not poisoned") {
                assert_eq!(body, "generated");
            } else {
                assert_eq!((parts.status.as_u16(), &*body), (status, &b"a row"[..]));
            }
            let entries = site.entries(&EntryFilter::new()).await.expect("answers");
            assert_eq!(entries.entries.len(), 1);
            site.entry("/").await.expect("answers");
        },
    );
}
