//! The cookie by which the author of a change gets no page from before the change.

use http::{HeaderMap, HeaderValue, header};

/// The name of the cookie. Its value is an epoch.
const COOKIE: &str = "perennial-epoch";

/// Sets the cookie.
pub(super) fn tell(headers: &mut HeaderMap, epoch: i64) {
    let cookie = format!("{COOKIE}={epoch}; Max-Age=10; Path=/; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Returns the epoch of the cookie.
pub(super) fn told(headers: &HeaderMap) -> Option<i64> {
    let lines = headers.get_all(header::COOKIE).iter();
    let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let epoch = pairs.find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(COOKIE.as_bytes())?;
        value.strip_prefix(b"=")
    });
    std::str::from_utf8(epoch?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_read_among_others() {
        for (cookie, epoch) in [
            ("perennial-epoch=7", Some(7)),
            ("a=1; perennial-epoch=7;b=2", Some(7)),
            ("perennial-epoch=", None),
            ("perennial-epoch=x", None),
            ("perennial-epochs=7", None),
            ("a=perennial-epoch=7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
            assert_eq!(told(&headers), epoch, "{cookie}");
        }
    }
}
