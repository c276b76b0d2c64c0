//! The demonstration in a real browser: a visitor who touches nothing sees the whole round within
//! fifteen seconds. With `PERENNIAL_PICTURE`, the test writes the README's picture to that file.

use std::time::{Duration, Instant};

use thirtyfour::prelude::*;

use perennial_testkit::{Folder, program::Program, until};
use perennial_testkit_browser::{Driver, View};

/// The time in which a visitor has seen the round.
const PATIENCE: Duration = Duration::from_secs(15);

/// The number of visits: on a busy machine, one of them may see a round too late.
const VISITS: usize = 5;

/// The longest story, on a busy machine.
const STORY: Duration = Duration::from_secs(240);

async fn text(browser: &WebDriver) -> String {
    let body = browser.find(By::Tag("body")).await.expect("a page");
    body.text().await.expect("has a text")
}

/// Returns the parts of a round that the visitor has not seen on the page.
async fn unseen(browser: &WebDriver) -> Vec<&'static str> {
    let mut unseen = vec![
        "served the old version",
        "holds the lease: fence ",
        "held now",
        "The lease was held by process ",
        "is served by A and B.",
        "visitors: #, generations: 1",
        "visitors: #, generations: 2",
    ];
    let since = Instant::now();
    while !unseen.is_empty() && since.elapsed() < PATIENCE {
        let text = text(browser).await;
        unseen.retain(|words| match words.strip_prefix("visitors: #") {
            None => !text.contains(words),
            Some(generations) => {
                let counts = text.split("visitors: ").skip(1).filter_map(|rest| {
                    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
                    rest.get(digits..)?.strip_prefix(generations)
                });
                !counts
                    .into_iter()
                    .any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unseen
}

#[tokio::test(flavor = "multi_thread")]
async fn visitor_who_touches_nothing_sees_the_round_and_each_story_goes_as_promised() {
    let Some(driver) = Driver::start() else {
        return;
    };
    let folder = Folder::new();
    let url = folder.url();
    let demo = tokio::task::spawn_blocking(move || Program::start("bookshop", &url, ""));
    let demo = demo.await.expect("starts");
    let browser = driver.browser().await;
    let mut missed = Vec::new();
    for _ in 0..VISITS {
        let url = format!("http://{}/", demo.address);
        browser.goto(url).await.expect("opens");
        missed = unseen(&browser).await;
        if missed.is_empty() {
            break;
        }
    }
    assert!(
        missed.is_empty(),
        "not seen within {PATIENCE:?}: {missed:?}"
    );

    let headline = async |id: &str| {
        let number = browser.find(By::Id(id)).await.expect("is there");
        number.text().await.expect("has a text")
    };
    until(
        "a deploy makes visitors of the other cache wait",
        async || headline("without-waited").await != "0",
    )
    .await;
    assert_eq!(headline("with-waited").await, "0", "visitors of Perennial");
    for view in View::all() {
        view.fits(&browser, "demonstration").await;
    }

    if let Some(picture) = std::env::var_os("PERENNIAL_PICTURE") {
        let view = View {
            width: 1180,
            is_dark: false,
        };
        view.show(&browser, 730).await;
        until("the third round has its new version", async || {
            let text = text(&browser).await;
            let rounds = text.matches("published").count();
            rounds > 3 && text.contains("is served by A and B.")
        })
        .await;
        let picture = std::path::PathBuf::from(picture);
        browser.screenshot(&picture).await.expect("is written");
    }

    for story in 1..=6 {
        let button = format!("#stories li:nth-child({story}) button");
        let button = browser.find(By::Css(button)).await.expect("a button");
        button.click().await.expect("is clicked");
        let told = format!("#stories li:nth-child({story}) .told");
        let told = browser.find(By::Css(told)).await.expect("a place");
        let since = Instant::now();
        loop {
            let text = told.text().await.expect("has a text");
            if text.starts_with('✓') {
                break;
            }
            assert!(
                text.is_empty() && since.elapsed() < STORY,
                "{story}: {text:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    browser.quit().await.expect("ends");
}
