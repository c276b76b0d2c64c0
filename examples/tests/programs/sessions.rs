//! The example of a shop with logins: one page for all visitors without a login, a page of their
//! own for each visitor with one, and a page for all.

use std::net::SocketAddr;

use perennial_testkit::{Folder, Reply, exchange, get, post, program::Program, request, until};

/// Logs in, and returns the cookie of the session.
async fn log_in(shop: SocketAddr, form: &str) -> String {
    let answer = post(shop, "/login", form).await;
    assert_eq!(answer.status, 303);
    let cookie = answer.header("set-cookie");
    cookie.split(';').next().expect("a cookie").to_owned()
}

async fn front(shop: SocketAddr, cookie: &str) -> Reply {
    request(shop, "GET", "/", &[("cookie", cookie)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn visitors_without_a_login_share_a_page_and_others_have_their_own() {
    let folder = Folder::new();
    let shop = Program::start("sessions", &folder.url(), "--work 1ms");
    let shop = shop.address;
    assert!(get(shop, "/").await.text().contains("action=/login"));
    let anna = log_in(shop, "name=Anna").await;
    let ben = log_in(shop, "name=Ben%3Cb%3E").await;
    for (cookie, greeting) in [(&anna, "Welcome, Anna."), (&ben, "Welcome, Ben&lt;b>.")] {
        let own = front(shop, cookie).await;
        assert!(own.text().contains(greeting), "{own:?}");
        assert!(own.text().contains("<li>Ulysses</li>"), "{own:?}");
        let how = own.header("cache-status");
        assert_eq!(how, "perennial; fwd=bypass; detail=bypass-if");
    }
    let shared = get(shop, "/").await;
    assert!(shared.text().contains("action=/login"), "{shared:?}");
    let how = shared.header("cache-status");
    assert!(how.starts_with("perennial; hit"), "{how}");

    let form = [("content-type", "application/x-www-form-urlencoded")];
    let refused = exchange(shop, "POST", "/books", &form, "title=Emma").await;
    assert_eq!(refused.status, 401);
    let logged_in = [form[0], ("cookie", &anna)];
    let added = exchange(shop, "POST", "/books", &logged_in, "title=Emma").await;
    assert_eq!(added.status, 303);
    for cookie in [&*anna, "theme=dark"] {
        until("the new book is listed", async || {
            front(shop, cookie).await.text().contains("Emma")
        })
        .await;
    }
    let left = request(shop, "POST", "/logout", &[("cookie", &anna)]).await;
    assert_eq!(left.status, 303);
    assert!(front(shop, &anna).await.text().contains("action=/login"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_and_a_token_log_in_at_each_process() {
    let folder = Folder::new();
    let [one, two] = [(); 2].map(|()| Program::start("sessions", &folder.url(), "--work 1ms"));
    let cookie = log_in(one.address, "name=Ben%3B+%E2%82%AC&remember=on").await;
    let cookie = ("cookie", &*cookie);
    let token = ("authorization", "Bearer Cleo");
    for shop in [one.address, two.address] {
        for (login, greeting) in [(cookie, "Welcome, Ben; €."), (token, "Welcome, Cleo.")] {
            let own = request(shop, "GET", "/", &[login]).await;
            assert!(own.text().contains(greeting), "{own:?}");
            let of_all = request(shop, "GET", "/about", &[login]).await;
            assert!(of_all.text().contains("action=/login"), "{of_all:?}");
        }
    }
    let left = request(one.address, "POST", "/logout", &[cookie]).await;
    let removed = left.header("set-cookie");
    assert!(removed.starts_with("remember=; ") && removed.contains("Max-Age=0"));
}
