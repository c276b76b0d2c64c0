//! The last generations of a page. Each publish puts one line of text in front of the others in the page's row,
//! so that the history costs no statement and no table of its own.

use std::time::{Duration, SystemTime};

use perennial_store::error::words::{seconds, unix_time};

use crate::{
    clock::{duration, micros},
    event::Reason,
};
use perennial_store::Fence;

/// The number of generations in a history.
const GENERATIONS: usize = 20;

/// The longest process name in a line, in bytes. Twenty lines then fit into the store's column.
const PROCESS: usize = 60;

/// A version of a resource that was published.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PastVersion {
    /// The fence of the lease, greater than the fence of each earlier version.
    pub fence: Fence,
    /// The time at which the lease was acquired, by the database's clock.
    #[serde(serialize_with = "unix_time")]
    pub began: SystemTime,
    /// The time since then.
    #[serde(rename = "ago_s", serialize_with = "seconds")]
    pub ago: Duration,
    /// The reason for the regeneration.
    pub reason: Reason,
    /// The time of the generator.
    #[serde(rename = "took_s", serialize_with = "seconds")]
    pub took: Duration,
    /// The size of the body, in bytes.
    pub bytes: u64,
    /// True if the content differs from the previous version's. False if it was the same, so that only its age
    /// was reset.
    pub changed: bool,
    /// The [label](crate::locks::Locks::label) of the process: by default its host name and its process ID.
    pub process: String,
}

impl PastVersion {
    /// Returns the line of this version, in ASCII.
    pub(crate) fn line(&self) -> String {
        let graphic = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        let process: String = self.process.chars().take(PROCESS).map(graphic).collect();
        format!(
            "{} {} {} {} {} {process}\n",
            self.fence,
            self.reason,
            micros(self.took),
            self.bytes,
            u8::from(self.changed),
        )
    }

    /// Reads the lines of a history, newest first. Lines that were cut, or that a newer release has written
    /// in another form, are left out. `age` is that of the newest version, by the database's clock.
    pub(crate) fn read(history: &str, age: Duration) -> Vec<Self> {
        let lines = history.split_inclusive('\n');
        let lines = lines.filter_map(|line| Self::parse(line.strip_suffix('\n')?));
        let mut read: Vec<_> = lines.take(GENERATIONS).collect();
        let now = read
            .first()
            .and_then(|newest| newest.began.checked_add(newest.took + age));
        for version in &mut read {
            let ago = now.and_then(|now| now.duration_since(version.began).ok());
            version.ago = ago.unwrap_or_default();
        }
        read
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let fence: Fence = words.next()?.parse().ok()?;
        Some(Self {
            fence,
            began: SystemTime::UNIX_EPOCH.checked_add(duration(fence.acquired_at()))?,
            ago: Duration::ZERO,
            reason: words.next()?.parse().ok()?,
            took: duration(words.next()?.parse().ok()?),
            bytes: words.next()?.parse().ok()?,
            changed: words.next()? == "1",
            process: words.next()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn generation(fence: i64, process: &str) -> PastVersion {
        PastVersion {
            fence: Fence(fence),
            began: SystemTime::UNIX_EPOCH + duration(fence),
            ago: Duration::ZERO,
            reason: Reason::Invalidated,
            took: Duration::from_micros(1_234),
            bytes: 56_789,
            changed: fence % 2 == 0,
            process: process.to_owned(),
        }
    }

    #[test]
    fn history_has_the_twenty_latest_generations() {
        let mut history = String::new();
        // As the store does.
        for n in 1..=40 {
            let fence = 4_000_000_000_000_000 + n;
            let line = generation(fence, &"h".repeat(100)).line();
            history = line + &history[..history.len().min(2400)];
        }
        let age = Duration::from_secs(7);
        let read = PastVersion::read(&history, age);
        let fences: Vec<_> = read.iter().map(|it| it.fence.0 % 100).collect();
        assert_eq!(fences, (21..=40).rev().collect::<Vec<_>>());
        let newest = generation(4_000_000_000_000_040, &"h".repeat(PROCESS));
        let ago = newest.took + age;
        assert_eq!(read[0], PastVersion { ago, ..newest });
        assert_eq!(read[9].ago, ago + Duration::from_micros(9));
    }

    proptest! {
        #[test]
        fn line_of_any_process_comes_back(process in "\\PC{0,20}", fence in 0..i64::MAX) {
            let line = generation(fence, &process).line();
            prop_assert!(line.is_ascii() && line.ends_with('\n') && line.matches('\n').count() == 1);
            let read = PastVersion::read(&(line.clone() + &line[..line.len() - 1]), Duration::ZERO);
            prop_assert_eq!(read.len(), 1, "the second line was cut");
            prop_assert_eq!(read[0].fence, Fence(fence));
            prop_assert_eq!(read[0].process.chars().count(), process.chars().count());
        }

        #[test]
        fn garbage_never_panics(text: String) {
            let _ = PastVersion::read(&text, Duration::ZERO);
        }
    }
}
