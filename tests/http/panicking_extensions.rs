//! Extensions whose `Clone` panics: a visitor's extension reaches the handler of the visitor's own
//! request, and no generator.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{body::to_bytes, extract::Request, response::Response};
use http::Extensions;
use perennial::{Refresh, layer::RefreshLayer};
use tower::{Service, ServiceExt, util::MapRequestLayer};

use crate::request_extensions::PLACES;
use perennial_testkit::virtual_time::Shared;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const POLICY: Refresh = Refresh::every(HOUR);
pub(crate) const BYPASS: &str = "perennial; fwd=bypass; detail=undeclared-extension";
pub(crate) const POISONED: &str = "x-poisoned";

/// The number of clones of a test's poisons.
#[derive(Debug, Default)]
pub(crate) struct Clones(AtomicUsize);

impl Clones {
    pub(crate) fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// An extension whose `Clone` panics.
#[derive(Debug)]
pub(crate) struct Poison<const N: usize>(Arc<Clones>);

impl<const N: usize> Poison<N> {
    pub(crate) fn new(clones: &Arc<Clones>) -> Self {
        Self(Arc::clone(clones))
    }
}

impl<const N: usize> Clone for Poison<N> {
    fn clone(&self) -> Self {
        // The panic is counted before it is raised, because somebody may catch it without a trace.
        self.0.0.fetch_add(1, SeqCst);
        panic!("a clone of the visitor's extension {N}");
    }
}

/// A type of poison.
struct Kind {
    insert: fn(&mut Extensions, &Arc<Clones>),
    is_in: fn(&Extensions) -> bool,
    ignore: fn(RefreshLayer) -> RefreshLayer,
}

impl Kind {
    const fn of<const N: usize>() -> Self {
        Self {
            insert: |extensions, clones| drop(extensions.insert(Poison::<N>::new(clones))),
            is_in: |extensions| extensions.get::<Poison<N>>().is_some(),
            ignore: RefreshLayer::ignore_extension::<Poison<N>>,
        }
    }
}

macro_rules! kinds {
    ($($n:literal)*) => { &[$(Kind::of::<$n>()),*] };
}

const KINDS: &[Kind] = kinds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);

/// Returns the numbers of the poisons among the extensions, for a handler's page.
pub(crate) fn seen(extensions: &Extensions) -> String {
    let numbers = KINDS.iter().enumerate();
    let numbers = numbers.filter(|(_, kind)| (kind.is_in)(extensions));
    text(&numbers.map(|(n, _)| n).collect::<Vec<_>>())
}

pub(crate) fn text(numbers: &[usize]) -> String {
    match numbers {
        [] => String::new(),
        _ => format!(" with {numbers:?}"),
    }
}

/// Returns a middleware that gives new poisons to each request that asks for them.
pub(crate) fn poisoning(
    numbers: &[usize],
    clones: &Arc<Clones>,
) -> impl Fn(Request) -> Request + Clone + Send + Sync + 'static {
    let (numbers, clones) = (numbers.to_owned(), Arc::clone(clones));
    move |mut request| {
        if request.headers().contains_key(POISONED) {
            for &n in &numbers {
                (KINDS[n].insert)(request.extensions_mut(), &clones);
            }
        }
        request
    }
}

/// Each type alone, several types, and all types.
fn sets() -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = (0..KINDS.len()).map(|n| vec![n]).collect();
    sets.extend([vec![0, 1], vec![3, 7, 19], (5..15).collect()]);
    sets.push((0..KINDS.len()).collect());
    sets
}

/// Returns the `Cache-Status` and the part of the page before the `;`.
pub(crate) async fn visit<S>(app: &S, path: &str, poisoned: bool) -> (String, String)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone,
{
    let mut request = Request::get(path).body(Default::default()).expect("a URI");
    if poisoned {
        let value = "yes".parse().expect("a value");
        request.headers_mut().insert(POISONED, value);
    }
    let response = app.clone().oneshot(request).await.expect("infallible");
    let status = response.headers()["cache-status"].to_str().expect("text");
    let status = status.to_owned();
    let body = to_bytes(response.into_body(), usize::MAX).await;
    let body = String::from_utf8(body.expect("is read").to_vec()).expect("text");
    let shown = body.split(';').next().expect("is there");
    (status, shown.to_owned())
}

/// Makes requests with and without poison. `bare` is the page without an extension.
async fn check<S>(app: S, path: &str, numbers: &[usize], bare: &str)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone,
{
    let own = (BYPASS.to_owned(), format!("{bare}{}", text(numbers)));
    let anonymous = async |expected: &str| {
        let (status, page) = visit(&app, path, false).await;
        assert!(status.contains(expected), "{path}: {status}");
        assert_eq!(page, bare);
    };
    for expected in ["fwd=miss; stored", "hit"] {
        assert_eq!(visit(&app, path, true).await, own);
        anonymous(expected).await;
    }
    tokio::time::sleep(HOUR + Duration::from_secs(60)).await;
    // The page is stale.
    assert_eq!(visit(&app, path, true).await, own);
    anonymous("fwd=stale; stored").await;
    assert_eq!(visit(&app, path, true).await, own);
}

#[tokio::test(start_paused = true)]
async fn no_generator_gets_an_undeclared_extension_on_routes_of_every_kind() {
    for (name, place, path) in PLACES {
        let site = Shared::new().site();
        let bypassing = place(site.layer(POLICY).bypass_if(|_| true));
        for (n, numbers) in sets().iter().enumerate() {
            let clones = Arc::default();
            let poison = poisoning(numbers, &clones);
            // Each has a key of its own.
            let key = format!("{path}?{n}");
            let (_, bare) = visit(&bypassing, &key, false).await;
            let inside = place(site.layer(POLICY)).layer(MapRequestLayer::new(poison.clone()));
            check(inside, &key, numbers, &bare).await;
            if numbers.len() > 1 {
                let key = format!("{key}-around");
                let (_, bare) = visit(&bypassing, &key, false).await;
                let around = place(site.layer(POLICY)).map_request(poison);
                check(around, &key, numbers, &bare).await;
            }
            assert_eq!(clones.count(), 0, "{name}, {numbers:?}");
        }
    }
}

// Fails where the visitor's extensions are cloned.
#[tokio::test(start_paused = true)]
async fn an_ignored_extension_is_not_cloned_on_routes_of_every_kind() {
    for (name, place, path) in PLACES {
        let site = Shared::new().site();
        let bypassing = place(site.layer(POLICY).bypass_if(|_| true));
        for (n, numbers) in sets().iter().enumerate() {
            let clones = Arc::default();
            let layer = numbers.iter().map(|n| KINDS[*n].ignore);
            let layer = layer.fold(site.layer(POLICY), |layer, ignore| ignore(layer));
            let poison = MapRequestLayer::new(poisoning(numbers, &clones));
            let app = place(layer).layer(poison);
            let path = format!("{path}?{n}");
            let (_, bare) = visit(&bypassing, &path, false).await;
            let all = async |poisoned, expected: &str| {
                let (status, page) = visit(&app, &path, poisoned).await;
                assert!(status.contains(expected), "{name}, {numbers:?}: {status}");
                assert_eq!(page, bare, "{name}, {numbers:?}");
            };
            all(true, "fwd=miss; stored").await;
            all(true, "hit").await;
            all(false, "hit").await;
            tokio::time::sleep(HOUR + Duration::from_secs(60)).await;
            all(true, "fwd=stale; stored").await;
            all(false, "hit").await;
            assert_eq!(clones.count(), 0, "{name}, {numbers:?}");
        }
    }
}
