//! Faults of a cluster, by scripts/cluster.

use std::time::Duration;

use tokio::{process::Command, time::sleep};

use crate::{Result, history::Micros, watch::Watch};

/// A fault and the time of its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) at: Micros,
}

/// The longest wait for writes after a fault, before the cluster is healed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time of load on the cluster after its writes are back, before it is healed.
const AFTER: Duration = Duration::from_secs(5);

/// The length of a cut of the proxy, which no part of the cluster mends.
const CUT: Duration = Duration::from_secs(10);

pub(crate) struct Cluster {
    kind: String,
}

impl Cluster {
    pub(crate) fn new(kind: &str) -> Self {
        let kind = kind.to_owned();
        Self { kind }
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("scripts/cluster");
        command.arg(&self.kind).args(arguments).kill_on_drop(true);
        let output = command.output().await;
        let output = output.map_err(|error| {
            format!("scripts/cluster: {error}; call this in the repository's folder")
        })?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!(
                "scripts/cluster {} {}: {why}",
                self.kind,
                arguments.join(" ")
            )
            .into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the URLs of the cluster, which is up.
    pub(crate) async fn urls(&self) -> Result<Vec<String>> {
        self.run(&["status"]).await?;
        let urls = self.run(&["urls"]).await?;
        let first = |line: &str| line.split(' ').next().map(str::to_owned);
        Ok(urls.lines().filter_map(first).collect())
    }

    /// Returns the names of the faults that this kind of cluster may have.
    pub(crate) async fn faults(&self) -> Result<Vec<String>> {
        let list = self.run(&["fault"]).await?;
        let first = |line: &str| line.split(' ').next().map(str::to_owned);
        Ok(list.lines().filter_map(first).collect())
    }

    /// Causes the fault, waits until the database takes writes again, and heals the cluster.
    pub(crate) async fn suffer(&self, name: &str, watch: &Watch) -> Result {
        self.run(&["fault", name]).await?;
        if name == "proxy-cut" {
            sleep(CUT).await;
            self.run(&["heal"]).await?;
        }
        // The effect of a fault comes some time after it.
        sleep(AFTER).await;
        let given_up = tokio::time::Instant::now() + PATIENCE;
        while !watch.takes_writes() && tokio::time::Instant::now() < given_up {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(AFTER).await;
        self.run(&["heal"]).await?;
        Ok(())
    }
}

/// Returns the faults in an order that follows from the random numbers, each as often as any other.
pub(crate) fn schedule(
    faults: &[String],
    mut random: fastrand::Rng,
) -> impl Iterator<Item = String> {
    let faults = faults.to_vec();
    std::iter::repeat_with(move || {
        let mut round = faults.clone();
        random.shuffle(&mut round);
        round
    })
    .flatten()
}
