//! The parameters of a simulation, from its seed.

use std::time::Duration;

use perennial::Refresh;

use crate::{
    ground::{Resource, Terms},
    random::Random,
};

/// The processes' limit of a statement.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

/// The time without faults at the end, in which everything recovers: a lease, a cooldown, a second,
/// a generator and six statements.
pub(crate) const QUIET: Duration = Duration::from_secs(20);

pub(crate) struct Plan {
    pub(crate) processes: u32,
    pub(crate) resources: Vec<Resource>,
    /// The time with faults.
    pub(crate) chaos: Duration,
    /// No faults, failures and purges at all: then no two generators run at once.
    pub(crate) calm: bool,
    /// The unit of all times. A coarse unit makes events coincide.
    pub(crate) grain: Duration,
    pub(crate) latency: Duration,
    /// The number of calls with a fault, per thousand.
    pub(crate) faults: u64,
    /// The number of failing runs of a generator, per thousand.
    pub(crate) failures: u64,
    /// The store is away, now and then.
    pub(crate) outages: bool,
    /// The database's clock is set back once.
    pub(crate) set_back: Option<Duration>,
    /// Processes crash and start anew.
    pub(crate) crashes: bool,
    /// One process is cut off for good at the end.
    pub(crate) cut_off: bool,
    pub(crate) revisions: bool,
    /// The longest pause between two visitors of a process.
    pub(crate) pause: Duration,
    /// After some outages, a process has no visitors for a while.
    pub(crate) lulls: bool,
    /// A store that refuses calls refuses those that write, and no others.
    pub(crate) read_only: bool,
    /// A process regenerates one resource at a time.
    pub(crate) one: bool,
    /// Programs without a site purge pages in their transactions.
    pub(crate) transactions: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let random = &mut Random::new(seed, "plan", 0);
        let calm = random.below(8) == 0;
        let millis = Duration::from_millis;
        let rate = |rate: u64| if calm { 0 } else { rate };
        let keys = 1 + random.below(4);
        Self {
            processes: 1 + random.below(3) as u32,
            resources: (0..keys).map(|key| resource(key, random)).collect(),
            calm,
            chaos: Duration::from_secs(random.one_of(&[10, 15, 30])),
            grain: millis(random.one_of(&[1, 10, 50])),
            // While there are no faults, these latencies are short enough for a lease of one second
            // to be extended in time.
            latency: millis(random.one_of(&[1, 10, 50, if calm { 50 } else { 200 }])),
            faults: rate(random.one_of(&[0, 10, 50, 200])),
            failures: rate(random.one_of(&[0, 50, 300])),
            outages: random.chance(300) && !calm,
            set_back: (random.chance(150) && !calm)
                .then(|| Duration::from_secs(1 + random.below(5))),
            crashes: random.chance(300) && !calm,
            cut_off: random.below(3) == 0 && !calm,
            revisions: random.chance(250) && !calm,
            pause: millis(random.one_of(&[150, 500, 3000])),
            lulls: random.chance(300) && !calm,
            read_only: random.chance(400),
            one: random.chance(250) && !calm,
            transactions: random.chance(400) && !calm,
        }
    }
}

fn resource(key: u64, random: &mut Random) -> Resource {
    let seconds = Duration::from_secs;
    let route = random.below(3) == 0;
    let terms = Terms {
        interval: seconds(random.one_of(&[0, 1, 3, 10, 600])),
        stale_while_revalidate: random.one_of(&[None, None, Some(seconds(0)), Some(seconds(2))]),
        wait: seconds(random.one_of(&[0, 1, 5])),
        first: seconds(random.one_of(&[0, 5, 30])),
        timeout: seconds(random.one_of(&[2, 5])),
        cooldown: seconds(random.one_of(&[1, 3])),
    };
    let policy = Refresh::every(terms.interval)
        .leader_wait(terms.wait)
        .follower_wait(terms.first)
        .generator_timeout(terms.timeout)
        .cooldown(terms.cooldown)
        .lease_duration(seconds(random.one_of(&[1, 4, 10])));
    Resource {
        name: if route {
            format!("/k{key}")
        } else {
            format!("side/k{key}")
        },
        route,
        numbered: random.below(3) != 0,
        policy: match terms.stale_while_revalidate {
            Some(limit) => policy.stale_while_revalidate(limit),
            None => policy,
        },
        terms,
    }
}
