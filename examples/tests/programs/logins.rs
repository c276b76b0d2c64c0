//! Visitors with three kinds of login, and visitors without one, make random requests to three
//! processes. No page with a name reaches another visitor.
//!
//! ```text
//! PERENNIAL_LOGINS_SEED=7 PERENNIAL_LOGINS_REQUESTS=5000 \
//!     cargo test -p perennial-examples --test programs logins -- --nocapture
//! ```
//!
//! The seed determines the requests of each visitor. The order among the visitors is the system's.

use std::{collections::BTreeMap, env, net::SocketAddr, time::Instant};

use tokio::task::JoinSet;

use crate::{
    program::Program,
    random::Random,
    support::{Folder, exchange, request},
};

const VISITORS: u64 = 24;

/// The number of requests of each visitor.
const REQUESTS: u64 = 250;

/// The number of pages, of each of the two kinds.
const PAGES: u64 = 8;

/// Every name begins so, and no other text of the shop does.
const NAME: &str = "Guest-";

const OWN_PAGE: &str = "pages with the visitor's name";
const HIT: &str = "hits";
const GENERATED: &str = "pages generated or awaited";
const ADDED: &str = "books added";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Login {
    None,
    Session,
    Cookie,
    Token,
}

/// The number of answers by kind of login and outcome.
type Tally = BTreeMap<(Login, &'static str), usize>;

fn number(name: &str, default: u64) -> u64 {
    let Ok(value) = env::var(name) else {
        return default;
    };
    let number = value.parse();
    number.unwrap_or_else(|_| panic!("{name}={value} is no number"))
}

/// A browser, or a program with a token.
struct Visitor {
    seed: u64,
    number: u64,
    random: Random,
    shops: [SocketAddr; 3],
    /// The process with the visitor's session: a load balancer would pin the visitor.
    home: SocketAddr,
    login: Login,
    /// The name of the present login. Each login has a name of its own, so that a page of an
    /// earlier login is noticed.
    name: String,
    cookies: BTreeMap<String, String>,
    tally: Tally,
}

impl Visitor {
    fn new(seed: u64, number: u64, shops: [SocketAddr; 3]) -> Self {
        Self {
            seed,
            number,
            random: Random::new(seed, "visitor", number),
            shops,
            home: shops[number as usize % shops.len()],
            login: Login::None,
            name: String::new(),
            cookies: BTreeMap::from([("theme".to_owned(), "dark".to_owned())]),
            tally: Tally::new(),
        }
    }

    async fn visit(mut self, requests: u64) -> Tally {
        for request in 0..requests {
            match (self.random.below(100), self.login) {
                (0..8, Login::None) => self.log_in(request).await,
                (0..6, _) => self.log_out().await,
                (6..8, Login::Session | Login::Cookie | Login::Token) => self.add().await,
                _ => self.look().await,
            }
        }
        self.tally
    }

    async fn log_in(&mut self, request: u64) {
        let login = self
            .random
            .one_of(&[Login::Session, Login::Cookie, Login::Token]);
        let name = format!("{NAME}{}-{request}", self.number);
        let form = format!("name={name}");
        // A token needs no request.
        match login {
            Login::Session => self.post("/login", &form).await,
            Login::Cookie => self.post("/login", &format!("{form}&remember=on")).await,
            Login::None | Login::Token => {}
        }
        (self.login, self.name) = (login, name);
    }

    async fn log_out(&mut self) {
        if self.login != Login::Token {
            self.post("/logout", "").await;
        }
        self.login = Login::None;
    }

    /// Adds a book, which invalidates the list of books and the front page.
    async fn add(&mut self) {
        self.post("/books", "title=Emma").await;
        *self.tally.entry((self.login, ADDED)).or_default() += 1;
    }

    /// Requests a page of any process, and checks for whom the page was generated.
    async fn look(&mut self) {
        // The handler of the page about the shop would greet a visitor, too. But a request with a
        // login does not bypass the cache on this page, and may start a generation.
        let of_all = self.random.chance(300);
        let path = if of_all { "/about" } else { "/" };
        let path = match self.random.below(PAGES) {
            0 => path.to_owned(),
            page => format!("{path}?page={page}"),
        };
        let shop = match self.login {
            Login::Session => self.home,
            _ => self.random.one_of(&self.shops),
        };
        let headers = self.headers();
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let reply = request(shop, "GET", &path, &headers).await;

        let name = (self.login != Login::None && !of_all).then_some(&*self.name);
        let seen = format!(
            "seed {}: visitor {} with {:?} as {:?} got {path}: {reply:?}",
            self.seed, self.number, self.login, self.name
        );
        assert_eq!(reply.status, 200, "{seen}");
        let text = reply.text();
        let greeting = text.split_once("Welcome, ");
        let greeted = greeting.and_then(|(_, rest)| rest.split('.').next());
        assert_eq!(greeted, name, "{seen}");
        let anonymous = text.contains("action=/login");
        assert_eq!(anonymous, name.is_none(), "{seen}");
        assert!(!reply.headers.contains_key("set-cookie"), "{seen}");
        let all = format!("{:?} {text}", reply.headers);
        let names = usize::from(name.is_some());
        assert_eq!(all.matches(NAME).count(), names, "{seen}");

        let header = |name| {
            reply
                .headers
                .get(name)
                .map_or("", |it| it.to_str().expect("text"))
        };
        let status = header("cache-status");
        let outcome = if name.is_some() {
            assert_eq!(status, "perennial; fwd=bypass; detail=bypass-if", "{seen}");
            assert_eq!(header("cache-control"), "private", "{seen}");
            OWN_PAGE
        } else if status.starts_with("perennial; hit") {
            HIT
        } else {
            assert!(!status.contains("bypass"), "{seen}");
            GENERATED
        };
        *self.tally.entry((self.login, outcome)).or_default() += 1;
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let cookies = self.cookies.iter();
        let cookies: Vec<_> = cookies.map(|(name, it)| format!("{name}={it}")).collect();
        let mut headers = vec![("cookie", cookies.join("; "))];
        if self.login == Login::Token {
            headers.push(("authorization", format!("Bearer {}", self.name)));
        }
        headers
    }

    /// Sends a form to the visitor's process, and takes the cookies of the answer.
    async fn post(&mut self, path: &str, form: &str) {
        let mut headers = self.headers();
        let form_type = "application/x-www-form-urlencoded";
        headers.push(("content-type", form_type.to_owned()));
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        let answer = exchange(self.home, "POST", path, &headers, form).await;
        assert_eq!(answer.status, 303, "seed {}: {answer:?}", self.seed);
        for cookie in answer.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().expect("text");
            let (name, rest) = cookie.split_once('=').expect("a cookie");
            if cookie.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                let value = rest.split(';').next().expect("a value");
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_with_a_name_reaches_another_visitor() {
    let seed = number("PERENNIAL_LOGINS_SEED", 35);
    let requests = number("PERENNIAL_LOGINS_REQUESTS", REQUESTS);
    println!("PERENNIAL_LOGINS_SEED={seed}");
    let folder = Folder::new();
    let options = "--work 1ms --every 200ms";
    let shops = [(); 3].map(|()| Program::start("sessions", &folder.url(), options));
    let addresses = [0, 1, 2].map(|shop| shops[shop].address);
    let begun = Instant::now();
    let mut visitors = JoinSet::new();
    for number in 0..VISITORS {
        visitors.spawn(Visitor::new(seed, number, addresses).visit(requests));
    }
    let mut tally = Tally::new();
    for (what, count) in visitors.join_all().await.into_iter().flatten() {
        *tally.entry(what).or_default() += count;
    }
    let all = VISITORS * requests;
    println!("{all} requests in {:.1?}:", begun.elapsed());
    for ((login, outcome), count) in &tally {
        println!("{count:>8} {outcome} with login {login:?}");
    }
    // A shared name would have been seen: pages were cached, and requests with a login generated
    // pages for all.
    let of = |login, outcome| tally.get(&(login, outcome)).copied().unwrap_or_default();
    let logins = [Login::Session, Login::Cookie, Login::Token];
    assert!(of(Login::None, HIT) > of(Login::None, GENERATED));
    assert!(logins.iter().any(|login| of(*login, GENERATED) > 0));
    for login in logins {
        for outcome in [HIT, OWN_PAGE, ADDED] {
            assert!(of(login, outcome) > 0, "no {outcome} with login {login:?}");
        }
    }
}
