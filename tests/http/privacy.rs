//! Stacks of middleware around and inside of the layer: a page with a visitor's name reaches that
//! visitor alone. `fuzz/personal.rs` draws stacks at random.

use std::{collections::BTreeSet, convert::Infallible, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, Method, StatusCode, header::SET_COOKIE, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_htmx::HxRequest;
use perennial::{
    Perennial, Refresh,
    layer::{Holes, RefreshLayer},
};
use tower::{Layer, ServiceExt};
use tower_cookies::Cookies;
use tower_http::decompression::DecompressionLayer;
use tower_sessions::{MemoryStore, Session};

use crate::middleware::{MIDDLEWARE, Middleware, User, named};
use perennial_testkit::virtual_time::Shared;

const POLICY: Refresh = Refresh::every(Duration::from_secs(3600));

/// The name of the anonymous visitor.
pub(crate) const NOBODY: &str = "nobody";

/// The number of ways in which the layer is mounted: around a fallback, a route, a nested router,
/// and a router as a service.
pub(crate) const MOUNTS: usize = 4;

async fn log_in(session: Option<Extension<Session>>, name: String) {
    if let Some(Extension(session)) = session {
        session.insert("user", name).await.expect("is stored");
    }
}

/// Returns the name of the visitor, as each middleware has it.
async fn name_of(parts: &Parts) -> String {
    let mut names = BTreeSet::new();
    names.extend(parts.extensions.get().map(|User(name)| name.clone()));
    if let Some(cookies) = parts.extensions.get::<Cookies>() {
        names.extend(cookies.get("user").map(|it| it.value().to_owned()));
    }
    if let Some(session) = parts.extensions.get::<Session>() {
        let user: Option<String> = session.get("user").await.expect("is read");
        if let Some(user) = user {
            let pages: Option<u32> = session.get("pages").await.expect("is read");
            let pages = pages.unwrap_or(0) + 1;
            session.insert("pages", pages).await.expect("is stored");
            names.insert(user);
        }
    }
    let names: Vec<_> = names.into_iter().collect();
    if names.is_empty() {
        NOBODY.to_owned()
    } else {
        names.join(" and ")
    }
}

/// Returns a page with the name of the visitor, and with a greeting where the layer has that hole.
async fn page(_: HxRequest, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let name = name_of(&parts).await;
    let holes = parts.extensions.get::<Holes>();
    let greeting = holes.map(|holes| format!(", hello {}", holes.text("visitor")));
    // Long enough for the compression.
    let pages = "page ".repeat(100);
    let text = format!("{pages} for {name}{}", greeting.unwrap_or_default());
    ([("x-for", name)], text).into_response()
}

/// An application with middleware around and inside of the layer.
pub(crate) struct Application {
    app: Router,
    /// The same, whose page has a hole for the name of the visitor.
    greeting: Router,
    prefix: &'static str,
    tells: bool,
    /// A middleware outside of the layer tells the functions of its holes who the visitor is.
    tells_holes: bool,
    /// A middleware inside of the layer compresses what it passes on, so that its marks are lost.
    hides_marks: bool,
    _sites: [Perennial; 2],
}

impl Application {
    /// Each list of middleware begins with the innermost one. `mount`: less than [`MOUNTS`].
    pub(crate) fn new(
        inside: &[&Middleware],
        outside: &[&Middleware],
        policy: Refresh,
        mount: usize,
    ) -> Self {
        let (sites, store) = (
            [(); 2].map(|()| Shared::new().site()),
            MemoryStore::default(),
        );
        let all = || inside.iter().chain(outside);
        let around =
            |app, stack: &[&Middleware]| stack.iter().fold(app, |app, it| (it.around)(app, &store));
        let app = |layer: RefreshLayer| {
            let layer = all().fold(layer, |layer, it| (it.declare)(layer));
            let app = Router::new().route("/login", post(log_in));
            let app = match mount {
                0 => app.fallback(page),
                _ => app.route("/page", get(page)),
            };
            let app = around(app, inside);
            let app = match mount {
                0 | 1 => app.layer(layer),
                2 => Router::new().nest("/nested", app.layer(layer)),
                _ => Router::new().fallback_service(layer.layer(app)),
            };
            around(app, outside)
        };
        let visitor = async |visitor: Parts| Ok::<_, Infallible>(name_of(&visitor).await);
        let with_hole = sites[1].layer(&policy).hole("visitor", visitor);
        Self {
            app: app(sites[0].layer(policy)),
            greeting: app(with_hole),
            prefix: if mount == 2 { "/nested" } else { "" },
            tells: all().any(|it| it.tells),
            tells_holes: outside.iter().any(|it| it.tells),
            hides_marks: inside.iter().any(|it| it.name == "compression"),
            _sites: sites,
        }
    }

    async fn send(
        &self,
        app: &Router,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: String,
    ) -> Response {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.prefix).parse().expect("a URI");
        *request.headers_mut() = headers.clone();
        let client = DecompressionLayer::new().layer(app.clone());
        let response = client.oneshot(request).await.expect("infallible");
        response.map(Body::new)
    }

    /// Logs a visitor in by headers and, where there are sessions, by a session. No session's
    /// cookie has a `.`, so a name with a `.` is not in it by chance.
    pub(crate) async fn visitor(&self, name: &'static str) -> Visitor {
        let mut visitor = Visitor {
            name,
            marks: Vec::new(),
            headers: HeaderMap::new(),
        };
        let mut add = |field, value: String| {
            let value = value.parse().expect("a value");
            visitor.headers.insert(field, value);
        };
        add("origin", format!("https://{name}.example"));
        add("x-request-id", format!("{name}-7"));
        if name == NOBODY {
            return visitor;
        }
        let none = HeaderMap::new();
        let reply = self.send(&self.app, Method::POST, "/login", &none, name.to_owned());
        let reply = reply.await;
        assert_eq!(reply.status(), StatusCode::OK);
        let session = reply.headers().get(SET_COOKIE);
        let session = session.map_or("", |it| it.to_str().expect("text"));
        let session = session.split(';').next().expect("is there");
        add("authorization", name.to_owned());
        add("cookie", format!("user={name}; {session}"));
        visitor.marks = vec![name.to_owned()];
        visitor
            .marks
            .extend(session.strip_prefix("id=").map(str::to_owned));
        visitor
    }

    /// Makes a request, and checks that the response is for this visitor or for all visitors.
    pub(crate) async fn visit(&self, visitors: &[Visitor], of: usize, head: bool) -> Seen {
        self.greet(visitors, of, head).await;
        let visitor = &visitors[of];
        let method = if head { Method::HEAD } else { Method::GET };
        let none = String::new();
        let reply = self.send(&self.app, method, "/page", &visitor.headers, none);
        self.check(reply.await, visitors, of, "").await
    }

    /// Makes a request for the page with a hole, and checks that it greets this visitor alone.
    async fn greet(&self, visitors: &[Visitor], of: usize, head: bool) {
        let visitor = &visitors[of];
        let method = if head { Method::HEAD } else { Method::GET };
        let none = String::new();
        let reply = self.send(&self.greeting, method, "/page", &visitor.headers, none);
        let reply = reply.await;
        if reply.status() == StatusCode::INTERNAL_SERVER_ERROR && self.hides_marks {
            return;
        }
        let name = if self.tells_holes {
            visitor.name
        } else {
            NOBODY
        };
        self.check(reply, visitors, of, &format!(", hello {name}"))
            .await;
    }

    async fn check(
        &self,
        reply: Response,
        visitors: &[Visitor],
        of: usize,
        greeting: &str,
    ) -> Seen {
        let visitor = &visitors[of];
        let (head, body) = reply.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("is read");
        let body = String::from_utf8(body.to_vec()).expect("text");
        assert_eq!(head.status, StatusCode::OK);
        let header = |name: &str| head.headers[name].to_str().expect("text");
        let (status, name) = (header("cache-status").to_owned(), header("x-for"));
        let is_shared = ["hit", "stored", "collapsed"];
        let is_shared = is_shared.iter().any(|it| status.contains(it));
        let expected = if is_shared || !self.tells {
            NOBODY
        } else {
            visitor.name
        };
        assert_eq!(name, expected, "{status}");
        let end = format!("for {name}{greeting}");
        assert!(body.is_empty() || body.ends_with(&end), "{status}: {body}");
        let others = visitors.iter().filter(|it| it.name != visitor.name);
        for mark in others.flat_map(|it| &it.marks) {
            let mut values = head.headers.values();
            let found = values.find(|it| it.to_str().expect("text").contains(mark));
            assert_eq!(found, None, "{status}");
        }
        Seen {
            is_shared,
            is_personal: name != NOBODY,
        }
    }
}

pub(crate) struct Visitor {
    name: &'static str,
    /// The name and the session, which reach no other visitor.
    marks: Vec<String>,
    headers: HeaderMap,
}

/// The response to a visitor.
pub(crate) struct Seen {
    /// The response may be another visitor's, too.
    pub(crate) is_shared: bool,
    /// The response has the visitor's name.
    pub(crate) is_personal: bool,
}

/// The visitors whose requests are cached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cached {
    Nothing,
    Anonymous,
    All,
}

/// Makes requests as three visitors in turn, for each way in which the layer is mounted.
async fn cached(inside: &[&Middleware], outside: &[&Middleware]) -> Cached {
    let mut all = Vec::new();
    for mount in 0..MOUNTS {
        let app = Application::new(inside, outside, POLICY, mount);
        let visitors = [
            app.visitor("ann.lee").await,
            app.visitor(NOBODY).await,
            app.visitor("bob.ray").await,
        ];
        for _ in 0..3 {
            let mut shared = Vec::new();
            for who in 0..visitors.len() {
                shared.push(app.visit(&visitors, who, false).await.is_shared);
            }
            all.push(match shared[..] {
                [false, false, false] => Cached::Nothing,
                [false, true, false] => Cached::Anonymous,
                [true, true, true] => Cached::All,
                _ => panic!("{inside:?}, {outside:?}: {shared:?}"),
            });
        }
    }
    all.dedup();
    assert_eq!(all.len(), 1, "{inside:?}, {outside:?}: {all:?}");
    all[0]
}

#[tokio::test(start_paused = true)]
async fn each_middleware_keeps_personal_pages_personal_outside_and_inside() {
    use Cached::{All, Anonymous, Nothing};
    // The visitors whose requests are cached, with the middleware outside and inside.
    let expected = [
        ("session", Nothing, All),
        ("session, ignored", All, All),
        ("cookies", Nothing, All),
        ("cookies, ignored", All, All),
        ("login", Anonymous, All),
        ("login, ignored", All, All),
        ("login, bypass_if", Anonymous, All),
        ("authorization", Anonymous, All),
        ("id", Nothing, All),
        ("id, ignored", All, All),
        ("pool", Nothing, All),
        ("pool, shared", All, All),
        // The types of its extensions are private, and each page has `Vary: hx-request`.
        ("htmx", Nothing, Nothing),
        // The page has `Vary: origin`.
        ("cors", All, Nothing),
        ("timeout", All, All),
        ("trace", All, All),
        ("compression", All, All),
        ("panics", All, All),
        ("limit", All, All),
    ];
    assert_eq!(expected.len(), MIDDLEWARE.len());
    for (name, outside, inside) in expected {
        let it = named(name);
        assert_eq!(cached(&[], &[it]).await, outside, "{name}");
        assert_eq!(cached(&[it], &[]).await, inside, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn stacks_of_many_crates_keep_personal_pages_personal() {
    let plain = ["limit", "compression", "timeout", "panics", "trace"];
    let ignored = ["session, ignored", "cookies, ignored", "id, ignored"];
    let logins = ["login", "authorization"];
    let stack = |parts: &[&[&str]]| -> Vec<&Middleware> {
        let names = parts.iter().flat_map(|part| part.iter());
        names.map(|name| named(name)).collect()
    };
    let pool = &["pool, shared"][..];
    let all = stack(&[&plain, &ignored, &logins, &["cors"], pool]);
    let anonymous = stack(&[&plain, &ignored, &["cors"], pool]);
    let inner = stack(&[&plain, &ignored, &logins, pool]);
    let ignoring = stack(&[&["login, ignored"], &ignored, &plain, &["cors"]]);
    let undeclared = stack(&[&plain, &["session", "cookies", "id", "htmx"], &logins]);
    for (inside, outside, expected) in [
        (&[][..], &all[..], Cached::Anonymous),
        (&[], &anonymous, Cached::All),
        (&[], &ignoring, Cached::All),
        (&[], &undeclared, Cached::Nothing),
        (&inner, &[], Cached::All),
        (&inner, &anonymous, Cached::All),
        (&inner, &all, Cached::Anonymous),
        (&undeclared, &[], Cached::Nothing),
        (&all, &all, Cached::Nothing),
    ] {
        let reversed = |it: &[_]| it.iter().rev().copied().collect::<Vec<_>>();
        assert_eq!(cached(inside, outside).await, expected);
        assert_eq!(
            cached(&reversed(inside), &reversed(outside)).await,
            expected
        );
    }
}
