//! Two bookshops on one database are one site, on each database.

use perennial_testkit::{
    Crowd, Db, Reply, get, on_each_database, post, program::Program, request, until,
};

on_each_database! {
    two_shops_on_one_database_are_one_site
}

const OPTIONS: &str = "--shop --best-sellers-every 1s --slow 100ms";

/// The time and the process of a list's generation.
fn made(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{reply:?}");
    let (_, made) = reply.text().split_once("Generated at").expect("is a list");
    made.split("</p>").next().expect("has a beginning")
}

async fn two_shops_on_one_database_are_one_site(db: Db) {
    let url = db.url().to_owned();
    let starts = [(); 2].map(|()| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || Program::start("bookshop", &url, OPTIONS))
    });
    let mut shops = Vec::new();
    for start in starts {
        shops.push(start.await.expect("opens"));
    }
    let addresses: Vec<_> = shops.iter().map(|shop| shop.address).collect();
    // The interval of `/new-releases` is a week.
    let releases = Crowd::visit(20, &addresses, "/new-releases").rest().await;
    assert!(
        releases
            .iter()
            .all(|reply| made(reply) == made(&releases[0]))
    );
    let first = get(addresses[0], "/best-sellers").await;

    let bought = request(addresses[0], "POST", "/buy/3", &[]).await;
    assert_eq!(bought.status, 303);
    let nothing = request(addresses[0], "POST", "/buy/99", &[]).await;
    assert_eq!(nothing.status, 404);
    let books: i64 = db.int("SELECT count(*) FROM books").await.expect("counts");
    let orders = db.int("SELECT count(*) FROM orders").await;
    assert_eq!(
        (books, orders),
        (42, Some(301)),
        "the shop was furnished once"
    );

    until("both have the same new list", async || {
        let second = Crowd::visit(2, &addresses, "/best-sellers").rest().await;
        made(&second[0]) == made(&second[1]) && made(&second[0]) != made(&first)
    })
    .await;
    // A new book soon appears in the lists of both processes, in spite of the interval.
    let form = "title=A+%3Cnew%3E+book%27s+%22title%22&author=%C3%84.+Uthor&year=2026";
    let added = post(addresses[0], "/books", form).await;
    assert_eq!(added.status, 303);
    assert_eq!(
        post(addresses[0], "/books", "title=x&year=2026")
            .await
            .status,
        422
    );
    let shows = |reply: &Reply| {
        reply
            .text()
            .contains("A &lt;new&gt; book's &quot;title&quot;")
    };
    // The process that added the book waits at most 5 s for its own invalidation. With a slow
    // database, it may serve the old list a moment longer.
    for address in &addresses {
        until("its list shows the book", async || {
            shows(&get(*address, "/new-releases").await)
        })
        .await;
    }
    // The stored list greets each visitor by name.
    for name in ["Ann", "Bob+%3Cb%3E"] {
        let told = post(addresses[0], "/hello", &format!("name={name}")).await;
        let (cookie, _) = told.header("set-cookie").split_once(';').expect("a cookie");
        let shown = name.replace("+%3Cb%3E", " &lt;b&gt;");
        for path in ["/new-releases", "/new-releases", "/"] {
            let list = request(addresses[0], "GET", path, &[("cookie", cookie)]).await;
            let greeting = format!("Hello, {shown}!");
            assert!(
                list.status == 200 && list.text().contains(&greeting),
                "{list:?}"
            );
        }
        let list = get(addresses[0], "/new-releases").await;
        assert!(list.text().contains("<span>Hello!</span>"), "{list:?}");
    }
    for address in addresses {
        let home = get(address, "/").await;
        assert!(
            home.status == 200 && home.text().contains("Top 5"),
            "{home:?}"
        );
    }
}
