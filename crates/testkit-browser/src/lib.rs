//! A browser for tests. Without chromedriver the tests are skipped, unless `PERENNIAL_TEST_ALL` is
//! set.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;
use thirtyfour::prelude::*;

/// Longer than the start of any browser.
const HANG: Duration = Duration::from_secs(60);

/// A chromedriver as a process, which ends with the value.
pub struct Driver {
    child: Child,
    port: u16,
    profile: TempDir,
}

impl Driver {
    /// Starts chromedriver. Returns `None` on a machine without one, so that a test can skip
    /// itself.
    ///
    /// # Panics
    ///
    /// If there is no chromedriver although `PERENNIAL_TEST_ALL` is set, which forbids skipping
    /// tests.
    pub fn start() -> Option<Self> {
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            let all = std::env::var_os("PERENNIAL_TEST_ALL");
            assert!(
                all.is_none(),
                "chromedriver is missing: as in apt-get install chromium-driver"
            );
            eprintln!("skipped: there is no chromedriver");
            return None;
        };
        let said = child.stdout.take().expect("is piped");
        let mut said = BufReader::new(said).lines();
        // A port that this test chose could be taken by another program before the driver has it.
        let port = said.find_map(|line| {
            let line = line.expect("is text");
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.expect("chromedriver says its port");
        // chromedriver would exit if nobody read its output.
        std::thread::spawn(move || said.for_each(drop));
        let profile = TempDir::new().expect("a folder");
        Some(Self {
            child,
            port,
            profile,
        })
    }

    /// Opens a window.
    pub async fn browser(&self) -> WebDriver {
        let mut options = DesiredCapabilities::chrome();
        let profile = format!("--user-data-dir={}", self.profile.path().display());
        for argument in [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &profile,
        ] {
            options.add_arg(argument).expect("is an argument");
        }
        let url = format!("http://127.0.0.1:{}", self.port);
        let since = Instant::now();
        loop {
            match WebDriver::new(&url, options.clone()).await {
                Ok(browser) => return browser,
                Err(error) => assert!(since.elapsed() < HANG, "no browser: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The width of the window in pixels. It may be less than the smallest window that a desktop
    /// allows.
    pub width: u32,
    /// Whether the visitor's system has a dark theme.
    pub is_dark: bool,
}

impl View {
    /// A phone, a tablet and two desktops, each by day and by night.
    pub fn all() -> impl Iterator<Item = Self> {
        let widths = [360, 768, 1280, 1600].into_iter();
        widths.flat_map(|width| [false, true].map(|is_dark| Self { width, is_dark }))
    }

    /// Gives the browser a window of this width and theme, and of the given height.
    pub async fn show(self, browser: &WebDriver, height: u32) {
        let devtools = browser.cdp();
        let media =
            json!({ "features": [{ "name": "prefers-color-scheme", "value": self.scheme() }] });
        let metrics = json!({ "width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        for (command, parameters) in [
            ("Emulation.setEmulatedMedia", media),
            ("Emulation.setDeviceMetricsOverride", metrics),
            ("Emulation.setScrollbarsHidden", json!({ "hidden": true })),
        ] {
            let done = devtools.send_raw(command, parameters).await;
            done.expect("is set");
        }
    }

    fn scheme(self) -> &'static str {
        if self.is_dark { "dark" } else { "light" }
    }

    /// Checks that the current page fits into this window. If `PERENNIAL_SCREENSHOTS` names a folder, a picture of
    /// the whole page is saved there.
    ///
    /// # Panics
    ///
    /// If the page is wider than the window, so that a visitor would have to scroll to the side.
    pub async fn fits(self, browser: &WebDriver, name: &str) {
        self.show(browser, 900).await;
        let sizes = "const { scrollWidth, scrollHeight } = document.documentElement; return [scrollWidth, scrollHeight]";
        let sizes = browser.execute(sizes, Vec::new()).await;
        let (width, height): (u32, u32) = sizes.expect("has a size").convert().expect("numbers");
        if let Some(folder) = std::env::var_os("PERENNIAL_SCREENSHOTS") {
            self.show(browser, height.clamp(900, 4000)).await;
            let file = format!("{name}-{}-{}.png", self.width, self.scheme());
            let picture = std::path::Path::new(&folder).join(file);
            browser.screenshot(&picture).await.expect("is written");
        }
        assert!(width <= self.width, "{name} is {width} px wide in {self:?}");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
