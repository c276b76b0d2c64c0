//! What a lock shows about its holder: who it is, since when it has held the lock, and what for. The column
//! `owner` contains the holder's random number, its label and its action. This module writes and reads that
//! text.

use std::time::Duration;

use super::LockKind;
#[allow(unused_imports, reason = "links of the documentation")]
use super::{LockAttempt, Locks};
use crate::{error::words::seconds, fence::Fence, rows::LockRow};

/// The length of the longest stored label and action, in bytes.
const TEXT: usize = 100;

/// The state of a lock. Times are by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's kind.
    pub kind: LockKind,
    /// The lock's name, as [stored](super::LockName::as_str).
    pub name: String,
    /// The fence of the lock's latest lease.
    pub fence: Fence,
    /// The holder, or `None` if the lock is free or in cooldown.
    pub holder: Option<Holder>,
    /// The time since the lock was acquired.
    #[serde(rename = "age_s", serialize_with = "seconds")]
    pub age: Duration,
    /// The time until the lease expires or the cooldown ends; zero if the lock is free.
    #[serde(rename = "remaining_s", serialize_with = "seconds")]
    pub remaining: Duration,
}

impl LockInfo {
    #[doc(hidden)]
    pub fn cools_down(&self) -> bool {
        self.holder.is_none() && !self.remaining.is_zero()
    }
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// By [`Locks::label`].
    pub label: String,
    /// By [`LockAttempt::action`]; may be empty.
    pub action: String,
}

impl LockInfo {
    #[doc(hidden)]
    pub fn of(row: LockRow) -> Self {
        let is_held = !row.remaining.is_zero();
        let holder = row.owner.filter(|_| is_held).map(|owner| {
            let (_, texts) = owner.split_once(' ').unwrap_or_default();
            let (label, action) = texts.split_once('\t').unwrap_or((texts, ""));
            Holder {
                label: label.to_owned(),
                action: action.to_owned(),
            }
        });
        Self {
            kind: row.kind,
            name: row.name,
            fence: row.fence,
            holder,
            age: row.age,
            remaining: row.remaining,
        }
    }
}

/// Returns the default label of a holder: the host's name and the process ID.
pub(super) fn process_label() -> String {
    format!("{}:{}", host(), std::process::id())
}

/// Returns the host's name: from the environment, or else from the Linux kernel, or else `host`.
fn host() -> String {
    let variables = ["HOSTNAME", "COMPUTERNAME"].into_iter();
    let mut named = variables.filter_map(|name| std::env::var(name).ok());
    let name = named.find(|name| !name.is_empty());
    let name = name.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    name.map_or_else(|| "host".to_owned(), |name| name.trim().to_owned())
}

/// Returns an owner that no other acquisition has, with the holder's label and action.
pub(super) fn owner(label: &str, action: &str) -> String {
    let id = uuid::Uuid::new_v4();
    format!("{} {}\t{}", id.simple(), plain(label), plain(action))
}

/// Returns the first bytes of a string, without control characters, for the column `owner`.
fn plain(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(TEXT)];
    text.replace(char::is_control, " ")
}
