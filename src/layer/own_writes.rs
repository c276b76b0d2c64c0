//! The cookies for read-your-writes: after a change, its author is not shown a page from before the change,
//! whichever process answers.
//!
//! Each process that carries out a change sets a cookie of its own. If two processes carry out changes at the
//! same time, both cookies stay in the browser, and a process that gets them knows which of the other
//! processes' invalidations it has to fetch from the database. Several sites on one host have different
//! cookies.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use perennial_store::Epoch;

use crate::cache::{Cache, UNKNOWN_EPOCH, author};

/// The beginning of the name of a cookie. The rest has the numbers of the site and of the process, and the
/// value is the epoch of the author's latest invalidation there.
const COOKIE: &str = "perennial-epoch-";

/// The site and the process that have set a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Issuer {
    /// The number of the site, or 0 for a site without a database, or one whose database this process has not
    /// reached yet.
    pub(super) site: u64,
    pub(super) process: u64,
}

impl Issuer {
    /// Returns the issuer of the cookies that this process sets.
    pub(super) fn of(cache: &Cache) -> Self {
        Self {
            site: cache.store().site_id(),
            process: cache.process_id(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (site, process) = text.split_once('-')?;
        let [site, process] = [site, process].map(|number| u64::from_str_radix(number, 16).ok());
        Some(Self {
            site: site?,
            process: process?,
        })
    }

    fn is_of_the_same_site(self, other: Self) -> bool {
        self.site == other.site || self.site == 0 || other.site == 0
    }
}

/// The latest invalidations of an author, by the author's cookies. [`Epoch::NONE`] means that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnWrites {
    in_this_process: Epoch,
    in_others: Epoch,
}

impl OwnWrites {
    /// Reads the cookies of a request, if the site has switched on read-your-writes.
    #[inline]
    pub(super) fn of_visitor(headers: &HeaderMap, cache: &Cache) -> Option<Self> {
        if cache.reads_own_writes() {
            Self::of(headers, Issuer::of(cache))
        } else {
            None
        }
    }

    /// Runs code for the author of a change, such as the function of a hole. If that code asks for content, it
    /// gets content that shows the author's change.
    pub(super) async fn scope<F: Future>(self, cache: &Arc<Cache>, run: F) -> F::Output {
        let min_epoch = self.wait_until_known(cache).await;
        author::scope(cache.site(), min_epoch, run).await
    }

    /// Reads the cookies of a request. A visitor who invents some deceives nobody else.
    pub(super) fn of(headers: &HeaderMap, here: Issuer) -> Option<Self> {
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let cookies = pairs.filter_map(|pair| {
            let pair = std::str::from_utf8(pair.trim_ascii()).ok()?;
            let (issuer, epoch) = pair.strip_prefix(COOKIE)?.split_once('=')?;
            let issuer = Issuer::parse(issuer)?;
            Some((issuer, Epoch(epoch.parse().ok()?)))
        });
        let cookies = cookies.filter(|(issuer, _)| issuer.is_of_the_same_site(here));
        cookies.fold(None, |found, (issuer, epoch)| {
            let mut found = found.unwrap_or(Self {
                in_this_process: Epoch::NONE,
                in_others: Epoch::NONE,
            });
            let latest = if issuer.process == here.process {
                &mut found.in_this_process
            } else {
                &mut found.in_others
            };
            *latest = epoch.max(*latest);
            Some(found)
        })
    }

    /// Waits until this process knows the author's invalidations, for a limited time. Returns the epoch of
    /// the latest one, or [`Epoch::NONE`] if this process knows none of them.
    pub(super) async fn wait_until_known(self, cache: &Arc<Cache>) -> Epoch {
        let in_others = match self.in_others {
            Epoch::NONE => Epoch::NONE,
            epoch => cache.sync().wait_for_epoch(epoch).await,
        };
        let in_this_process = match self.in_this_process {
            UNKNOWN_EPOCH => UNKNOWN_EPOCH,
            epoch => epoch.min(cache.latest_epoch()),
        };
        in_this_process.max(in_others)
    }
}

/// Sets the cookie of this process.
pub(super) fn set_cookie(headers: &mut HeaderMap, here: Issuer, epoch: Epoch) {
    let Issuer { site, process } = here;
    let cookie =
        format!("{COOKIE}{site:x}-{process:x}={epoch}; Max-Age=10; Path=/; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_read_among_others() {
        let here = Issuer {
            site: 0xa,
            process: 0xff,
        };
        for (cookies, expected) in [
            ("perennial-epoch-a-ff=7", Some((7, 0))),
            ("a=1; perennial-epoch-a-ff=7;b=2", Some((7, 0))),
            ("perennial-epoch-a-1=7", Some((0, 7))),
            (
                "perennial-epoch-a-1=7; perennial-epoch-a-ff=8; perennial-epoch-a-2=9",
                Some((8, 9)),
            ),
            ("perennial-epoch-a-2=9; perennial-epoch-a-1=7", Some((0, 9))),
            // Cookies of another site, and of a process that has not reached its database.
            ("perennial-epoch-b-1=7", None),
            ("perennial-epoch-b-1=7; perennial-epoch-a-2=5", Some((0, 5))),
            ("perennial-epoch-0-1=7", Some((0, 7))),
            ("perennial-epoch-a-ff=", None),
            ("perennial-epoch-a-ff=x", None),
            ("perennial-epoch-a-x=7", None),
            ("perennial-epoch-ff=7", None),
            ("perennial-epoch=7", None),
            ("a=perennial-epoch-a-ff=7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookies));
            let read = OwnWrites::of(&headers, here);
            let read = read.map(|it| (it.in_this_process.0, it.in_others.0));
            assert_eq!(read, expected, "{cookies}");
        }
    }
}
