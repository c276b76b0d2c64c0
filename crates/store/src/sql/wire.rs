//! The column `headers`: a line `name: value` for each header, as in HTTP/1.1 (RFC 9112 §5), ended
//! by LF.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::BoxError;

pub(super) fn encode(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        // A value has no line feed: `HeaderValue` holds none.
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}

pub(super) fn decode(lines: &[u8]) -> Result<HeaderMap, BoxError> {
    let mut headers = HeaderMap::new();
    let Some(lines) = lines.strip_suffix(b"\n") else {
        return match lines {
            [] => Ok(headers),
            _ => Err("the headers have no end".into()),
        };
    };
    for line in lines.split(|&byte| byte == b'\n') {
        let colon = line.windows(2).position(|pair| pair == b": ");
        let (name, value) = line.split_at(colon.ok_or("a header has no colon")?);
        let value = HeaderValue::from_bytes(&value[2..])?;
        headers.append(HeaderName::from_bytes(name)?, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
        let value =
            proptest::collection::vec(prop_oneof![Just(b'\t'), 32_u8..=126, 128_u8..=255], 0..20);
        ("[a-z][a-z0-9-]{0,12}", value).prop_map(|(name, value)| {
            let value = HeaderValue::from_bytes(&value).expect("no control characters");
            (name.parse().expect("a token"), value)
        })
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were(list in proptest::collection::vec(header(), 0..12)) {
            let headers: HeaderMap = list.into_iter().collect();
            prop_assert_eq!(decode(&encode(&headers)).expect("readable"), headers);
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in [
            &b"x"[..],
            b"\n",
            b"no colon\n",
            b": no name\n",
            b"a: b\n\n",
            b"a: \x01\n",
        ] {
            assert!(decode(garbage).is_err(), "{garbage:?}");
        }
    }
}
