//! A page with holes as it is stored: the body without the content of its holes, and the places where that content
//! belongs.
//!
//! Invariants: the places are sorted and lie within the body, so that filling the holes copies each byte once.
//! Each filling is escaped for its place, so that it cannot become markup there.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How a filling is written into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Escape {
    /// As HTML or XML text, also inside of quotes.
    Text,
    /// As a JSON string, which may be part of a script in HTML.
    Json,
    /// As it is.
    Html,
}

impl Escape {
    pub(crate) fn apply(self, filling: &str) -> Cow<'_, str> {
        match self {
            Self::Html => Cow::Borrowed(filling),
            Self::Text => escaped(filling, |c| match c {
                '&' => Some("&amp;"),
                '<' => Some("&lt;"),
                '>' => Some("&gt;"),
                '"' => Some("&quot;"),
                '\'' => Some("&#39;"),
                _ => None,
            }),
            Self::Json => {
                let string = serde_json::to_string(filling).expect("a text has a JSON form");
                // `</script>` and `<!--` end or change a script wherever they occur. The two line separators
                // below end a line of JavaScript.
                let string = escaped(&string, |c| match c {
                    '<' => Some("\\u003c"),
                    '>' => Some("\\u003e"),
                    '&' => Some("\\u0026"),
                    '\u{2028}' => Some("\\u2028"),
                    '\u{2029}' => Some("\\u2029"),
                    _ => None,
                });
                Cow::Owned(string.into_owned())
            }
        }
    }
}

fn escaped(text: &str, escape: impl Fn(char) -> Option<&'static str>) -> Cow<'_, str> {
    if text.chars().all(|c| escape(c).is_none()) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match escape(c) {
            Some(replacement) => escaped.push_str(replacement),
            None => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// A place of a hole in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The number of bytes of the body before it.
    pub(crate) at: usize,
    /// The place of its name in [`HolePlaces::names`].
    pub(crate) name: usize,
    pub(crate) escape: Escape,
}

/// A piece of a page: what is the same for all visitors, or a hole by its name.
#[derive(Debug)]
pub(crate) enum Piece {
    Text(Bytes),
    Hole(Arc<str>, Escape),
}

/// The holes of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HolePlaces {
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) places: Vec<Place>,
}

impl HolePlaces {
    /// Returns true if all places lie within a body of this length. Places that were read from the database may
    /// be wrong.
    pub(crate) fn fit(&self, length: usize) -> bool {
        let are_known = |place: &Place| place.name < self.names.len() && place.at <= length;
        self.places.iter().all(are_known) && self.places.is_sorted_by_key(|place| place.at)
    }

    /// Returns what fills each place, in their order. `filling` returns the filling for a name; a hole without one
    /// stays empty.
    #[cfg(feature = "compression")]
    pub(crate) fn fillings<'a>(
        &self,
        filling: impl Fn(&str) -> Option<&'a str>,
    ) -> impl Iterator<Item = Cow<'a, str>> {
        self.places.iter().map(move |place| {
            let filling = filling(&self.names[place.name]);
            filling.map_or(Cow::Borrowed(""), |filling| place.escape.apply(filling))
        })
    }

    /// Returns the parts of the filled body, in their order. `filling` returns the filling for a name.
    pub(crate) fn fill<'a>(
        &self,
        body: &Bytes,
        filling: impl Fn(&str) -> Option<&'a str>,
    ) -> Vec<Bytes> {
        let mut parts = Vec::with_capacity(2 * self.places.len() + 1);
        parts.extend(self.pieces(body).map(|piece| match piece {
            Piece::Text(text) => text,
            Piece::Hole(name, escape) => filling(&name).map_or_else(Bytes::new, |filling| {
                Bytes::copy_from_slice(escape.apply(filling).as_bytes())
            }),
        }));
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Returns the pieces of a body in their order: text, a hole, text, and so on.
    pub(crate) fn pieces(&self, body: &Bytes) -> impl Iterator<Item = Piece> {
        let mut from = 0;
        let before = self.places.iter().flat_map(move |place| {
            let text = body.slice(from..place.at);
            from = place.at;
            let name = Arc::clone(&self.names[place.name]);
            [Piece::Text(text), Piece::Hole(name, place.escape)]
        });
        let last = self.places.last().map_or(0, |place| place.at);
        before.chain([Piece::Text(body.slice(last..))])
    }

    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let names = self.names.iter().map(|name| name.len() + 32);
        names.sum::<usize>() + size_of_val(&*self.places)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn filling_is_a_text_where_it_stands() {
        let hostile = "</script><!--\u{2028}\"'&";
        assert_eq!(
            Escape::Text.apply(hostile),
            "&lt;/script&gt;&lt;!--\u{2028}&quot;&#39;&amp;"
        );
        assert_eq!(
            Escape::Json.apply(hostile),
            "\"\\u003c/script\\u003e\\u003c!--\\u2028\\\"'\\u0026\""
        );
        assert_eq!(Escape::Html.apply("<b>1</b>"), "<b>1</b>");
        assert_eq!(Escape::Text.apply("Ann"), "Ann");
    }

    proptest! {
        #[test]
        fn json_in_a_script_is_read_as_the_text(text: String) {
            let json = Escape::Json.apply(&text).into_owned();
            let has_others = json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']);
            prop_assert!(!has_others);
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("is JSON"), text);
        }

        #[test]
        fn filled_body_has_each_byte_once(pieces in proptest::collection::vec(".{0,9}", 1..9), fillings in proptest::collection::vec("[a-z]{0,5}", 8)) {
            let body: String = pieces.concat();
            let mut at = 0;
            let mut places = HolePlaces { names: (0..8).map(|n| n.to_string().into()).collect(), places: Vec::new() };
            let mut expected = String::new();
            for (number, piece) in pieces.iter().enumerate() {
                expected.push_str(piece);
                at += piece.len();
                if number + 1 < pieces.len() {
                    places.places.push(Place { at, name: number, escape: Escape::Html });
                    expected.push_str(&fillings[number]);
                }
            }
            prop_assert!(places.fit(body.len()));
            let filled = places.fill(&Bytes::from(body), |name| Some(&fillings[name.parse::<usize>().expect("a number")]));
            prop_assert_eq!(filled.concat(), expected.into_bytes());
        }
    }

    #[test]
    fn places_that_are_not_of_the_body_are_told() {
        let place = |at, name| Place {
            at,
            name,
            escape: Escape::Text,
        };
        let places = |places: &[Place]| HolePlaces {
            names: vec!["a".into()],
            places: places.to_vec(),
        };
        assert!(places(&[place(0, 0), place(0, 0), place(4, 0)]).fit(4));
        for wrong in [
            &[place(5, 0)][..],
            &[place(0, 1)],
            &[place(2, 0), place(1, 0)],
        ] {
            assert!(!places(wrong).fit(4), "{wrong:?}");
        }
    }
}
