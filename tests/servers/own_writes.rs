//! The cookie that names the latest change of its visitor.

use axum::{Router, routing::post};
use perennial::{Builder, Perennial};
use perennial_testkit::{Db, on_each_database, open_site, patient, request};

on_each_database! {
    cookies_tell_the_sites_of_one_host_apart
}

/// The cookies of a host reach each site behind it, and a site knows its own by the number in their names.
async fn cookies_tell_the_sites_of_one_host_apart(db: Db) {
    let site_of = async |site: Perennial| {
        let writes = site.invalidate_on_success("list");
        let app = Router::new().route("/change", post(async || "").layer(writes));
        let reply = request(&app, "POST", "/change", &[]).await;
        let cookie = reply.header("set-cookie").to_owned();
        let (name, _) = cookie.split_once('=').expect("a value");
        name.split('-').nth(2).expect("a number").to_owned()
    };
    let open = async |builder: Builder| {
        let site = open_site(builder.read_own_writes(), db.url()).await;
        site.expect("opens")
    };
    let other = open(patient().table_prefix("other_")).await;
    let [one, again] = [
        site_of(open(patient()).await).await,
        site_of(open(patient()).await).await,
    ];
    let other = site_of(other).await;
    assert_eq!(one, again, "two processes of a site");
    assert!(one != other && one != "0" && other != "0", "{one} {other}");
}
