//! A simulated site: its processes and their faults.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use perennial::{
    Error,
    locks::{LockKind, LockName},
};
use perennial_store::{Begin, Begun, Call, Held, Reply, RequestProgress, timing::seed_pauses};
use tokio::{runtime::Handle, task::JoinSet, time::Instant};

use crate::{
    ground::{Event, Ground, Weather, What, lock},
    jobs,
    plan::{Plan, QUIET},
    process::{Process, use_lock},
    random::Random,
};

struct World {
    ground: Arc<Ground>,
    /// Another process replaces a crashed one.
    places: Mutex<Vec<Arc<Process>>>,
    /// The time until which a process has no visitors, by its place.
    lulls: Mutex<Vec<Instant>>,
    started: AtomicU32,
    revision: AtomicU32,
    end: Instant,
}

/// The result of a simulation.
pub(crate) struct Run {
    pub(crate) ground: Arc<Ground>,
    pub(crate) journal: Vec<Event>,
    /// The failures at the end.
    pub(crate) unsettled: Vec<String>,
}

/// Simulates a seed.
pub(crate) fn run(seed: u64) -> Run {
    seed_pauses(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(simulate(seed))
}

async fn simulate(seed: u64) -> Run {
    let ground = Arc::new(Ground::new(seed, Plan::new(seed)));
    let world = Arc::new(World {
        places: Mutex::default(),
        lulls: Mutex::new(vec![Instant::now(); ground.plan.processes as usize]),
        started: AtomicU32::new(0),
        revision: AtomicU32::new(0),
        end: Instant::now() + ground.plan.chaos + QUIET,
        ground: Arc::clone(&ground),
    });
    let plan = &ground.plan;
    let mut actors = JoinSet::new();
    for place in 0..plan.processes as usize {
        let process = world.start();
        lock(&world.places).push(process);
        for visitor in 0..2 {
            actors.spawn(Arc::clone(&world).visitors(place, visitor));
        }
        actors.spawn(Arc::clone(&world).jobs(place));
    }
    let mut weather = JoinSet::new();
    for place in 0..plan.processes as usize {
        weather.spawn(Arc::clone(&world).editor(place));
        weather.spawn(Arc::clone(&world).worker(place));
    }
    weather.spawn(Arc::clone(&world).weather());
    weather.spawn(Arc::clone(&world).lulls());
    weather.spawn(Arc::clone(&world).transactions());
    tokio::time::sleep(plan.chaos).await;
    weather.abort_all();
    while weather.join_next().await.is_some() {}
    world.calm_down().await;
    while let Some(actor) = actors.join_next().await {
        if let Err(panic) = actor {
            std::panic::resume_unwind(panic.into_panic());
        }
    }
    let mut unsettled = Vec::new();
    world.settle(&mut unsettled).await;
    let journal = ground.journal();
    Run {
        ground,
        journal,
        unsettled,
    }
}

impl World {
    fn start(&self) -> Arc<Process> {
        let number = self.started.fetch_add(1, Relaxed);
        Process::start(&self.ground, number, self.revision.load(Relaxed))
    }

    fn process(&self, place: usize) -> Arc<Process> {
        Arc::clone(&lock(&self.places)[place])
    }

    fn random(&self, purpose: &str, number: usize) -> Random {
        Random::new(self.ground.seed, purpose, number as u64)
    }

    /// The visitors of a process, one after the other.
    async fn visitors(self: Arc<Self>, place: usize, visitor: usize) {
        let mut random = self.random("visitor", place * 10 + visitor);
        let plan = &self.ground.plan;
        let mut visits = 0;
        while Instant::now() < self.end {
            // Hits prove little when nothing happens.
            let pause = if self.ground.is_quiet() { 3 } else { 1 } * plan.pause;
            tokio::time::sleep(random.time(pause, plan.grain)).await;
            if random.below(50) == 0 {
                tokio::time::sleep(random.time(Duration::from_secs(5), plan.grain)).await;
            }
            let lull = lock(&self.lulls)[place];
            if !self.ground.is_quiet() {
                tokio::time::sleep_until(lull).await;
            }
            let key = random.below(plan.resources.len() as u64) as usize;
            let patience = match random.below(8) {
                0 => random.time(Duration::from_secs(1), plan.grain),
                _ => Duration::from_secs(300),
            };
            let process = self.process(place);
            // Each visit runs in a task of its own, because a visitor of a crashed process waits
            // forever while other visitors come.
            visits += 1;
            let number = (place * 10 + visitor) as u32 * 100_000 + visits;
            let visit = process.visit(number, key, patience);
            if random.below(4) == 0 {
                tokio::spawn(visit);
            } else {
                let _ = tokio::time::timeout(Duration::from_secs(2), tokio::spawn(visit)).await;
            }
        }
    }

    /// Changes data, and tells the site.
    async fn editor(self: Arc<Self>, place: usize) {
        let mut random = self.random("editor", place);
        let plan = &self.ground.plan;
        let mut edits = 0;
        loop {
            tokio::time::sleep(random.time(Duration::from_secs(6), plan.grain)).await;
            let key = random.below(plan.resources.len() as u64) as usize;
            let process = self.process(place);
            self.ground.change(process.number, key);
            let choice = random.below(8);
            let how = match choice {
                0..4 if plan.calm => "nothing",
                0..4 => "purge",
                4 => "key",
                5 => "prefix",
                6 if plan.resources[key].route && edits % 2 == 0 => "tag",
                6 if plan.resources[key].route => "tag_prefix",
                6 => "key",
                _ if plan.resources[key].route => "regenerate",
                _ => "key",
            };
            edits += 1;
            let told = tell(
                process,
                5_000_000 + place as u32 * 100_000 + edits,
                key,
                how,
            );
            if random.below(3) == 0 {
                tokio::spawn(told);
            } else {
                let _ = tokio::spawn(told).await;
            }
        }
    }

    /// Changes data in transactions of programs without a site. Some write many names.
    async fn transactions(self: Arc<Self>) {
        let mut random = self.random("transactions", 0);
        let (ground, plan) = (&self.ground, &self.ground.plan);
        if !plan.transactions {
            return;
        }
        for number in 0.. {
            tokio::time::sleep(random.time(Duration::from_secs(4), plan.grain)).await;
            let others = match random.below(4) {
                0 => random.below(400),
                _ => 0,
            };
            for other in 0..others {
                let (id, name) = (format!("{number}-{other}"), format!("tag:other-{other}"));
                ground.store.commit_invalidation(&id, &name);
            }
            let key = random.below(plan.resources.len() as u64) as usize;
            ground.commit(format!("{number}"), key);
        }
    }

    /// Holds the named lock now and then.
    async fn worker(self: Arc<Self>, place: usize) {
        let mut random = self.random("worker", place);
        let grain = self.ground.plan.grain;
        loop {
            tokio::time::sleep(random.time(Duration::from_secs(8), grain)).await;
            let (process, time) = (
                self.process(place),
                random.time(Duration::from_secs(6), grain),
            );
            tokio::spawn(use_lock(process, time));
        }
    }

    /// Runs the work beside the pages, which is also possible without faults.
    async fn jobs(self: Arc<Self>, place: usize) {
        let mut random = self.random("jobs", place);
        let grain = self.ground.plan.grain;
        let last = self.end - Duration::from_secs(8);
        while Instant::now() < last {
            tokio::time::sleep(random.time(Duration::from_secs(5), grain)).await;
            let name = match random.below(5) {
                0 => "job".to_owned(),
                1 => "vault".to_owned(),
                kind => format!(
                    "{}-{}",
                    ["week", "mail", "pay"][kind as usize - 2],
                    self.slot()
                ),
            };
            let number = random.below(1 << 30);
            let random = Random::new(self.ground.seed, "job", number);
            let ill = !self.ground.is_quiet() && !self.ground.plan.calm;
            tokio::spawn(jobs::run(self.process(place), name, random, ill));
        }
    }

    /// The number of the present period of seven seconds. Work that begins in one period has one
    /// name in all processes.
    fn slot(&self) -> u64 {
        (self.end - Instant::now()).as_secs() / 7
    }

    /// The faults of the database and of processes.
    async fn weather(self: Arc<Self>) {
        let mut random = self.random("weather", 0);
        let (ground, plan) = (&self.ground, &self.ground.plan);
        let mut set_back = plan.set_back;
        loop {
            tokio::time::sleep(random.time(Duration::from_secs(10), plan.grain)).await;
            match random.below(4) {
                0 if plan.outages => {
                    let length = random.time(Duration::from_secs(8), plan.grain);
                    let hangs = random.below(2) == 0;
                    self.outage(length, hangs);
                }
                1 if plan.crashes => self.crash(random.below(u64::from(plan.processes)) as usize),
                2 if plan.revisions => {
                    self.revision.fetch_add(1, Relaxed);
                    let place = random.below(u64::from(plan.processes)) as usize;
                    self.crash(place);
                }
                3 => {
                    if let Some(by) = set_back.take() {
                        ground.store.move_clock(-perennial_testing::micros(by));
                        ground.note(0, What::SetBack(by));
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves a process without visitors after an outage, now and then. Before the next visitor
    /// comes, another process purges a page.
    async fn lulls(self: Arc<Self>) {
        let mut random = self.random("lulls", 0);
        let (ground, plan) = (&self.ground, &self.ground.plan);
        let processes = u64::from(plan.processes);
        if !plan.lulls || processes < 2 {
            return;
        }
        let second = Duration::from_secs(1);
        for number in 6_000_000.. {
            tokio::time::sleep(random.time(3 * second, plan.grain)).await;
            let place = random.below(processes) as usize;
            let other = (place + 1 + random.below(processes - 1) as usize) % processes as usize;
            let key = random.below(plan.resources.len() as u64) as usize;
            let visit = async |number| {
                let visit = self.process(place).visit(number, key, 300 * second);
                let _ = tokio::time::timeout(second, tokio::spawn(visit)).await;
            };
            self.outage(
                2 * second + random.time(second, plan.grain),
                random.below(2) == 0,
            );
            tokio::time::sleep(2 * second).await;
            visit(number + 100_000).await;
            let lull = 4 * second + random.time(2 * second, plan.grain);
            lock(&self.lulls)[place] = Instant::now() + lull;
            ground.note(self.process(place).number, What::Lull);
            tokio::time::sleep(lull - second * 5 / 2).await;
            let teller = self.process(other);
            ground.change(teller.number, key);
            tokio::spawn(tell(teller, number, key, "purge"));
            tokio::time::sleep(second * 5 / 2).await;
            visit(number + 200_000).await;
        }
    }

    /// Lets the store be away from now on, for this time.
    fn outage(&self, length: Duration, hangs: bool) {
        let away_until = Instant::now() + length;
        *lock(&self.ground.weather) = Weather { away_until, hangs };
        self.ground.note(0, What::Away { hangs });
    }

    fn crash(&self, place: usize) {
        let process = self.start();
        let crashed = std::mem::replace(&mut lock(&self.places)[place], process);
        crashed.cut();
    }

    /// Ends the faults, and tells of the latest data.
    async fn calm_down(&self) {
        let ground = &self.ground;
        ground.quiet.store(true, Relaxed);
        lock(&ground.weather).away_until = Instant::now();
        ground.note(0, What::Quiet);
        if ground.plan.cut_off && ground.plan.processes > 1 {
            // The visitors go to another process.
            let other = self.process(0);
            let cut = std::mem::replace(&mut lock(&self.places)[1], other);
            cut.cut();
        }
        let process = self.process(0);
        for key in 0..ground.plan.resources.len() {
            ground.change(process.number, key);
            tell(Arc::clone(&process), 5_900_000 + key as u32, key, "key").await;
        }
    }

    /// Looks whether all came right in the end.
    async fn settle(&self, unsettled: &mut Vec<String>) {
        let long = Duration::from_secs(60);
        let places = lock(&self.places).clone();
        let mut visits = 9_900_000;
        for process in &places {
            for (key, resource) in self.ground.plan.resources.iter().enumerate() {
                // The first request may get an old version. So may further requests, while another
                // resource has the only permit.
                let mut got = None;
                for _ in 0..if self.ground.plan.one { 6 } else { 3 } {
                    visits += 1;
                    got = Arc::clone(process).visit(visits, key, long).await;
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
                let latest = self.ground.datum(key);
                if got != Some(latest) {
                    let (number, name) = (process.number, &resource.name);
                    unsettled.push(format!(
                        "process {number} serves {got:?} of {name} in the end, not {latest}"
                    ));
                }
            }
        }
        self.ground.note(0, What::Settling);
        let slots = (self.ground.plan.chaos + QUIET).as_secs() / 7;
        for slot in 0..=slots {
            for kind in ["week", "mail", "pay"] {
                let process = Arc::clone(&places[slot as usize % places.len()]);
                let random = Random::new(self.ground.seed, "settling", slot);
                jobs::run(process, format!("{kind}-{slot}"), random, false).await;
            }
        }
        for process in &places {
            let shutdown = tokio::time::timeout(long, process.site.shutdown());
            if shutdown.await.is_err() {
                unsettled.push(format!("process {} does not shut down", process.number));
            }
        }
        self.ground.note(0, What::Stopped);
        if let Reply::Held(locks) = self.ground.store.apply(&Call::Held(Held {})) {
            // A pruning may still run: a shutdown does not wait for it.
            let held = locks.iter().filter(|lock| lock.owner.is_some());
            let held = held.filter(|lock| lock.kind != LockKind::Housekeeping);
            unsettled.extend(held.map(|lock| format!("{} is held in the end", lock.name)));
        }
        // When the reply to a call was lost, the store undoes the call again and again for a
        // quarter of an hour. After that, nothing is left to happen.
        let (quarter, minute) = (Duration::from_mins(15), Duration::from_mins(1));
        tokio::time::sleep(quarter + minute).await;
        for slot in 0..=slots {
            let name = format!("pay-{slot}");
            let row = LockName::from(["user:one", &name]);
            let begin = Begin::new(row.as_str(), "judge", "", minute, minute, None);
            if let Reply::Begin(Begun::Other { progress, .. }) =
                self.ground.store.apply(&begin.into())
                && !matches!(progress, RequestProgress::Done(_))
            {
                self.ground.note(0, What::Unknown { name });
            }
        }
        drop(places);
        lock(&self.places).clear();
        tokio::time::sleep(quarter).await;
        let alive = Handle::current().metrics().num_alive_tasks();
        if alive > 0 {
            unsettled.push(format!("{alive} tasks are left in the end"));
        }
    }
}

/// Tells the site of new data. Some callers go before the end, whenever that is.
async fn tell(process: Arc<Process>, number: u32, key: usize, how: &'static str) {
    let ground = &process.ground;
    let mut random = Random::new(ground.seed, "teller", u64::from(number));
    let goes = !ground.is_quiet() && !ground.plan.calm && random.below(8) == 0;
    let stays = if goes {
        random.time(Duration::from_secs(1), ground.plan.grain)
    } else {
        Duration::from_secs(300)
    };
    let teller = Arc::clone(&process);
    let tell = async move {
        let resource = &teller.resources()[key];
        let (site, name) = (&teller.site, &resource.name);
        teller.note(What::Telling { key, how });
        if how == "nothing" {
            return;
        }
        let said = |told: Result<(), Error>| if told.is_ok() { "yes" } else { "error" };
        let done = async {
            match how {
                "purge" => said(site.purge(name).await),
                "key" => said(site.invalidate(name).await),
                "prefix" => said(site.invalidate_prefix(&name[..name.len() - 1]).await),
                "tag" => said(site.invalidate_tag("list").await),
                "tag_prefix" => said(site.invalidate_tag_prefix("li").await),
                _ => teller.regenerate(number, key).await,
            }
        };
        let done = tokio::time::timeout(stays, done).await.unwrap_or("left");
        teller.note(What::Told { key, how, done });
    };
    process.let_ask(number, tell).await;
}
