//! The reason of each bypass, and the remedy of each answer, as text.

use super::{Bypass, Served};

impl Served {
    /// Returns the remedy, as text, if another answer was expected.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Hit => {
                "For a new version now, invalidate the page; for newer ones always, set a shorter interval."
            }
            Self::Stale => {
                "Nothing: a request regenerates the page. If it stays stale, the log has the handler's error. Where no old version may be served, purge, or set `stale_while_revalidate`."
            }
            Self::Generated | Self::Collapsed => {
                "Nothing: the next request is a hit, if the response may be stored. To generate pages before visitors come, call `Perennial::warm`."
            }
            Self::Bypass(why) => why.remedy(),
            Self::Unavailable | Self::Failed => {
                "Repair the handler: the log has its error. A purge ends the cooldown."
            }
        }
    }
}

impl Bypass {
    /// Returns the reason in a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Method => "The method is neither GET nor HEAD.",
            Self::BypassIf => "A function of `bypass_if` lets this request bypass the cache.",
            Self::UndeclaredExtension => {
                "A middleware has added an extension to the request, which may identify the visitor."
            }
            Self::NoKey => {
                "The request has no key: it would be longer than 4 KiB, the request names no host, or the function of the key has returned none."
            }
            Self::OuterLayer => "An outer layer stores the same page.",
            Self::Off => "The site is in the mode `off`.",
            Self::TooManyKeys => {
                "Visitors invent keys faster than the layer stores them, and this key is new."
            }
            Self::Private => "The response has `Set-Cookie`, `private` or `no-store`.",
            Self::Vary => "The response's `Vary` has a header that is not in the key.",
            Self::ResponseExtension => {
                "The response has an extension, from which an outer middleware may make the page."
            }
            Self::EventStream => "The response is a stream of events.",
            Self::Status => "The status of the response is not stored.",
            Self::TooLarge => "The response is larger than the site stores.",
            Self::Purged => "The page was purged while it was generated.",
            Self::ShuttingDown => "The process is shutting down.",
        }
    }

    /// Returns the remedy, as text, if the response is to be stored.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Method => {
                "For a route that changes the data of pages, see `Perennial::invalidate_on_success`."
            }
            Self::BypassIf => {
                "Send the request without the cookie or the header that the function looks at."
            }
            Self::UndeclaredExtension => {
                "Declare the type that the log names: `ignore_extension` if the page does not need it, `share_extension` if all visitors have the same."
            }
            Self::NoKey => {
                "Name the parameters of the query that count: `.key(Key::new().query([…]))`."
            }
            Self::OuterLayer => "Remove one of the two layers.",
            Self::Off => "Unset PERENNIAL_MODE, or remove `Builder::mode`.",
            Self::TooManyKeys => {
                "Name the parameters of the query that count, by `Key::query`, or raise `max_keys`."
            }
            Self::Private => {
                "Put the middleware that sets the cookie or the header outside of the layer, or remove them in the handler."
            }
            Self::Vary => {
                "Add the header to the key by `Key::header`, or remove it from `Vary`; a CORS layer belongs outside of this layer."
            }
            Self::ResponseExtension => {
                "Put the middleware that reads the extension inside of the layer, or declare the type that the log names: `drop_response_extension`."
            }
            Self::EventStream => {
                "Nothing: a stream has no end. Put it on a route without the layer."
            }
            Self::Status => "Answer with 200, 203, 204, 300, 301, 308, 404, 405, 410 or 414.",
            Self::TooLarge => "Raise `Builder::max_body` or `Builder::max_headers`.",
            Self::Purged => "Send the request again.",
            Self::ShuttingDown => "Send the request again: another process answers it.",
        }
    }
}
