//! What is known of a request with an `Idempotency-Key`, and what is to be done about it.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use sha2::{Digest, Sha256};

use crate::{
    key::hex,
    layer::refresh::request::host,
    store::{Entry, Probe},
};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key that a client may send, in bytes.
const LONGEST: usize = 255;

/// What is to be done about a request with a key, by what is known of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It was done, and this is how it was answered.
    Replay,
    /// It was done, and how it was answered is not known.
    Unkept,
    /// It was another request.
    Another,
    /// It was another caller.
    AnotherCaller,
    InProgress,
    /// It was begun, and who began it is no more.
    Unknown,
    /// It is to be done, provided that the lock's fence still is that.
    Run {
        seen: i64,
    },
}

/// `again`: what nobody knows is done again.
pub(super) fn turn(probe: &Probe, asked: &Asked, lifetime: Duration, again: bool) -> Turn {
    if probe.unreadable {
        return Turn::Unkept;
    }
    let lock = probe.lock;
    let free = match &probe.entry {
        Some(entry) if entry.age <= lifetime => {
            let notes = Notes::of(entry);
            return match notes.kept {
                _ if notes.asked.who != asked.who => Turn::AnotherCaller,
                _ if notes.asked.what != asked.what => Turn::Another,
                true => Turn::Replay,
                false => Turn::Unkept,
            };
        }
        // It was done under that very lease, also if that was never released.
        Some(entry) => !lock.owned || entry.fence == lock.fence,
        None => !lock.owned,
    };
    match lock.remaining.is_zero() {
        false => Turn::InProgress,
        true if free || again => Turn::Run { seen: lock.fence },
        true => Turn::Unknown,
    }
}

/// What was asked for, and by whom, as far as the name of the lock doesn't say it; digests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) what: String,
    pub(super) who: String,
}

/// What is noted beside a stored response.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) asked: Asked,
    /// The response is the service's; otherwise it stands for one that could not be stored.
    pub(super) kept: bool,
}

impl Notes {
    pub(super) fn encode(&self) -> String {
        let mut pairs = Serializer::new(String::new());
        pairs.append_pair("what", &self.asked.what);
        pairs.append_pair("who", &self.asked.who);
        if self.kept {
            pairs.append_pair("kept", "");
        }
        pairs.finish()
    }

    fn of(entry: &Entry) -> Self {
        let mut notes = Self::default();
        for (name, value) in form_urlencoded::parse(entry.notes.as_bytes()) {
            match &*name {
                "what" => notes.asked.what = value.into_owned(),
                "who" => notes.asked.who = value.into_owned(),
                "kept" => notes.kept = true,
                _ => {}
            }
        }
        notes
    }
}

/// The client's key: a string of RFC 9651, or what stands there. `None`: there is none. The error says what is wrong with it.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(KEY).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err("there are two `Idempotency-Key` headers: send one");
    }
    let Ok(text) = line.to_str() else {
        return Err("the `Idempotency-Key` is not plain ASCII: send a UUID, say");
    };
    let text = text.trim();
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let key = match quoted {
        Some(string) => string.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.to_owned(),
    };
    match key.len() {
        0 => Err("the `Idempotency-Key` is empty: send a UUID, say"),
        1..=LONGEST => Ok(Some(key)),
        _ => Err("the `Idempotency-Key` is longer than 255 bytes: send a UUID, say"),
    }
}

/// The words, in the name of a header, that say that its value tells who is asking.
const WORDS: [&str; 25] = [
    "account",
    "api",
    "auth",
    "cert",
    "client",
    "cookie",
    "customer",
    "device",
    "dpop",
    "email",
    "group",
    "identity",
    "jwt",
    "key",
    "member",
    "organi",
    "principal",
    "role",
    "secret",
    "session",
    "subject",
    "subscriber",
    "tenant",
    "token",
    "user",
];

/// The same words where they would be found in other words: whole segments between `-`.
const SEGMENTS: [&str; 4] = ["dn", "org", "orgid", "orgs"];

/// The ends of names that say that a client's header tells of a connection or of one try.
const VOLATILE: [&str; 5] = ["ip", "port", "request-id", "trace-id", "correlation-id"];

/// Returns true if a header tells who is asking, as far as its name says.
fn tells_who(name: &str) -> bool {
    let named = |word: &&str| {
        name.contains(*word)
            && (*word != "client" || !VOLATILE.iter().any(|end| name.ends_with(end)))
    };
    !matches!(name, "idempotency-key" | "user-agent")
        && !name.starts_with("sec-")
        && (WORDS.iter().any(named) || name.split(['-', '_']).any(|part| SEGMENTS.contains(&part)))
}

/// The part of a header's value that tells who is asking: of a DPoP proof (RFC 9449), which is new for each request, its header, which
/// has the public key.
fn identity<'a>(name: &str, value: &'a HeaderValue) -> &'a [u8] {
    let value = value.as_bytes();
    match name {
        "dpop" => value.split(|byte| *byte == b'.').next().unwrap_or(value),
        _ => value,
    }
}

/// What tells one request from another that has the same key.
pub(super) fn what(parts: &Parts, body: &Bytes) -> String {
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    digest([
        parts.method.as_str().as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        media_type.map_or(b"", HeaderValue::as_bytes),
        body,
    ])
}

/// What tells one caller from another, where the name of the lock doesn't. `scoped`: the name has the caller, and the host is left, as two sites
/// may know different users by one name.
pub(super) fn who(parts: &Parts, scoped: bool) -> String {
    // Whatever version of HTTP it comes by.
    let mut said = vec![host(&parts.uri, &parts.headers).unwrap_or_default()];
    // Sorted, as the lines of different names may come in any order.
    let names = BTreeSet::from_iter(parts.headers.keys().map(HeaderName::as_str));
    let tell = |name: &&str| !scoped && tells_who(name);
    for name in names.into_iter().filter(tell) {
        let lines = parts.headers.get_all(name).iter();
        let lines: Vec<_> = lines.map(|line| identity(name, line)).collect();
        // HTTP/2 may send the cookies in pieces (RFC 9113 §8.2.3).
        said.extend([name.as_bytes().to_vec(), lines.join(&b"; "[..])]);
    }
    digest(said.iter().map(Vec::as_slice))
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;
    use crate::store::LockState;

    fn headers(keys: &[&str]) -> HeaderMap {
        let keys = keys.iter();
        keys.map(|key| (KEY, HeaderValue::from_str(key).expect("a value")))
            .collect()
    }

    const DAY: Duration = Duration::from_secs(86_400);

    fn asked(what: &str, who: &str) -> Asked {
        let [what, who] = [what, who].map(str::to_owned);
        Asked { what, who }
    }

    /// A response that was stored so long ago, under the fence 7.
    fn stored(age: Duration, kept: bool) -> Option<Entry> {
        let asked = asked("x&=", "ann");
        Some(Entry {
            fence: 7,
            age,
            undated: false,
            content: Response::default(),
            notes: Notes { asked, kept }.encode(),
        })
    }

    #[test]
    fn what_is_known_says_what_is_to_be_done() {
        let free = LockState {
            fence: 7,
            ..LockState::default()
        };
        let held = LockState {
            owned: true,
            remaining: Duration::from_secs(1),
            ..free
        };
        let crashed = LockState {
            owned: true,
            ..free
        };
        let later = LockState {
            fence: 8,
            ..crashed
        };
        let run = Turn::Run { seen: 7 };
        for (entry, lock, x, y, again) in [
            (
                None,
                LockState::default(),
                Turn::Run { seen: 0 },
                Turn::Run { seen: 0 },
                Turn::Run { seen: 0 },
            ),
            (None, free, run, run, run),
            (
                None,
                held,
                Turn::InProgress,
                Turn::InProgress,
                Turn::InProgress,
            ),
            (None, crashed, Turn::Unknown, Turn::Unknown, run),
            (
                stored(DAY, true),
                free,
                Turn::Replay,
                Turn::Another,
                Turn::Replay,
            ),
            // Stored, and not released: by a crash, or not yet.
            (
                stored(DAY, true),
                held,
                Turn::Replay,
                Turn::Another,
                Turn::Replay,
            ),
            (
                stored(DAY, true),
                crashed,
                Turn::Replay,
                Turn::Another,
                Turn::Replay,
            ),
            (
                stored(DAY, false),
                free,
                Turn::Unkept,
                Turn::Another,
                Turn::Unkept,
            ),
            // Its time is over.
            (stored(2 * DAY, true), free, run, run, run),
            (stored(2 * DAY, true), crashed, run, run, run),
            (
                stored(2 * DAY, true),
                held,
                Turn::InProgress,
                Turn::InProgress,
                Turn::InProgress,
            ),
            (
                stored(2 * DAY, true),
                later,
                Turn::Unknown,
                Turn::Unknown,
                Turn::Run { seen: 8 },
            ),
        ] {
            let case = format!("{entry:?} {lock:?}");
            let probe = Probe {
                entry,
                lock,
                ..Probe::default()
            };
            assert_eq!(turn(&probe, &asked("x&=", "ann"), DAY, false), x, "{case}");
            assert_eq!(turn(&probe, &asked("y", "ann"), DAY, false), y, "{case}");
            assert_eq!(
                turn(&probe, &asked("x&=", "ann"), DAY, true),
                again,
                "{case}"
            );
        }
        let probe = Probe {
            entry: stored(DAY, true),
            ..Probe::default()
        };
        let bob = asked("x&=", "bob");
        assert_eq!(turn(&probe, &bob, DAY, true), Turn::AnotherCaller);
        let unreadable = Probe {
            unreadable: true,
            ..Probe::default()
        };
        assert_eq!(turn(&unreadable, &asked("x", ""), DAY, true), Turn::Unkept);
    }

    #[test]
    fn headers_tell_who_is_asking_by_their_names() {
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x-forwarded-user",
            "x-auth-request-email",
            "x-forwarded-client-cert",
            "x-csrf-token",
            "x-tenant-id",
            "cf-access-jwt-assertion",
            "x-ssl-client-s-dn",
            "ssl-s-dn",
            "x-ms-client-principal-id",
            "x-client-id",
            "remote-email",
            "dpop",
            "x-org-id",
            "x-organization",
            "x-org_id",
            "x-member",
            "x-subscriber-number",
            "x-device-id",
            "x-roles",
            "x-groups",
        ] {
            assert!(tells_who(name), "{name}");
        }
        for name in [
            "user-agent",
            "idempotency-key",
            "accept",
            "traceparent",
            "x-request-id",
            "cf-ray",
            "x-forwarded-for",
            "x-amzn-trace-id",
            "b3",
            "sec-ch-ua",
            "content-length",
            "x-retry-count",
            "true-client-ip",
            "x-client-ip",
            "x-client-port",
            "x-ms-client-request-id",
            "x-idn",
            "x-forged",
            "origin",
            "cdn-loop",
        ] {
            assert!(!tells_who(name), "{name}");
        }
    }

    #[test]
    fn proofs_of_one_key_are_one_callers() {
        let who = |proof: &str| {
            let request = http::Request::builder().header("dpop", proof);
            who(&request.body(()).expect("a request").into_parts().0, false)
        };
        assert_eq!(who("key.first.x"), who("key.second.y"));
        assert_ne!(who("key.first.x"), who("other.first.x"));
    }

    #[test]
    fn a_caller_is_the_same_by_whichever_version_of_http_it_comes() {
        let who = |uri: &str, host: Option<&str>, cookie: &str| {
            let mut request = http::Request::builder().uri(uri).header("cookie", cookie);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            who(&request.body(()).expect("a request").into_parts().0, false)
        };
        let one = who("/pay", Some("shop.example"), "a");
        assert_eq!(who("https://Shop.example/pay", None, "a"), one);
        assert_eq!(
            who("https://shop.example/pay", Some("shop.example"), "a"),
            one
        );
        assert_ne!(who("/pay", Some("other.example"), "a"), one);
        assert_ne!(who("/pay", Some("shop.example"), "b"), one);
    }

    #[test]
    fn a_key_is_a_string_or_what_stands_there() {
        for (sent, key) in [
            ("\"a-b\"", "a-b"),
            ("a-b", "a-b"),
            (" a/b% ", "a/b%"),
            ("\"a\\\"b\\\\\"", "a\"b\\"),
            ("\"a", "\"a"),
        ] {
            let found = key_of(&headers(&[sent]));
            assert_eq!(found, Ok(Some(key.to_owned())), "{sent}");
        }
        assert_eq!(key_of(&headers(&[])), Ok(None));
        let long = "x".repeat(LONGEST + 1);
        for bad in [&["", ""][..1], &["\"\""], &["a", "b"], &["ä"], &[&long]] {
            assert!(key_of(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
