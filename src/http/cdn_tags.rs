//! The headers by which content delivery networks learn the tags of a page.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};

/// The longest header that is sent. Cloudflare and Fastly accept headers of this length.
const MOST_BYTES: usize = 16 << 10;

/// The header by which a content delivery network learns the tags of a page, for
/// [`RefreshLayer::cdn_tags`](crate::layer::RefreshLayer::cdn_tags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CdnTags {
    /// `Cache-Tag: a,b`, for Cloudflare, Google Cloud CDN and bunny.
    CacheTag,
    /// `Edge-Cache-Tag: a,b`, for Akamai.
    EdgeCacheTag,
    /// `Surrogate-Key: a b`, for Fastly and Varnish with xkey.
    SurrogateKey,
}

impl CdnTags {
    /// Returns a tag as it appears in the header, which is also the form that the CDN's purge API
    /// needs: characters that separate tags, and those that no header may have, are percent-encoded.
    ///
    /// ```
    /// use perennial::layer::CdnTags;
    ///
    /// assert_eq!(CdnTags::encode("book-7"), "book-7");
    /// assert_eq!(CdnTags::encode("sci-fi, used"), "sci-fi%2C%20used");
    /// ```
    pub fn encode(tag: &str) -> String {
        let mut encoded = String::with_capacity(tag.len());
        for byte in tag.bytes() {
            if byte.is_ascii_graphic() && !b",%".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
        encoded
    }

    pub(crate) fn header(self) -> HeaderName {
        HeaderName::from_static(match self {
            Self::CacheTag => "cache-tag",
            Self::EdgeCacheTag => "edge-cache-tag",
            Self::SurrogateKey => "surrogate-key",
        })
    }

    /// Returns the response with the header added. Without tags, or if the header would be too long, the
    /// response is unchanged.
    pub(crate) fn added_to(
        self,
        mut response: Response<Bytes>,
        tags: &[String],
    ) -> Response<Bytes> {
        // The tags are sorted, so that the header of an unchanged page does not change.
        let tags: BTreeSet<_> = tags.iter().map(|tag| Self::encode(tag)).collect();
        let tags: Vec<_> = tags.into_iter().collect();
        let separator = match self {
            Self::CacheTag | Self::EdgeCacheTag => ",",
            Self::SurrogateKey => " ",
        };
        let value = tags.join(separator);
        if (1..=MOST_BYTES).contains(&value.len())
            && let Ok(value) = HeaderValue::try_from(value)
        {
            response.headers_mut().insert(self.header(), value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_separated_and_encoded_as_each_network_reads_them() {
        let tags = ["book-7".to_owned(), "à la, carte 100 %".to_owned()];
        for (header, name, value) in [
            (
                CdnTags::CacheTag,
                "cache-tag",
                "%C3%A0%20la%2C%20carte%20100%20%25,book-7",
            ),
            (
                CdnTags::EdgeCacheTag,
                "edge-cache-tag",
                "%C3%A0%20la%2C%20carte%20100%20%25,book-7",
            ),
            (
                CdnTags::SurrogateKey,
                "surrogate-key",
                "%C3%A0%20la%2C%20carte%20100%20%25 book-7",
            ),
        ] {
            let response = header.added_to(Response::default(), &tags);
            assert_eq!(response.headers()[name], value);
            assert!(
                header
                    .added_to(Response::default(), &[])
                    .headers()
                    .is_empty()
            );
        }
    }
}
