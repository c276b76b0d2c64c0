//! The functions that fill the holes of a layer, and the headers that have holes.

use std::{
    collections::BTreeSet,
    fmt,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use futures_util::{FutureExt, future::join_all};
use http::{HeaderName, HeaderValue, request::Parts};
use perennial_store::error::BoxError;

use crate::{
    clock::Tick,
    timing::{HOLE_LOG_INTERVAL, HOLE_TIMEOUT},
};

/// The most holes of a layer.
const MOST_HOLES: usize = 64;

/// The most bytes of a filling.
const MOST_BYTES: usize = 64 << 10;

type Filling = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// The holes of a layer.
#[derive(Clone, Default)]
pub(in crate::layer) struct HoleFunctions {
    names: Arc<[Arc<str>]>,
    holes: Vec<Arc<Hole>>,
    headers: Vec<(HeaderName, Arc<[Part]>)>,
}

struct Hole {
    run: Box<dyn Fn(Parts) -> Filling + Send + Sync>,
    fallback: Option<String>,
    /// The time of the last line in the log.
    logged: AtomicI64,
}

/// A part of a header's value.
enum Part {
    Text(String),
    Hole(usize),
}

/// What fills the holes for one visitor, by their names. A hole without a filling has failed, and has no fallback.
#[derive(Debug)]
pub(in crate::layer) struct Fillings {
    names: Arc<[Arc<str>]>,
    fillings: Vec<Option<String>>,
}

impl Fillings {
    /// Returns the filling of a hole; where it has failed, there is none.
    pub(in crate::layer) fn of(&self, name: &str) -> Option<&str> {
        let place = self.names.iter().position(|known| **known == *name)?;
        self.fillings[place].as_deref()
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

    /// Declares a hole.
    pub(in crate::layer) fn declare<Fut, E>(
        &mut self,
        name: &str,
        fallback: Option<String>,
        function: impl Fn(Parts) -> Fut + Send + Sync + 'static,
    ) where
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<BoxError>,
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
            run: Box::new(move |parts| {
                Box::pin(function(parts).map(|done| done.map_err(Into::into)))
            }),
            fallback,
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
            parts.extend((!text.is_empty()).then(|| Part::Text(text.to_owned())));
            parts.push(Part::Hole(hole));
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        self.headers.push((header, parts.into()));
    }

    /// Runs the functions of these holes, and of those that headers have, each once and all at the same time, in the
    /// visitor's own call.
    pub(in crate::layer) async fn fill<'a>(
        &self,
        names: impl IntoIterator<Item = &'a Arc<str>>,
        visitor: &Parts,
        now: Tick,
    ) -> Fillings {
        let of_names = names
            .into_iter()
            .filter_map(|name| self.names.iter().position(|known| known == name));
        let of_headers = self.headers.iter().flat_map(|(_, parts)| parts.iter());
        let of_headers = of_headers.filter_map(|part| match part {
            Part::Hole(hole) => Some(*hole),
            Part::Text(_) => None,
        });
        let wanted: BTreeSet<_> = of_names.chain(of_headers).collect();
        let filled = wanted.iter().map(async |place| {
            let (name, hole) = (&self.names[*place], &self.holes[*place]);
            let run = async { (hole.run)(visitor.clone()).await };
            let run = AssertUnwindSafe(run).catch_unwind();
            let filling = match tokio::time::timeout(HOLE_TIMEOUT, run).await {
                Ok(Ok(Ok(filling))) if filling.len() <= MOST_BYTES => {
                    return (*place, Some(filling));
                }
                Ok(Ok(Ok(filling))) => format!(
                    "its filling has {} bytes, and {MOST_BYTES} are the most",
                    filling.len()
                ),
                Ok(Ok(Err(error))) => perennial_store::error::with_causes(&*error),
                Ok(Err(_)) => "its function panicked".to_owned(),
                Err(_) => format!("its function took longer than {HOLE_TIMEOUT:?}"),
            };
            hole.log(name, &filling, now);
            (*place, hole.fallback.clone())
        });
        let mut fillings = vec![None; self.holes.len()];
        for (place, filling) in join_all(filled).await {
            fillings[place] = filling;
        }
        Fillings {
            names: Arc::clone(&self.names),
            fillings,
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
                        let filling = fillings.fillings[*hole].as_deref();
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

/// Returns true for what may stand in a header's value, and changes nothing there but its own place: a nonce, a
/// number, an identifier.
fn is_of_a_header(filling: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_.~".contains(&byte);
    !filling.is_empty() && filling.bytes().all(is_plain)
}

impl Hole {
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
