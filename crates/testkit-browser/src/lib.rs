//! A browser for tests. Without chromedriver the tests are skipped, unless `PERENNIAL_TEST_ALL` is
//! set.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

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
    /// Starts it; `None` where there is none, and tests may be skipped.
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
        // It would end when nobody reads what it says.
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

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
