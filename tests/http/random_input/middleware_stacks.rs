//! Stacks of middleware at random: no visitor gets a page with another visitor's name.

use std::{cell::Cell, time::Duration};

use futures_util::future::join_all;
use perennial::Refresh;
use proptest::{collection::vec, prelude::*, sample::subsequence};

use crate::{
    middleware::{MIDDLEWARE, Middleware},
    privacy::{Application, MOUNTS, NOBODY},
};
use perennial_testkit::fuzz::each;

const INTERVAL: Duration = Duration::from_secs(60);

/// The middleware with the side of the layer on which each stands.
type Stack = Vec<(&'static Middleware, bool)>;

fn stack() -> impl Strategy<Value = Stack> {
    let sides = MIDDLEWARE.iter().flat_map(|it| [(it, false), (it, true)]);
    let all: Stack = sides.collect();
    subsequence(all, 1..=6)
        .prop_filter("a double `AutoVaryLayer` panics", |stack| {
            stack.iter().filter(|(it, _)| it.name == "htmx").count() < 2
        })
        .prop_shuffle()
}

#[derive(Clone, Debug)]
enum Step {
    Visit(usize, bool),
    /// Visits at the same time.
    Together(Vec<usize>),
    /// Each stored page becomes stale.
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize, any::<bool>()).prop_map(|(who, head)| Step::Visit(who, head)),
        2 => vec(0..3_usize, 2..6).prop_map(Step::Together),
        1 => Just(Step::Later),
    ]
}

#[test]
fn a_personal_page_stays_personal() {
    let (shared, personal) = (Cell::new(0), Cell::new(0));
    let steps = vec(step(), 1..12);
    each(
        (stack(), 0..MOUNTS, steps),
        async |(stack, mount, steps)| {
            let side = |outside| {
                let side = stack.iter().filter(|it| it.1 == outside);
                side.map(|(it, _)| *it).collect::<Vec<_>>()
            };
            let app = Application::new(&side(false), &side(true), Refresh::every(INTERVAL), mount);
            let visitors = [
                app.visitor(NOBODY).await,
                app.visitor("ann.lee").await,
                app.visitor("bob.ray").await,
            ];
            for step in steps {
                let seen = match step {
                    Step::Visit(who, head) => vec![app.visit(&visitors, who, head).await],
                    Step::Together(who) => {
                        let visits = who.iter().map(|who| app.visit(&visitors, *who, false));
                        join_all(visits).await
                    }
                    Step::Later => {
                        tokio::time::sleep(INTERVAL * 2).await;
                        continue;
                    }
                };
                for seen in seen {
                    shared.update(|count| count + usize::from(seen.is_shared));
                    personal.update(|count| count + usize::from(seen.is_personal));
                }
            }
        },
    );
    let (shared, personal) = (shared.get(), personal.get());
    println!("{shared} shared pages, {personal} personal pages");
    assert!(shared > 100 && personal > 100, "{shared}, {personal}");
}
