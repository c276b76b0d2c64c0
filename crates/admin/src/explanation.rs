//! An explanation in words, for people.

use std::time::Duration;

use perennial::{
    entries::{
        Comparison, ExplainedCooldown, ExplainedVersion, Explanation, VersionState, visible,
    },
    event::{Bypass, Served},
};

use crate::time;

/// Returns the reason for the answer, in sentences.
///
/// ```
/// # use perennial::entries::Explanation;
/// let explanation = r#"{
///     "served": "bypass: method", "layer": "other", "key": null, "version": null, "is_running": false,
///     "cooldown": null, "holds_for_s": null, "hidden_headers": []
/// }"#;
/// let explanation: Explanation = serde_json::from_str(explanation).expect("is one");
/// assert_eq!(perennial_admin::reason(&explanation), "The method is neither GET nor HEAD.");
/// ```
pub fn reason(explanation: &Explanation) -> String {
    let mut sentences = vec![match (&explanation.served, &explanation.version) {
        (Served::Bypass(why), _) => reason_of(*why).to_owned(),
        (_, Some(version)) => state_of(version),
        (Served::Unavailable, None) => {
            "There is no version, and the last generation has failed.".to_owned()
        }
        (Served::Collapsed, None) => {
            "No version is stored yet, and a process generates the first one.".to_owned()
        }
        (_, None) => "No version is stored: the request generates the first one.".to_owned(),
    }];
    if let Some(left) = explanation.holds_for {
        let left = time(left);
        sentences.push(format!(
            "The last generation has shown this, and it holds for {left}."
        ));
    }
    if explanation.is_running && explanation.version.is_some() {
        sentences.push("A process regenerates it.".to_owned());
    }
    if let Some(cooldown) = &explanation.cooldown {
        sentences.push(state_after_failure(cooldown, explanation.version.is_some()));
    }
    if let Some(missed) = &explanation.missed_invalidation {
        sentences.push(format!(
            "When it was last regenerated for its age, {} of it had changed, and no invalidation had named one of its tags ({}).",
            bytes(missed.bytes),
            visible(&missed.tags.join(", "))
        ));
    }
    if let Some(comparison) = &explanation.comparison {
        sentences.push(found_by(comparison));
    }
    for name in &explanation.hidden_headers {
        sentences.push(format!(
            "The handler does not see the request's `{}`.",
            visible(name)
        ));
    }
    sentences.join(" ")
}

/// Returns sentences that say what to change if another answer was expected.
pub fn remedy(explanation: &Explanation) -> &'static str {
    let served = match (&explanation.cooldown, explanation.served) {
        (Some(_), Served::Stale) => Served::Failed,
        (_, served) => served,
    };
    remedy_of(served)
}

fn found_by(comparison: &Comparison) -> String {
    match comparison {
        Comparison::Same => {
            "The handler makes the same page for this request as for everybody.".to_owned()
        }
        Comparison::DiffersEachTime => {
            "Two generations of the page differ already, so it was not compared further.".to_owned()
        }
        Comparison::DiffersByHeader(name) => format!(
            "The handler makes another page for this request, because of its header `{}`, which is not in the key.",
            visible(name)
        ),
        Comparison::DiffersByRequest => {
            "The handler makes another page for this request, and no single header is the reason."
                .to_owned()
        }
        // Of a later release, too.
        _ => {
            "The page could not be compared, as its generator failed or its response is not stored."
                .to_owned()
        }
    }
}

fn bytes(count: usize) -> String {
    match count {
        1 => "one byte".to_owned(),
        many => format!("{many} bytes"),
    }
}

fn state_of(version: &ExplainedVersion) -> String {
    let state = match version.state {
        VersionState::Fresh => "is fresh",
        VersionState::Old => "is older than its interval",
        VersionState::Invalidated => "was invalidated",
        VersionState::Expired => "is too old to be served",
        VersionState::Purged => "was purged",
        // Of a later release.
        other => other.as_str(),
    };
    let [age, interval] = [version.age, version.interval].map(time);
    let place = if version.in_memory {
        "memory"
    } else {
        "the database"
    };
    format!("The version in {place} {state}: {age} old, of an interval of {interval}.")
}

fn state_after_failure(cooldown: &ExplainedCooldown, has_version: bool) -> String {
    let mut sentence = String::new();
    if has_version {
        sentence.push_str("The last regeneration has failed");
        sentence.push_str(&format!(" ({} in a row). ", cooldown.failures));
    }
    let left = time(cooldown.left.max(Duration::from_secs(1)));
    sentence.push_str(&format!("The next attempt is in {left}."));
    if let Some(error) = &cooldown.error {
        sentence.push_str(&format!(" Its error: {}", visible(error)));
    }
    sentence
}

fn reason_of(why: Bypass) -> &'static str {
    match why {
        Bypass::Method => "The method is neither GET nor HEAD.",
        Bypass::BypassIf => "A function of `bypass_if` lets this request bypass the cache.",
        Bypass::UndeclaredExtension => {
            "A middleware has added an extension to the request, which may identify the visitor."
        }
        Bypass::NoKey => {
            "The request has no key: it would be longer than 4 KiB, the request names no host, or the function of the key has returned none."
        }
        Bypass::OuterLayer => "An outer layer stores the same page.",
        Bypass::Off => "The site is in the mode `off`.",
        Bypass::TooManyKeys => {
            "Visitors invent keys faster than the layer stores them, and this key is new."
        }
        Bypass::Private => "The response has `Set-Cookie`, `private` or `no-store`.",
        Bypass::Vary => "The response's `Vary` has a header that is not in the key.",
        Bypass::ResponseExtension => {
            "The response has an extension, from which an outer middleware may make the page."
        }
        Bypass::EventStream => "The response is a stream of events.",
        Bypass::Status => "The status of the response is not stored.",
        Bypass::StoreIf => "A function of the layer's `store_if` has refused the response.",
        Bypass::TooLarge => "The response is larger than the site stores.",
        Bypass::Purged => "The page was purged while it was generated.",
        Bypass::ShuttingDown => "The process is shutting down.",
        // Of a later release.
        other => other.as_str(),
    }
}

fn remedy_of(served: Served) -> &'static str {
    match served {
        Served::Hit => {
            "To get a new version now, invalidate the page. To keep it newer than that, set a shorter interval."
        }
        Served::Stale => {
            "Nothing: a request regenerates the page. If it stays stale, the log has the handler's error. Where no old version may be served, purge, or set `stale_while_revalidate`."
        }
        Served::Generated | Served::Collapsed => {
            "Nothing: the next request is a hit, if the response may be stored. To generate pages before visitors come, call `Perennial::warm`."
        }
        Served::Bypass(why) => remedy_of_bypass(why),
        Served::Unavailable | Served::Failed => {
            "Fix the handler: the log has its error. A purge ends the cooldown."
        }
        // Of a later release.
        _ => "",
    }
}

fn remedy_of_bypass(why: Bypass) -> &'static str {
    match why {
        Bypass::Method => {
            "For a route that changes the data of pages, see `Perennial::invalidate_on_success`."
        }
        Bypass::BypassIf => {
            "Send the request without the cookie or the header that the function looks at."
        }
        Bypass::UndeclaredExtension => {
            "Declare the type that the log names: `ignore_extension` if the page does not need it, `share_extension` if all visitors have the same."
        }
        Bypass::NoKey => {
            "Name the parameters of the query that count: `.key(Key::new().query([…]))`."
        }
        Bypass::OuterLayer => "Remove one of the two layers.",
        Bypass::Off => "Unset PERENNIAL_MODE, or remove `Builder::mode`.",
        Bypass::TooManyKeys => {
            "Name the parameters of the query that count, by `Key::query`, or raise `max_keys`."
        }
        Bypass::Private => {
            "Put the middleware that sets the cookie or the header outside of the layer, or remove them in the handler."
        }
        Bypass::Vary => {
            "Add the header to the key by `Key::header`, or remove it from `Vary`; a CORS layer belongs outside of this layer."
        }
        Bypass::ResponseExtension => {
            "Put the middleware that reads the extension inside of the layer, or declare the type that the log names: `drop_response_extension`."
        }
        Bypass::EventStream => "Nothing: a stream has no end. Put it on a route without the layer.",
        Bypass::Status => "Answer with 200, 203, 204, 300, 301, 308, 404, 405, 410 or 414.",
        Bypass::StoreIf => "Nothing, if the function is right about this response.",
        Bypass::TooLarge => "Raise `Builder::max_body` or `Builder::max_headers`.",
        Bypass::Purged => "Send the request again.",
        Bypass::ShuttingDown => "Send the request again: another process answers it.",
        // Of a later release.
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_a_remedy_and_each_bypass_a_reason() {
        for served in Served::all() {
            let text = remedy_of(served);
            assert!(text.ends_with('.') && text.len() < 250, "{served}");
        }
        for why in Bypass::all() {
            assert!(
                reason_of(why).ends_with('.'),
                "`reason_of` has no text for `{why}`"
            );
        }
    }

    #[test]
    fn old_version_whose_regeneration_fails_is_explained() {
        let explanation = r#"{
            "served": "stale", "layer": "/books", "key": "/books", "is_running": false, "holds_for_s": null,
            "version": {
                "in_memory": true, "state": "old", "age_s": 90.5, "interval_s": 60.0, "tags": [], "parts": []
            },
            "cooldown": { "left_s": 4.2, "failures": 2, "error": "no column \u001b" },
            "hidden_headers": ["cookie"]
        }"#;
        let explanation: Explanation = serde_json::from_str(explanation).expect("is one");
        assert_eq!(
            reason(&explanation),
            "The version in memory is older than its interval: 1 min 30 s old, of an interval of 1 min. \
             The last regeneration has failed (2 in a row). The next attempt is in 4.2 s. \
             Its error: no column \\u{1b} The handler does not see the request's `cookie`."
        );
        assert!(remedy(&explanation).starts_with("Fix the handler"));
    }
}
