//! A process of the simulated site: the real pages behind a line, its generators and its visitors.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use perennial::{Perennial, Warmed, event::Served, layer::ResponseBody, locks::Lease};
use perennial_store::error::BoxError;
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, ServiceExt, util::BoxCloneSyncService};

use crate::{
    ground::{Answer, Ground, Resource, ServedAs, What},
    line::Line,
    plan::LIMIT,
    random::Random,
};

type Service =
    BoxCloneSyncService<Request<Empty<Bytes>>, (ServedAs, StatusCode, Bytes), Infallible>;

pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) site: Perennial,
    pub(crate) ground: Arc<Ground>,
    /// The service of each key that a route generates.
    services: Vec<Option<Service>>,
    cut: Arc<AtomicBool>,
    crowd: mpsc::UnboundedSender<(u32, Member)>,
}

type Member = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls all callers of a process, in the order of their numbers. Tokio's watch channel, in which
/// callers wait for one another, wakes them in a random order. Ends when the process is dropped and
/// no caller is left.
async fn crowd(mut coming: mpsc::UnboundedReceiver<(u32, Member)>) {
    let mut members = BTreeMap::new();
    let mut dropped = false;
    poll_fn(|context| {
        while !dropped && let Poll::Ready(come) = coming.poll_recv(context) {
            match come {
                Some((number, member)) => drop(members.insert(number, member)),
                None => dropped = true,
            }
        }
        members.retain(|_, member: &mut Member| member.as_mut().poll(context).is_pending());
        if dropped && members.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl Process {
    pub(crate) fn start(ground: &Arc<Ground>, number: u32, revision: u32) -> Arc<Self> {
        let cut = Arc::new(AtomicBool::new(false));
        let line = Line {
            ground: Arc::clone(ground),
            process: number,
            cut: Arc::clone(&cut),
            numbers: Mutex::default(),
        };
        let mut builder = Perennial::builder().statement_timeout(LIMIT);
        if ground.plan.one {
            builder = builder.max_regenerations(1);
        }
        if revision > 0 {
            builder = builder.revision(format!("r{revision}"));
        }
        let site = builder.with_store(Box::new(line)).expect("opens");
        ground.note(number, What::Started { revision });
        let service = |key: usize| {
            let resource = &ground.plan.resources[key];
            resource.route.then(|| {
                let ground = Arc::clone(ground);
                let inner = tower::service_fn(move |request: Request<Empty<Bytes>>| {
                    let ground = Arc::clone(&ground);
                    let visit = request.headers().get("x-visit").cloned();
                    async move {
                        let (status, body) = match generate(&ground, number, key, visit).await {
                            Ok(body) => (StatusCode::OK, body),
                            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Bytes::new()),
                        };
                        let mut response = Response::new(Full::new(body));
                        *response.status_mut() = status;
                        Ok::<_, Infallible>(response)
                    }
                });
                let service = site.layer(&resource.policy).tag("list").layer(inner);
                let read =
                    service.and_then(async |response: Response<ResponseBody<Full<Bytes>>>| {
                        let said = said(&response);
                        let (head, body) = response.into_parts();
                        let body = body.collect().await.expect("infallible").to_bytes();
                        Ok((said, head.status, body))
                    });
                Service::new(read)
            })
        };
        let (sender, coming) = mpsc::unbounded_channel();
        tokio::spawn(crowd(coming));
        let services = (0..ground.plan.resources.len()).map(service).collect();
        Arc::new(Self {
            number,
            site,
            ground: Arc::clone(ground),
            services,
            cut,
            crowd: sender,
        })
    }

    /// Crashes the process: its effects are invisible from now on.
    pub(crate) fn cut(&self) {
        self.ground.note(self.number, What::Cut);
        self.cut.store(true, Relaxed);
    }

    pub(crate) fn note(&self, what: What) {
        if !self.cut.load(Relaxed) {
            self.ground.note(self.number, what);
        }
    }

    /// Adds a caller of this process, with a number of its own. Ends with the result.
    pub(crate) async fn let_ask<T: Send + 'static>(
        self: &Arc<Self>,
        number: u32,
        ask: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        let member = async move {
            // The caller may have given up.
            let _ = done.send(ask.await);
        };
        let _ = self.crowd.send((number, Box::pin(member)));
        result.await.ok()
    }

    pub(crate) fn resources(&self) -> &[Resource] {
        &self.ground.plan.resources
    }

    /// Makes a visit, which ends after `patience`. Returns the version of the data in the answer.
    pub(crate) async fn visit(
        self: Arc<Self>,
        visit: u32,
        key: usize,
        patience: Duration,
    ) -> Option<u32> {
        let process = Arc::clone(&self);
        let come = async move { process.come(visit, key, patience).await };
        self.let_ask(visit, come).await.flatten()
    }

    async fn come(&self, visit: u32, key: usize, patience: Duration) -> Option<u32> {
        self.note(What::Arrived { visit, key });
        let Ok(answer) = tokio::time::timeout(patience, self.ask(visit, key)).await else {
            self.note(What::Left { visit });
            return None;
        };
        self.note(What::Got { visit, key, answer });
        match answer {
            Answer::Content { datum, .. } => Some(datum),
            Answer::Failed | Answer::Unavailable => None,
        }
    }

    /// Regenerates the page of a route. Returns the kind of the end, for the oracle.
    pub(crate) async fn regenerate(&self, number: u32, key: usize) -> &'static str {
        let service = self.services[key].clone().expect("is a route");
        let name = &*self.resources()[key].name;
        let request = Request::get(name).header("x-visit", number).body(());
        let visited = self.site.regenerate(service, [request.expect("a request")]);
        match visited.await[..] {
            [
                Warmed {
                    result: Ok(Served::Generated | Served::Collapsed),
                    ..
                },
            ] => "yes",
            [
                Warmed {
                    result: Ok(Served::Failed),
                    ..
                },
            ] => "error",
            _ => "no",
        }
    }

    async fn ask(&self, visit: u32, key: usize) -> Answer {
        let resource = &self.ground.plan.resources[key];
        let Some(service) = self.services[key].clone() else {
            let (ground, number) = (Arc::clone(&self.ground), self.number);
            let generate = async move || generate(&ground, number, key, None).await;
            let content = self
                .site
                .content(&resource.name, &resource.policy, generate);
            return match content.await {
                Ok(content) => read(content.as_ref(), ServedAs::Nothing),
                Err(error) if error.kind() == perennial::ErrorKind::Unavailable => {
                    Answer::Unavailable
                }
                Err(_) => Answer::Failed,
            };
        };
        let request = Request::get(&*resource.name)
            .header("x-visit", visit)
            .body(Empty::new());
        match service.oneshot(request.expect("a request")).await {
            Ok((said, StatusCode::OK, body)) => read(&body, said),
            Ok((_, StatusCode::SERVICE_UNAVAILABLE, _)) => Answer::Unavailable,
            Ok(_) => Answer::Failed,
        }
    }
}

/// Runs the generator. With a visit's number, runs the service for that visitor alone.
async fn generate(
    ground: &Ground,
    process: u32,
    key: usize,
    visit: Option<HeaderValue>,
) -> Result<Bytes, BoxError> {
    let number = key as u64;
    let read = ground.read(key);
    let (run, datum) = (ground.begin(process, key, visit.is_some(), read), read.0);
    let mut noted = Noted {
        ground,
        process,
        key,
        run,
        how: "cancelled",
    };
    let mut random = Random::new(ground.seed, "generator", number << 32 | u64::from(run));
    let resource = &ground.plan.resources[key];
    let fails = !ground.is_quiet() && random.chance(ground.plan.failures);
    let longest = match () {
        () if ground.is_quiet() => Duration::from_millis(50),
        () if random.below(3) == 0 => resource.terms.timeout * 3 / 4,
        () => Duration::from_millis(200),
    };
    Random::turns(random.below(4)).await;
    tokio::time::sleep(random.time(longest, ground.plan.grain)).await;
    Random::turns(random.below(4)).await;
    if fails {
        match random.below(3) {
            // Only the generator may panic here: in a visit, the visitor's own task runs the
            // service, and would panic with it.
            1 if visit.is_none() => {
                noted.how = "panicked";
                std::panic::panic_any(Intended);
            }
            // The run hangs until cancelled.
            2 if visit.is_none() => std::future::pending().await,
            _ => {
                noted.how = "failed";
                return Err("the simulated generator failed".into());
            }
        }
    }
    noted.how = "made";
    let run = if resource.numbered { run } else { 0 };
    let visit = visit
        .as_ref()
        .map_or("", |visit| visit.to_str().expect("is a number"));
    Ok(format!("{datum} {run} {visit}").into())
}

/// Records the end of a run, in each case.
struct Noted<'a> {
    ground: &'a Ground,
    process: u32,
    key: usize,
    run: u32,
    how: &'static str,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let (key, run, how) = (self.key, self.run, self.how);
        self.ground
            .note(self.process, What::Ended { key, run, how });
    }
}

/// The payload of a panic that is part of the simulation.
pub(crate) struct Intended;

fn read(body: &[u8], said: ServedAs) -> Answer {
    let text = std::str::from_utf8(body).expect("is text");
    let mut numbers = text.splitn(3, ' ').map(str::parse);
    let mut number = || numbers.next().expect("three of them");
    Answer::Content {
        datum: number().expect("a number"),
        run: number().expect("a number"),
        own: number().ok(),
        said,
    }
}

fn said<B>(response: &Response<B>) -> ServedAs {
    let status = response.headers().get("cache-status");
    let status = status.map_or("", |status| status.to_str().expect("is text"));
    match status.split_once("; hit; ttl=") {
        Some((_, ttl)) if ttl.starts_with('-') => ServedAs::Stale,
        Some(_) => ServedAs::Fresh,
        None => ServedAs::Forwarded,
    }
}

/// Takes the named lock, if free, for a time.
pub(crate) async fn use_lock(process: Arc<Process>, time: Duration) {
    let locks = process.site.locks().lease_duration(Duration::from_secs(3));
    if let Ok(Some(lease)) = locks.try_lock("job").await {
        hold(process, lease, time).await;
    }
}

/// Holds the named lock, as far as the lease lasts.
pub(crate) async fn hold(process: Arc<Process>, lease: Lease, time: Duration) {
    if lease.remaining().is_zero() {
        return;
    }
    process.note(What::Locked {
        fence: lease.fence().0,
    });
    let kept = lease.guard(tokio::time::sleep(time)).await.is_ok();
    process.note(What::Unlocked {
        fence: lease.fence().0,
        kept,
    });
    // An unreleased lease expires.
    let _ = lease.release().await;
}
