//! The cookies by which the author of a change gets no page from before the change.
//!
//! Each process that carries out a change sets a cookie of its own. So two changes in two processes at
//! the same time both leave their cookies, and a process knows which of them it has to ask the
//! database for: those of other processes.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};

use crate::page::{Pages, UNKNOWN};

/// The beginning of the name of a cookie. The rest names the process, and the value is the epoch of
/// the author's latest invalidation there.
const COOKIE: &str = "perennial-epoch-";

/// The latest invalidations of an author; 0: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnWrites {
    in_this_process: i64,
    in_others: i64,
}

impl OwnWrites {
    /// Reads the cookies of a request. A visitor who invents some deceives nobody else.
    pub(super) fn of(headers: &HeaderMap, process: u64) -> Option<Self> {
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let cookies = pairs.filter_map(|pair| {
            let pair = std::str::from_utf8(pair.trim_ascii()).ok()?;
            let (process, epoch) = pair.strip_prefix(COOKIE)?.split_once('=')?;
            let process = u64::from_str_radix(process, 16).ok()?;
            Some((process, epoch.parse::<i64>().ok()?))
        });
        cookies.fold(None, |found, (its_process, epoch)| {
            let mut found = found.unwrap_or(Self {
                in_this_process: 0,
                in_others: 0,
            });
            let latest = if its_process == process {
                &mut found.in_this_process
            } else {
                &mut found.in_others
            };
            *latest = epoch.max(*latest);
            Some(found)
        })
    }

    /// Waits until this process knows the invalidations, for a limited time. Returns the epoch of the
    /// latest one; 0: this process knows none of them.
    pub(super) async fn wait_until_known(self, pages: &Arc<Pages>) -> i64 {
        let in_others = match self.in_others {
            0 => 0,
            epoch => pages.caught_up_to(epoch).await,
        };
        let in_this_process = match self.in_this_process {
            UNKNOWN => UNKNOWN,
            epoch => epoch.min(pages.latest_epoch()),
        };
        in_this_process.max(in_others)
    }
}

/// Sets the cookie of this process.
pub(super) fn set_cookie(headers: &mut HeaderMap, process: u64, epoch: i64) {
    let cookie = format!("{COOKIE}{process:x}={epoch}; Max-Age=10; Path=/; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_read_among_others() {
        for (cookies, expected) in [
            ("perennial-epoch-ff=7", Some((7, 0))),
            ("a=1; perennial-epoch-ff=7;b=2", Some((7, 0))),
            ("perennial-epoch-1=7", Some((0, 7))),
            (
                "perennial-epoch-1=7; perennial-epoch-ff=8; perennial-epoch-2=9",
                Some((8, 9)),
            ),
            ("perennial-epoch-2=9; perennial-epoch-1=7", Some((0, 9))),
            ("perennial-epoch-ff=", None),
            ("perennial-epoch-ff=x", None),
            ("perennial-epoch-x=7", None),
            ("perennial-epoch=7", None),
            ("a=perennial-epoch-ff=7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookies));
            let read = OwnWrites::of(&headers, 0xff);
            let read = read.map(|it| (it.in_this_process, it.in_others));
            assert_eq!(read, expected, "{cookies}");
        }
    }
}
