//! The cookie by which the author of a change gets no page from before the change.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};

use crate::page::Pages;

/// The name of the cookie.
const COOKIE: &str = "perennial-epoch";

/// What the cookie says: `EPOCH` or `EPOCH.PROCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnWrites {
    /// The epoch of the author's latest invalidation.
    epoch: i64,
    /// A process that knows all invalidations of the author. It need not ask the database for them.
    known_to: Option<u64>,
}

impl OwnWrites {
    /// Reads the cookie of a request. An author who invents one deceives nobody else.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let lines = headers.get_all(header::COOKIE).iter();
        let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let value = pairs.find_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(COOKIE.as_bytes())?;
            value.strip_prefix(b"=")
        });
        let value = std::str::from_utf8(value?).ok()?;
        let (epoch, process) = value.split_once('.').unwrap_or((value, ""));
        Some(Self {
            epoch: epoch.parse().ok()?,
            known_to: u64::from_str_radix(process, 16).ok(),
        })
    }

    /// Returns the writes of an author whose request had the writes `before`, after a further one in
    /// this process.
    pub(super) fn and(before: Option<Self>, epoch: i64, pages: &Pages) -> Self {
        let knows_all = before.is_none_or(|before| before.are_known_to(pages));
        Self {
            epoch,
            known_to: knows_all.then_some(pages.process_id()),
        }
    }

    fn are_known_to(self, pages: &Pages) -> bool {
        self.known_to == Some(pages.process_id()) || pages.invalidations.seen() >= self.epoch
    }

    /// Waits until this process knows the writes, and returns their epoch; 0: there are no such writes.
    pub(super) async fn known(self, pages: &Arc<Pages>) -> i64 {
        match self.are_known_to(pages) {
            true => self.epoch.min(pages.invalidations.latest()),
            false => pages.caught_up_to(self.epoch).await,
        }
    }

    /// Sets the cookie.
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        let Self { epoch, known_to } = self;
        let process = known_to.map_or_else(String::new, |process| format!(".{process:x}"));
        let cookie =
            format!("{COOKIE}={epoch}{process}; Max-Age=10; Path=/; HttpOnly; SameSite=Lax");
        if let Ok(cookie) = HeaderValue::try_from(cookie) {
            headers.append(header::SET_COOKIE, cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_read_among_others() {
        for (cookie, expected) in [
            ("perennial-epoch=7", Some((7, None))),
            ("perennial-epoch=7.ff", Some((7, Some(255)))),
            ("perennial-epoch=-7.", Some((-7, None))),
            ("perennial-epoch=7.x", Some((7, None))),
            ("a=1; perennial-epoch=7;b=2", Some((7, None))),
            ("perennial-epoch=", None),
            ("perennial-epoch=x", None),
            ("perennial-epoch=.ff", None),
            ("perennial-epochs=7", None),
            ("a=perennial-epoch=7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
            let read = OwnWrites::of(&headers);
            assert_eq!(read.map(|it| (it.epoch, it.known_to)), expected, "{cookie}");
        }
    }
}
