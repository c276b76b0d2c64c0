//! The words for results: what was served, how a regeneration ended, why a request bypassed the cache. A word
//! has one spelling in the API, the log, metrics and JSON.

use perennial_store::words;

words! {
    /// The kind of answer to a request.
    pub enum Served("answer") {
        /// By a fresh stored version.
        Hit => "hit",
        /// By a stale stored version.
        Stale => "stale",
        /// By the regeneration that the request started.
        Generated => "generated",
        /// By the regeneration that another request had started.
        Collapsed => "collapsed",
        /// By the service itself.
        Bypass(why: Bypass) => "bypass",
        /// By 503, as there was no version in time.
        Unavailable => "unavailable",
        /// By the failed response or the error of the generator.
        Failed => "failed",
    }
}

words! {
    /// The outcome of a regeneration, or the reason why it has not begun.
    pub enum Outcome("outcome") {
        /// A new version was stored.
        Stored => "stored",
        /// The content was unchanged, and the stored version's age was renewed.
        Renewed => "renewed",
        /// The new version is served and not stored, as the database is unavailable.
        Unsaved => "unsaved",
        /// The new version is served from the memory of this process alone: a fresh one of other code is stored,
        /// which this code cannot use, as in a deploy that changes the holes of a page or the type of a value.
        KeptApart => "kept-apart",
        /// The publish was refused: another process has taken the lock over, or the page was purged.
        Overtaken => "overtaken",
        /// The response is not stored.
        NotStored(why: Bypass) => "not-stored",
        /// The generator failed.
        Failed => "failed",
        /// The generator took longer than the policy's timeout, and was cancelled.
        TimedOut => "timed-out",
        /// Not begun: [`Builder::max_regenerations`](crate::Builder::max_regenerations) are running.
        Busy => "busy",
        /// Not begun: another process holds the lease.
        HeldByPeer => "held-by-peer",
        /// Not begun: the key is in cooldown after a failure.
        Cooldown => "cooldown",
        /// Not begun: the database is unavailable.
        DatabaseUnavailable => "database-unavailable",
    }
}

words! {
    /// The reason why the service itself answers a request: the `detail` of `Cache-Status`.
    pub enum Bypass("reason for a bypass") {
        /// The method is neither GET nor HEAD. `Cache-Status` says `fwd=method`, without a detail.
        Method => "method",
        /// A function of [`bypass_if`](crate::layer::RefreshLayer::bypass_if) returned true.
        BypassIf => "bypass-if",
        /// The request has an extension that is not declared; see
        /// [Extensions](crate::layer::RefreshLayer#extensions).
        UndeclaredExtension => "undeclared-extension",
        /// The request has no key: the key would be longer than 4 KiB, `Key::by` returned `None`, or
        /// the host of the key is missing.
        NoKey => "no-key",
        /// An outer layer generates the same key at the moment.
        OuterLayer => "outer-layer",
        /// The site is in [`Mode::Off`](crate::Mode::Off).
        Off => "off",
        /// Visitors invent keys faster than the site stores new ones.
        TooManyKeys => "too-many-keys",
        /// The response has `Set-Cookie`, `private` or `no-store`.
        Private => "private",
        /// The response's `Vary` has a header that is not in the key.
        Vary => "vary",
        /// The response has an extension that an outer middleware may need; see
        /// [Extensions](crate::layer::RefreshLayer#extensions).
        ResponseExtension => "response-extension",
        /// The response is a `text/event-stream`.
        EventStream => "event-stream",
        /// The response has a status that is not stored.
        Status => "status",
        /// A function of [`store_if`](crate::layer::RefreshLayer::store_if) returned false.
        StoreIf => "store-if",
        /// The response is larger than [`Builder::max_body`](crate::Builder::max_body) or
        /// [`Builder::max_headers`](crate::Builder::max_headers).
        TooLarge => "too-large",
        /// The page was purged while the response was generated.
        Purged => "purged",
        /// The site is shutting down.
        ShuttingDown => "shutting-down",
    }
}

impl Outcome {
    /// Returns false for a regeneration that has not begun.
    pub fn has_begun(self) -> bool {
        !matches!(
            self,
            Self::Busy | Self::HeldByPeer | Self::Cooldown | Self::DatabaseUnavailable
        )
    }
}

// Each reason is named in both functions, so that the compiler asks about a new one.
impl Bypass {
    /// Returns true if the response may be one visitor's own. It then gets `Cache-Control: private`.
    pub(crate) fn is_of_a_visitor(self) -> bool {
        match self {
            Self::BypassIf
            | Self::UndeclaredExtension
            | Self::NoKey
            | Self::Private
            | Self::StoreIf => true,
            Self::Method
            | Self::OuterLayer
            | Self::Off
            | Self::TooManyKeys
            | Self::Vary
            | Self::ResponseExtension
            | Self::EventStream
            | Self::Status
            | Self::TooLarge
            | Self::Purged
            | Self::ShuttingDown => false,
        }
    }

    /// Returns true for a property of the route, and false for one of a request, or a state that soon changes.
    pub(crate) fn is_of_the_route(self) -> bool {
        match self {
            Self::Private | Self::Vary | Self::ResponseExtension | Self::EventStream => true,
            Self::Method
            | Self::BypassIf
            | Self::UndeclaredExtension
            | Self::NoKey
            | Self::OuterLayer
            | Self::Off
            | Self::TooManyKeys
            | Self::StoreIf
            | Self::Status
            | Self::TooLarge
            | Self::Purged
            | Self::ShuttingDown => false,
        }
    }
}

words! {
    /// The reason for a regeneration.
    pub enum Reason("reason for a regeneration") {
        /// There was no version.
        Miss => "miss",
        /// The version was older than its interval.
        Stale => "stale",
        /// The version was fresh, and is one of those that the policy [verifies](crate::Refresh::verify).
        Verified => "verified",
        /// The version was too old to be served.
        Expired => "expired",
        /// The version was invalidated.
        Invalidated => "invalidated",
        /// The version was purged.
        Purged => "purged",
        /// [`Perennial::regenerate`](crate::Perennial::regenerate) was called.
        Requested => "requested",
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fmt::Display, str::FromStr};

    use super::*;

    fn read_again<T>(all: impl Iterator<Item = T>) -> usize
    where
        T: Copy + Display + FromStr<Err = crate::Error> + PartialEq + std::fmt::Debug,
    {
        let texts = all.map(|value| {
            let text = value.to_string();
            assert_eq!(text.parse::<T>().expect("is a word"), value);
            text
        });
        let texts: Vec<_> = texts.collect();
        let plain = |text: &String| {
            text.bytes()
                .all(|byte| b"abcdefghijklmnopqrstuvwxyz-: ".contains(&byte))
        };
        assert!(texts.iter().all(plain), "{texts:?}");
        let distinct: HashSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
        texts.len()
    }

    #[test]
    fn each_word_is_read_as_its_own_value() {
        let bypasses = read_again(Bypass::all());
        assert_eq!(read_again(Served::all()), 6 + bypasses);
        assert_eq!(read_again(Outcome::all()), 11 + bypasses);
        read_again(Reason::all());
        let wrong = "not-stored: everything".parse::<Outcome>();
        let wrong = wrong.expect_err("no outcome").to_string();
        assert!(wrong.contains("write one of stored, renewed"), "{wrong}");
        assert_eq!(Served::Bypass(Bypass::Vary).as_str(), "bypass");
    }

    /// The chapter tells operators of a CDN which responses it must not share.
    #[test]
    fn guide_names_the_bypasses_of_one_visitor() {
        let guide = include_str!("../../docs/guide/operating.md");
        let sentence = guide.split_once("A request that bypasses the cache for its visitor (");
        let (names, _) = sentence
            .and_then(|(_, after)| after.split_once(')'))
            .expect("docs/guide/operating.md has the sentence");
        let named: HashSet<_> = names.split('`').skip(1).step_by(2).collect();
        let are: HashSet<_> = Bypass::all()
            .filter(|why| why.is_of_a_visitor())
            .map(Bypass::as_str)
            .collect();
        assert_eq!(named, are);
    }
}
