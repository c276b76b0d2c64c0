//! The functions that fill the holes of a layer, and the templates of headers that contain holes.

use std::{
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use futures_util::{FutureExt, future::join_all};
use http::{HeaderName, HeaderValue, request::Parts};
use perennial_store::error::BoxError;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::{
    cache::author,
    clock::Tick,
    timing::{HOLE_LOG_INTERVAL, HOLE_TIMEOUT, STREAMED_HOLE_TIMEOUT},
};

/// The most holes of a layer.
const MOST_HOLES: usize = 64;

/// The most bytes of a filling.
const MOST_BYTES: usize = 64 << 10;

type Run = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// What the function of a hole may return: a string, or a `Result` with one.
///
/// ```
/// # use http::request::Parts;
/// # fn f(layer: perennial::layer::RefreshLayer) {
/// let layer = layer
///     .hole("greeting", async |_: Parts| "Hello")
///     .hole("visits", async |_: Parts| 7.to_string())
///     .hole("cart", async |_: Parts| Err::<String, _>("the cart is not available"));
/// # }
/// ```
///
/// This trait cannot be implemented outside of this crate.
#[diagnostic::on_unimplemented(
    message = "the function of a hole returns a text, or a `Result` with one, and not `{Self}`",
    note = "for another type, return `value.to_string()`"
)]
pub trait IntoFilling: sealed::Sealed {
    #[doc(hidden)]
    fn into_filling(self) -> Result<String, BoxError>;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for String {}
impl IntoFilling for String {
    fn into_filling(self) -> Result<String, BoxError> {
        Ok(self)
    }
}

impl sealed::Sealed for &'static str {}
impl IntoFilling for &'static str {
    fn into_filling(self) -> Result<String, BoxError> {
        Ok(self.to_owned())
    }
}

impl<T: Into<String>, E: Into<BoxError>> sealed::Sealed for Result<T, E> {}
impl<T: Into<String>, E: Into<BoxError>> IntoFilling for Result<T, E> {
    fn into_filling(self) -> Result<String, BoxError> {
        self.map(Into::into).map_err(Into::into)
    }
}

/// The holes of a layer.
#[derive(Clone, Default)]
pub(in crate::layer) struct HoleFunctions {
    names: Arc<[Arc<str>]>,
    holes: Vec<Arc<Hole>>,
    headers: Vec<(HeaderName, Arc<[Part]>)>,
    /// The holes that are used in headers, as bits: bit n stands for the n-th hole.
    of_headers: u64,
}

struct Hole {
    run: Box<dyn Fn(Parts) -> Run + Send + Sync>,
    fallback: Option<String>,
    /// The page is sent up to this hole before its function has ended.
    is_streamed: bool,
    /// The time of the last line in the log.
    logged: AtomicI64,
}

/// A part of a header's value.
enum Part {
    Text(String),
    Hole(usize),
}

/// What fills the holes for one visitor, by their names.
pub(in crate::layer) struct Fillings {
    names: Arc<[Arc<str>]>,
    /// In the order of the names.
    fillings: Vec<Filling>,
    /// The functions of streamed holes that have not ended. They run in tasks of their own, so that a visitor
    /// who reads slowly does not stall a function that holds a connection. They end with the body.
    running: Option<Running>,
}

type Running = JoinSet<(usize, Option<String>)>;

enum Filling {
    /// The hole is not on the page, or has failed and has no fallback.
    None,
    Text(String),
    /// The function of a streamed hole has not ended.
    Running,
}

impl Fillings {
    fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| **known == *name)
    }

    fn at(&self, place: usize) -> Option<&str> {
        match &self.fillings[place] {
            Filling::Text(text) => Some(text),
            Filling::None | Filling::Running => None,
        }
    }

    /// Returns the filling of a hole that is not streamed. If its function has failed, that is the
    /// fallback, or `None` without one.
    pub(in crate::layer) fn of(&self, name: &str) -> Option<&str> {
        self.at(self.place(name)?)
    }

    /// Returns true if a hole of the page is streamed, so that its body has to wait.
    pub(in crate::layer) fn are_streamed(&self) -> bool {
        let is_running = |filling: &Filling| matches!(filling, Filling::Running);
        self.fillings.iter().any(is_running)
    }

    /// Returns the filling of any hole, once it is there. All functions keep running in the meantime.
    pub(in crate::layer) fn poll_of(
        &mut self,
        name: &str,
        cx: &mut Context<'_>,
    ) -> Poll<Option<&str>> {
        let Some(place) = self.place(name) else {
            return Poll::Ready(None);
        };
        if let Some(running) = &mut self.running {
            while let Filling::Running = self.fillings[place] {
                match ready!(running.poll_join_next(cx)) {
                    Some(Ok((ended, text))) => {
                        self.fillings[ended] = text.map_or(Filling::None, Filling::Text);
                    }
                    // This error means that the runtime is shutting down, because panics of the function
                    // are caught.
                    Some(Err(_)) => {}
                    None => break,
                }
            }
        }
        Poll::Ready(self.at(place))
    }
}

impl fmt::Debug for Fillings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The texts are a visitor's own.
        f.debug_tuple("Fillings").field(&self.names).finish()
    }
}

impl HoleFunctions {
    pub(in crate::layer) fn is_empty(&self) -> bool {
        self.holes.is_empty()
    }

    pub(in crate::layer) fn names(&self) -> &Arc<[Arc<str>]> {
        &self.names
    }

    /// Returns true if the layer has each of these holes.
    pub(in crate::layer) fn have_all(&self, names: &[Arc<str>]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }

    /// Returns true if one of these holes is streamed.
    #[cfg(feature = "compression")]
    pub(in crate::layer) fn stream_any_of(&self, names: &[Arc<str>]) -> bool {
        let holes = self.names.iter().zip(&self.holes);
        let mut streamed = holes.filter(|(_, hole)| hole.is_streamed);
        streamed.any(|(name, _)| names.contains(name))
    }

    /// Declares a hole.
    pub(in crate::layer) fn declare<Fut>(
        &mut self,
        name: &str,
        fallback: Option<String>,
        is_streamed: bool,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) where
        Fut: Future<Output: IntoFilling> + Send + 'static,
    {
        assert!(
            !name.is_empty() && !name.contains(['{', '}']),
            "a hole has a name without braces"
        );
        assert!(
            !self.names.iter().any(|known| **known == *name),
            "the hole {name:?} is declared twice"
        );
        assert!(
            self.holes.len() < MOST_HOLES,
            "a layer has {MOST_HOLES} holes at most"
        );
        let names = self.names.iter().cloned();
        self.names = names.chain([name.into()]).collect();
        self.holes.push(Arc::new(Hole {
            run: Box::new(move |parts| Box::pin(function(parts).map(IntoFilling::into_filling))),
            fallback,
            is_streamed,
            logged: AtomicI64::new(i64::MIN),
        }));
    }

    /// Declares a header with holes.
    pub(in crate::layer) fn declare_header(&mut self, header: HeaderName, template: &str) {
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('{') {
            let name = after.split_once('}');
            let (name, after) =
                name.unwrap_or_else(|| panic!("a `{{` without `}}` in {template:?}"));
            let hole = self.names.iter().position(|known| **known == *name);
            let hole = hole.unwrap_or_else(|| {
                panic!("the header {header} has the hole {name:?}, which is not declared before it")
            });
            assert!(
                !self.holes[hole].is_streamed,
                "the header {header} has the hole {name:?}, which is streamed, and so comes too late for a header"
            );
            parts.extend((!text.is_empty()).then(|| Part::Text(text.to_owned())));
            parts.push(Part::Hole(hole));
            self.of_headers |= 1 << hole;
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        self.headers.push((header, parts.into()));
    }

    /// Runs the functions of these holes, and of those in headers, each once and all at the same time, as part
    /// of the visitor's own request. The functions of streamed holes run in tasks, and may still run while the
    /// body is read.
    pub(in crate::layer) async fn fill<'a>(
        &self,
        names: impl IntoIterator<Item = &'a Arc<str>>,
        visitor: Parts,
        now: Tick,
    ) -> Fillings {
        // A layer has 64 holes at most.
        let mut wanted = self.of_headers;
        for name in names {
            if let Some(place) = self.names.iter().position(|known| known == name) {
                wanted |= 1 << place;
            }
        }
        let mut fillings: Vec<_> = self.holes.iter().map(|_| Filling::None).collect();
        let mut running = None;
        // Most pages have only one hole that has to be filled, and need no list of running functions.
        if wanted.is_power_of_two()
            && let place = wanted.trailing_zeros() as usize
            && !self.holes[place].is_streamed
        {
            let run = self.holes[place].run(&self.names[place], visitor, now);
            fillings[place] = run.await.map_or(Filling::None, Filling::Text);
            return self.filled(fillings, None);
        }
        let (mut first, mut visitor) = (Vec::new(), Some(visitor));
        while wanted != 0 {
            let place = wanted.trailing_zeros() as usize;
            wanted &= wanted - 1;
            // The last function takes the request itself.
            let visitor = if wanted == 0 {
                visitor.take()
            } else {
                visitor.clone()
            };
            let Some(visitor) = visitor else { break };
            let hole = Arc::clone(&self.holes[place]);
            if hole.is_streamed {
                let name = Arc::clone(&self.names[place]);
                let run = async move { (place, hole.run(&name, visitor, now).await) };
                fillings[place] = Filling::Running;
                running
                    .get_or_insert_with(Running::new)
                    .spawn(author::carried(run).in_current_span());
            } else {
                let name = &self.names[place];
                first.push(async move { (place, hole.run(name, visitor, now).await) });
            }
        }
        for (place, text) in join_all(first).await {
            fillings[place] = text.map_or(Filling::None, Filling::Text);
        }
        self.filled(fillings, running)
    }

    fn filled(&self, fillings: Vec<Filling>, running: Option<Running>) -> Fillings {
        Fillings {
            names: Arc::clone(&self.names),
            fillings,
            running,
        }
    }

    /// Returns the filled headers, or the name of the header that cannot be filled.
    pub(in crate::layer) fn headers(
        &self,
        fillings: &Fillings,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, HeaderName> {
        let filled = self.headers.iter().map(|(header, parts)| {
            let mut value = String::new();
            for part in &**parts {
                match part {
                    Part::Text(text) => value.push_str(text),
                    Part::Hole(hole) => {
                        let filling = fillings.at(*hole);
                        let filling = filling.filter(|filling| is_of_a_header(filling));
                        value.push_str(filling.ok_or_else(|| header.clone())?);
                    }
                }
            }
            let value = HeaderValue::try_from(value).map_err(|_| header.clone())?;
            Ok((header.clone(), value))
        });
        filled.collect()
    }
}

/// Returns true if the text may be part of a header's value. Such a text, for example a nonce, a number or
/// an identifier, cannot end the header or change its syntax.
fn is_of_a_header(filling: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_.~".contains(&byte);
    !filling.is_empty() && filling.bytes().all(is_plain)
}

impl Hole {
    /// Runs the function for one visitor. Returns its filling, or the fallback after a failure.
    async fn run(&self, name: &str, visitor: Parts, now: Tick) -> Option<String> {
        let limit = if self.is_streamed {
            STREAMED_HOLE_TIMEOUT
        } else {
            HOLE_TIMEOUT
        };
        // The call itself may panic, too.
        let run = AssertUnwindSafe(async { (self.run)(visitor).await }).catch_unwind();
        let mut run = pin!(run);
        // Most functions are ready at once, and need no timer.
        let first = poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx))).await;
        let ended = match first {
            Poll::Ready(ended) => Ok(ended),
            Poll::Pending => tokio::time::timeout(limit, run).await,
        };
        let error = match ended {
            Ok(Ok(Ok(filling))) if filling.len() <= MOST_BYTES => return Some(filling),
            Ok(Ok(Ok(filling))) => format!(
                "its filling has {} bytes, and {MOST_BYTES} are the most",
                filling.len()
            ),
            Ok(Ok(Err(error))) => perennial_store::error::with_causes(&*error),
            Ok(Err(_)) => "its function panicked".to_owned(),
            Err(_) => format!("its function took longer than {limit:?}"),
        };
        self.log(name, &error, now);
        self.fallback.clone()
    }

    /// Logs a failure, at most once a minute, as visitors may cause any number.
    fn log(&self, name: &str, error: &str, now: Tick) {
        let logged = self.logged.load(Relaxed);
        let is_due = logged == i64::MIN || now >= Tick(logged) + HOLE_LOG_INTERVAL;
        let swap = || {
            self.logged
                .compare_exchange(logged, now.0, Relaxed, Relaxed)
        };
        if is_due && swap().is_ok() {
            tracing::warn!(
                target: "perennial::request",
                hole = name, error,
                "a hole of a page was not filled: it shows its fallback, or nothing (logged once a minute)"
            );
        }
    }
}

impl fmt::Debug for HoleFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoleFunctions").field(&self.names).finish()
    }
}
