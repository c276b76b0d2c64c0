//! The marks that a handler writes into its body, and the code that cuts them out again.
//!
//! Invariant: only the generation for which a mark was given out knows its text. So nobody can forge a mark,
//! and if a visitor's text looks like one, it is not changed.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, header, response};
use perennial_store::locked;

use crate::{
    cache::parts::{self, RunContext},
    holes::{Escape, HolePlaces, Place},
};

/// The maximum number of marks in a body.
const MOST_PLACES: usize = 10_000;

/// The beginning of each mark; 32 hexadecimal digits and the number of the mark follow.
const WORD: &str = "hole";
/// The digits of the number.
const DIGITS: usize = 3;
/// The length of a mark: letters and digits alone, which no template engine escapes.
pub(super) const MARK: usize = WORD.len() + 32 + DIGITS;

/// The holes of the page that a handler writes. The handler gets a `Holes` value from the extensions of its
/// request, or as an extractor of axum, and writes a *mark* wherever a hole belongs.
///
/// A mark is a string in the body that stands for the hole. For each visitor, the layer replaces it with what
/// the [function of the hole](crate::layer::RefreshLayer::hole) returns, whether it stores the page or passes
/// it on. The string differs from one generation to the next: write it into the body as it is, and do not keep
/// it anywhere.
///
/// ```
/// # use axum::response::Html;
/// use perennial::layer::Holes;
///
/// async fn book(holes: Holes) -> Html<String> {
///     Html(format!("<nav>Hello {}</nav><h1>Middlemarch</h1>", holes.text("name")))
/// }
/// ```
///
/// # Failures
///
/// The generation of the page fails, and the log says why, if a hole is not declared on the layer, if a mark is
/// not found in the body (it was changed, cut off or compressed), or if it is in a header: see
/// [`header_with`](crate::layer::RefreshLayer::header_with).
#[derive(Clone)]
pub struct Holes(Arc<Given>);

/// What was given out for one request.
struct Given {
    /// [`WORD`] and a random UUID.
    secret: String,
    /// The names of the layer's holes.
    names: Arc<[Arc<str>]>,
    /// The address of the run that generates the page, if one does.
    run: OnceLock<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the numbers of the marks.
    marks: Vec<Mark>,
    /// The first mistake, which fails the generation.
    mistake: Option<String>,
}

#[derive(Clone, Copy)]
struct Mark {
    name: usize,
    escape: Escape,
    may_be_missing: bool,
}

impl Holes {
    pub(in crate::layer) fn new(names: Arc<[Arc<str>]>) -> Self {
        Self(Arc::new(Given {
            secret: format!("{WORD}{}", uuid::Uuid::new_v4().simple()),
            names,
            run: OnceLock::new(),
            state: Mutex::default(),
        }))
    }

    /// Says which run generates the page.
    pub(in crate::layer) fn belong_to(&self, run: &Arc<RunContext>) {
        let _ = self.0.run.set(Arc::as_ptr(run).addr());
    }

    /// Returns true in a task that generates something other than the page itself: a part of it.
    fn is_in_a_part(&self) -> bool {
        let run = parts::current().filter(|run| run.is_generator());
        run.is_some_and(|run| self.0.run.get() != Some(&Arc::as_ptr(&run).addr()))
    }

    /// Returns the mark of a hole whose filling is shown as text, in HTML or XML, including inside a quoted
    /// attribute.
    ///
    /// ```
    /// # fn f(holes: perennial::layer::Holes) -> String {
    /// format!("<b>{}</b>", holes.text("name"))
    /// # }
    /// ```
    pub fn text(&self, name: &str) -> String {
        self.mark(name, Escape::Text)
    }

    /// Returns the mark of a hole whose filling becomes a string of JSON or JavaScript, quotes included.
    /// It can also be used inside an HTML `<script>` element.
    ///
    /// ```
    /// # fn f(holes: perennial::layer::Holes) -> String {
    /// format!("<script>let name = {};</script>", holes.json("name"))
    /// # }
    /// ```
    pub fn json(&self, name: &str) -> String {
        self.mark(name, Escape::Json)
    }

    /// Returns the mark of a hole whose filling is inserted into the page as HTML, without escaping. The hole's
    /// function has to escape whatever comes from users.
    ///
    /// ```
    /// # fn f(holes: perennial::layer::Holes) -> String {
    /// format!("<aside>{}</aside>", holes.html("cart"))
    /// # }
    /// ```
    pub fn html(&self, name: &str) -> String {
        self.mark(name, Escape::Html)
    }

    /// Says that the body may lack the marks of a hole, although the handler has asked for them: for a template that
    /// leaves the spot out in some cases.
    ///
    /// ```
    /// # fn f(holes: perennial::layer::Holes, is_short: bool) -> String {
    /// let cart = holes.text("cart");
    /// if is_short {
    ///     holes.unused("cart");
    ///     return "a page without a cart".to_owned();
    /// }
    /// format!("a page with {cart}")
    /// # }
    /// ```
    pub fn unused(&self, name: &str) {
        let mut state = locked(&self.0.state);
        let is_of = |mark: &&mut Mark| *self.0.names[mark.name] == *name;
        for mark in state.marks.iter_mut().filter(is_of) {
            mark.may_be_missing = true;
        }
    }

    fn mark(&self, name: &str, escape: Escape) -> String {
        let in_part = self.is_in_a_part();
        let mut state = locked(&self.0.state);
        let Some(name) = self.0.names.iter().position(|known| **known == *name) else {
            let mistake = format!("the layer has no hole {name:?}: `.hole({name:?}, …)`");
            state.mistake.get_or_insert(mistake);
            return String::new();
        };
        if in_part {
            let name = &self.0.names[name];
            let mistake = format!(
                "a mark of the hole {name:?} was written in a part of the page: `content` and `value` are stored by themselves, and other pages \
                 show them, too. Write the mark in the page's own handler"
            );
            state.mistake.get_or_insert(mistake);
            return String::new();
        }
        let known = state
            .marks
            .iter()
            .position(|mark| mark.name == name && mark.escape == escape);
        let number = known.unwrap_or_else(|| {
            state.marks.push(Mark {
                name,
                escape,
                may_be_missing: false,
            });
            state.marks.len() - 1
        });
        format!("{}{number:0DIGITS$}", self.0.secret)
    }

    /// Returns true if a mark was given out, or may be given out later, as somebody still has this value.
    pub(in crate::layer) fn may_have_marks(&self) -> bool {
        let state = locked(&self.0.state);
        Arc::strong_count(&self.0) > 1 || !state.marks.is_empty() || state.mistake.is_some()
    }

    /// The text that each mark begins with.
    pub(super) fn secret(&self) -> &str {
        &self.0.secret
    }

    /// Returns the name and the escaping of the mark with these digits.
    pub(super) fn of_digits(&self, digits: &[u8]) -> Option<(Arc<str>, Escape)> {
        let number: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let state = locked(&self.0.state);
        let mark = state.marks.get(number)?;
        Some((Arc::clone(&self.0.names[mark.name]), mark.escape))
    }

    /// Returns the first mistake in the use of the marks.
    pub(in crate::layer) fn mistake(&self, headers: &HeaderMap) -> Option<String> {
        let state = locked(&self.0.state);
        if let Some(mistake) = &state.mistake {
            return Some(mistake.clone());
        }
        if state.marks.is_empty() {
            return None;
        }
        let has_mark = |value: &&http::HeaderValue| {
            let value = value.as_bytes();
            memchr::memmem::find(value, self.0.secret.as_bytes()).is_some()
        };
        let named = headers.iter().find(|(_, value)| has_mark(value));
        if let Some((name, _)) = named {
            return Some(format!(
                "a mark of a hole stands in the header {name}: `.header_with({name:?}, …)` on the layer"
            ));
        }
        let coding = headers.get(header::CONTENT_ENCODING)?;
        Some(format!(
            "the response has marks of holes and the Content-Encoding {coding:?}: put the layer that compresses outside of this one"
        ))
    }

    /// Cuts the marks out of a generated body. Returns the body as it is if no mark was given out.
    ///
    /// Handlers ask for marks before they know whether there is anything to show. So marks may be missing in a
    /// response that is not a success, such as a 404 or a redirect.
    pub(in crate::layer) fn cut(
        &self,
        head: &response::Parts,
        body: Bytes,
    ) -> Result<(Bytes, Option<HolePlaces>), String> {
        if let Some(mistake) = self.mistake(&head.headers) {
            return Err(mistake);
        }
        let state = locked(&self.0.state);
        if state.marks.is_empty() {
            return Ok((body, None));
        }
        let mut found = vec![false; state.marks.len()];
        let mut places = HolePlaces::default();
        let mut pieces = Vec::with_capacity(body.len());
        let mut from = 0;
        for at in memchr::memmem::find_iter(&body, self.0.secret.as_bytes()) {
            let digits = body.get(at + MARK - DIGITS..at + MARK);
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let number = digits.and_then(|digits| digits.parse::<usize>().ok());
            let Some((number, mark)) = number.and_then(|it| Some((it, state.marks.get(it)?)))
            else {
                return Err("a mark of a hole was cut off in the body".to_owned());
            };
            if places.places.len() == MOST_PLACES {
                return Err(format!(
                    "the page has more than {MOST_PLACES} places of holes"
                ));
            }
            found[number] = true;
            pieces.extend_from_slice(&body[from..at]);
            from = at + MARK;
            let name = &self.0.names[mark.name];
            let known = places.names.iter().position(|known| known == name);
            let name = known.unwrap_or_else(|| {
                places.names.push(Arc::clone(name));
                places.names.len() - 1
            });
            places.places.push(Place {
                at: pieces.len(),
                name,
                escape: mark.escape,
            });
        }
        if places.places.is_empty() && !head.status.is_success() {
            return Ok((body, None));
        }
        let missing = state.marks.iter().zip(&found);
        let missing = missing
            .filter(|(mark, found)| !**found && !mark.may_be_missing)
            .map(|(mark, _)| &*self.0.names[mark.name]);
        if let Some(name) = missing.into_iter().next() {
            return Err(format!(
                "the mark of the hole {name:?} is not in the body: it was changed on its way, or not written. If it may be missing, \
                 `holes.unused({name:?})`"
            ));
        }
        pieces.extend_from_slice(&body[from..]);
        Ok((pieces.into_boxed_slice().into(), Some(places)))
    }
}

impl fmt::Debug for Holes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret, which a log has no use for.
        f.debug_struct("Holes")
            .field("names", &self.0.names)
            .finish_non_exhaustive()
    }
}

/// Extracts the holes of the request's layer.
#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Holes {
    type Rejection = (http::StatusCode, &'static str);

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        let holes = parts.extensions.get::<Self>().cloned();
        holes.ok_or((
            http::StatusCode::INTERNAL_SERVER_ERROR,
            "no layer with holes is around this route: `site.layer(…).hole(\"name\", …)`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes() -> Holes {
        Holes::new(["name".into(), "cart".into()].into())
    }

    fn head() -> response::Parts {
        http::Response::new(()).into_parts().0
    }

    fn cut(holes: &Holes, body: &str) -> Result<(String, Option<HolePlaces>), String> {
        let cut = holes.cut(&head(), Bytes::from(body.to_owned()));
        cut.map(|(body, places)| (String::from_utf8(body.to_vec()).expect("text"), places))
    }

    #[test]
    fn marks_become_places() {
        let holes = holes();
        let (name, cart) = (holes.text("name"), holes.json("cart"));
        assert!(name.len() == MARK && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(holes.text("name"), name, "the same mark for the same hole");
        let (body, places) = cut(&holes, &format!("{name}, {cart}{name}!")).expect("is right");
        assert_eq!(body, ", !");
        let places = places.expect("has some");
        assert_eq!(places.names, ["name".into(), "cart".into()]);
        let at: Vec<_> = places.places.iter().map(|it| (it.at, it.name)).collect();
        assert_eq!(at, [(0, 0), (2, 1), (2, 0)]);
        assert_eq!(
            cut(&self::holes(), "a page"),
            Ok(("a page".to_owned(), None))
        );
    }

    #[test]
    fn mark_of_another_generation_is_a_text() {
        let (holes, others) = (holes(), holes());
        let (name, other) = (holes.text("name"), others.text("name"));
        let (body, places) = cut(&holes, &format!("{other}{name}hole")).expect("is right");
        assert_eq!(body, format!("{other}hole"));
        assert_eq!(places.expect("has one").places.len(), 1);
    }

    #[test]
    fn mistake_is_told_with_the_name_of_the_hole() {
        for (body, said) in [
            ("lost", "\"name\" is not in the body"),
            ("upper", "\"name\" is not in the body"),
            ("short", "was cut off"),
        ] {
            let holes = holes();
            let name = holes.text("name");
            let body = match body {
                "upper" => name.to_uppercase(),
                "short" => name[..MARK - 1].to_owned(),
                body => body.to_owned(),
            };
            let error = cut(&holes, &body).expect_err(said);
            assert!(error.contains(said), "{error}");
            holes.unused("name");
        }
        let holes = self::holes();
        assert_eq!(holes.text("nmae"), "");
        let error = cut(&holes, "").expect_err("is unknown");
        assert!(error.contains("no hole \"nmae\""), "{error}");
        let holes = self::holes();
        let _ = holes.text("name");
        holes.unused("name");
        assert!(cut(&holes, "no name").is_ok());
        let holes = self::holes();
        let name = holes.text("name");
        for (header_name, value, said) in [
            ("x-name", &*name, "the header x-name"),
            ("content-encoding", "gzip", "Content-Encoding"),
        ] {
            let mut head = head();
            let value = value.parse().expect("a value");
            head.headers.insert(header_name, value);
            let error = holes.cut(&head, Bytes::from(name.clone()));
            let error = error.expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
