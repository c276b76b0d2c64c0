//! One regeneration of one key as a pure machine: every decision about it is a transition
//! `state × input → state, action, output`, with the clock as an argument and without I/O.
//!
//! # Who calls it
//!
//! `visit.rs` creates a [`Regeneration`] for the visitor who starts it, while it holds the lock of the list
//! of running regenerations, and `driver.rs` runs it in a task of its own:
//!
//! 1. The driver delivers [`Input::Start`]. If the process has not yet been able to read the invalidations that
//!    were made before the process started, the driver delivers [`Input::StoreFailed`] instead. If no page can
//!    be generated for the request, the driver drops the regeneration before it delivers anything.
//! 2. [`Regeneration::on`] returns an [`Output`]. The driver carries its parts out **in the order of the
//!    struct's fields**: the memory tier has a result before it is reported, and it is reported before a
//!    waiting visitor learns of it. Then the driver begins `action`. If that is `None`, the previous action
//!    goes on.
//! 3. The end of each action is exactly one input, which the documentation of [`Action`] names. While
//!    an action runs, [`Input::TimerFired`] comes when the time of [`Regeneration::timer`] has come,
//!    and [`Input::Panicked`] may come at any time. No other input comes while an action runs.
//! 4. The driver decides nothing. For example, it takes a permit when the machine says so, and
//!    gives it back as soon as an action does not [need](Action::needs_permit) it.
//!
//! An input may come late: a timer may fire at the moment at which an action ends. An input that the
//! table below does not have in this state changes nothing.
//!
//! # The states
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> Starting
//!     Starting --> TakingPermit
//!     TakingPermit --> Probing
//!     TakingPermit --> Acquiring: the newest version is this process's own
//!     TakingPermit --> Generating: the store failed, and nothing may be served
//!     TakingPermit --> Ended: keeps the old version, or a cooldown
//!     Probing --> Acquiring: the lock is free
//!     Probing --> WaitingForPeer: a peer holds the lease, and nothing may be served
//!     Probing --> Generating: the store failed, and nothing may be served
//!     Probing --> Ended: a newer version, keeps the old one, or a cooldown of any process
//!     Acquiring --> Generating: acquired
//!     Acquiring --> Probing: the lock has changed since the last publish
//!     Acquiring --> WaitingForPeer: a peer was faster, and nothing may be served
//!     Acquiring --> Ended: keeps the old version, or a cooldown
//!     WaitingForPeer --> AwaitingVisitor: the pause is over
//!     WaitingForPeer --> Ended: the process shuts down
//!     AwaitingVisitor --> AskingForPeerLease
//!     AwaitingVisitor --> Ended: nobody waits
//!     AskingForPeerLease --> WaitingForPeer: the lease is still held
//!     AskingForPeerLease --> TakingPermit: the lease is over
//!     AskingForPeerLease --> Ended: the process shuts down
//!     Generating --> Publishing: content
//!     Generating --> Releasing: no content
//!     Generating --> Ended: without a lease
//!     Publishing --> Publishing: tries again
//!     Publishing --> ProbingAfterRefusal: a peer has published
//!     Publishing --> Releasing
//!     ProbingAfterRefusal --> Releasing
//!     Releasing --> Ended
//!     Ended --> [*]
//!     note left of Releasing: a panic of the application leads here from every state
//! ```
//!
//! # The transitions
//!
//! `check/table.rs` compares this table and the diagram with what the check sees.
//!
//! | state | input | next state and action |
//! |---|---|---|
//! | Starting | Start | TakingPermit TakePermit |
//! | Starting | StoreFailed | TakingPermit TakePermit |
//! | TakingPermit | Permit | Probing Probe; Acquiring Acquire; Generating Generate; Ended End |
//! | Probing | Probed | Acquiring Acquire; WaitingForPeer Sleep; Ended End |
//! | Probing | StoreFailed | Generating Generate; WaitingForPeer Sleep; Ended End |
//! | Acquiring | Acquired | Generating Generate; Probing Probe; WaitingForPeer Sleep; Ended End |
//! | Acquiring | StoreFailed | Generating Generate; Ended End |
//! | WaitingForPeer | TimerFired | AwaitingVisitor AwaitVisitor; Ended End |
//! | AwaitingVisitor | VisitorWaits | AskingForPeerLease AskForPeerLease; Ended End |
//! | AwaitingVisitor | NobodyWaits | Ended End |
//! | AskingForPeerLease | PeerLease | WaitingForPeer Sleep; TakingPermit TakePermit; Ended End |
//! | Generating | Generated | Publishing Publish; Releasing Release; Ended End |
//! | Generating | TimerFired | Releasing Release; Ended End |
//! | Publishing | Published | Releasing Release; Publishing Publish; ProbingAfterRefusal Probe |
//! | Publishing | StoreFailed | Publishing Sleep; Releasing Release |
//! | Publishing | TimerFired | Publishing; Publishing Publish |
//! | ProbingAfterRefusal | Probed | Releasing Release |
//! | ProbingAfterRefusal | StoreFailed | Releasing Release |
//! | Releasing | Released | Ended End |
//! | any but Ended | Panicked | Releasing Release |

use std::{cmp::Ordering, mem, sync::Arc, time::Duration};

use perennial_store::{Epoch, Fence, LockState};

use super::waiting::Progress;
use crate::{
    cache::{
        Failure, Meta,
        entry::{
            Answer, CacheEntry, DecisionContext, Freshness, Origin, Page, Pause, PeerLease,
            SameContent, Version,
        },
        epochs::{Snapshot, Validity},
    },
    clock::Tick,
    event::{Bypass, Outcome, Reason},
    extensions::Tags,
    timing::{
        BRIEF_RETENTION, KEPT_APART_FOR, POLL_PAUSES, PUBLISH_PAUSES, PUBLISH_RETRY_LIMIT,
        RECHECK_INTERVAL,
    },
};

/// What the driver tells the machine.
#[derive(Debug)]
pub(crate) enum Input<B> {
    /// The process now knows all invalidations that were made before the process started.
    Start,
    /// [`Action::TakePermit`] has ended. If no permit was given, the process has as many regenerations under
    /// way as its settings allow.
    Permit {
        granted: bool,
    },
    Probed(ProbeResult<B>),
    /// The attempt to acquire the lease has ended. With a fence it has succeeded. `None` means that the lock
    /// is held or in cooldown, or that its fence is not the one that was named.
    Acquired(Option<Fence>),
    Generated(Generated<Arc<Page<B>>>),
    /// The publish was carried out. It is not accepted if the lease was lost, or if a renewal found a different
    /// version from the one to renew.
    Published {
        accepted: bool,
    },
    /// The lease is released, or nothing more can be done to release it.
    Released,
    /// A visitor waits, or the process shuts down.
    VisitorWaits,
    /// No visitor waits, and from now on none can join this regeneration.
    NobodyWaits,
    /// Whether the other process still holds its lease, according to a sync that was sent at the requested time
    /// or later. If the store has not answered, the value is what this process knew before.
    PeerLease {
        held: bool,
    },
    /// The store has reported that it failed to carry out the action. The action may have happened all the same.
    StoreFailed,
    /// The time of [`Regeneration::timer`] has come.
    TimerFired,
    /// Code of the application has panicked in the task of the regeneration, for example a subscriber of the
    /// log. A panic of the generator is a [`Generated::Failed`].
    Panicked,
}

/// The answer to a probe.
#[derive(Clone, Debug)]
pub(crate) struct ProbeResult<B> {
    pub(crate) stored: Stored<B>,
    pub(crate) lock: LockState,
    /// The latest epoch in the database.
    pub(crate) epoch: Epoch,
}

/// The stored version, if its fence is greater than the one in the question.
#[derive(Clone, Debug)]
pub(crate) enum Stored<B> {
    NoNewer,
    Version(Version<B>),
    /// The stored version cannot be used by this code, which therefore generates a new one: its value has
    /// another type, or its page has a hole that the layer does not have.
    Unreadable(Version<B>),
}

impl<B> Stored<B> {
    fn fence(&self) -> Fence {
        match self {
            Self::NoNewer => Fence::NONE,
            Self::Version(version) | Self::Unreadable(version) => version.fence,
        }
    }

    fn version(self) -> Option<Version<B>> {
        match self {
            Self::Version(version) => Some(version),
            Self::NoNewer | Self::Unreadable(_) => None,
        }
    }
}

/// The result of a generator.
#[derive(Debug)]
pub(crate) enum Generated<T> {
    /// Content to store and to serve.
    Content(T),
    /// A response that is not stored, with its tags. Unless an old version is served, the service
    /// itself answers each visitor.
    NotStored(Bypass, Tags),
    Failed(Failure),
}

/// What the driver does next.
#[derive(Clone, Debug)]
pub(crate) enum Action<B> {
    /// Take a permit, without a wait. Ends with [`Input::Permit`].
    TakePermit,
    /// Ask the store for a version with a greater fence than `known`, and for the state of the lock. Ends
    /// with [`Input::Probed`] or [`Input::StoreFailed`].
    Probe { known: Fence },
    /// Acquire the lease, provided that the fence of the lock is still `seen`. If another process has published
    /// meanwhile, the fence is different, and the attempt fails. Ends with [`Input::Acquired`] or
    /// [`Input::StoreFailed`].
    Acquire { seen: Fence },
    /// Run the generator, with or without a lease. The driver stores `snapshot` in the version's
    /// metadata. The action ends with [`Input::Generated`]; the next action cancels a generator
    /// that still runs.
    Generate { snapshot: Snapshot, reason: Reason },
    /// Publish this version under the lease. With `renews`, the stored version of this fence has the same
    /// content, which is then not sent again. Ends with [`Input::Published`] or [`Input::StoreFailed`].
    Publish {
        version: Version<B>,
        renews: Option<Fence>,
        keeping: Keeping,
    },
    /// Release the lease, if there is one. No process can acquire the lock before `cooldown` is over. With
    /// `removes`, the stored version is removed before the release. Ends with [`Input::Released`].
    Release { cooldown: Duration, removes: bool },
    /// Wait until a visitor is waiting for this regeneration, but no longer than `at_most`. Ends
    /// with [`Input::VisitorWaits`] or [`Input::NobodyWaits`].
    AwaitVisitor { at_most: Duration },
    /// Ask whether the peer still holds its lease, by a sync that begins at `since` or later. Ends with
    /// [`Input::PeerLease`].
    AskForPeerLease { since: Tick },
    /// Do nothing until the timer fires.
    Sleep,
    /// The regeneration is over.
    End,
}

impl<B> Action<B> {
    /// Returns true for an action that occupies one of the process's permits. Publishing does not, because it
    /// may take long, and neither does waiting for another process, because it costs nothing here. A permit
    /// that a request of the application has brought stays with that request.
    pub(crate) fn needs_permit(&self) -> bool {
        matches!(
            self,
            Self::TakePermit | Self::Probe { .. } | Self::Acquire { .. } | Self::Generate { .. }
        )
    }
}

/// How long the row of a version is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    /// The time until the version is stale.
    pub(crate) interval: Duration,
    /// The time until the row may be pruned.
    pub(crate) retention: Duration,
    /// False if a visitor may have invented the key. Such a row goes first when the store is full.
    pub(crate) is_lasting: bool,
}

/// The output of a transition. The driver carries the fields out in this order. A field that is `None` leaves
/// its part as it is.
#[derive(Clone, Debug)]
pub(crate) struct Output<B> {
    /// A lease of another process that was found, to be watched by the sync.
    pub(crate) peer_lease: Option<PeerLease>,
    /// The new entry of the memory tier.
    pub(crate) entry: Option<CacheEntry<B>>,
    /// The end of the regeneration, to be reported. The application's log may panic here.
    pub(crate) conclusion: Option<Conclusion>,
    /// The new progress for waiting visitors.
    pub(crate) progress: Option<Progress<B>>,
    /// The next action, or `None` if the running one continues.
    pub(crate) action: Option<Action<B>>,
}

/// The end of a regeneration, for the log, the counters and the subscribers: the result of the
/// generator is stored, served or dropped, or no generator runs.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub(crate) outcome: Outcome,
    pub(crate) failure: Option<Failure>,
    pub(crate) serves_old: bool,
    /// The time in which no process tries again after a failure.
    pub(crate) cooldown: Duration,
}

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum State<B> {
    /// Nothing has happened yet. The process may not even know all invalidations from before its start.
    Starting,
    /// The driver takes a permit. `store_failed` says that the process could not learn of the
    /// invalidations, because the store has failed.
    TakingPermit {
        store_failed: bool,
    },
    /// The store is being asked for a newer version and for the state of the lock.
    Probing,
    /// The lease is being acquired. `probed` is the epoch in the answer to the probe, or `None` if there was
    /// no probe.
    Acquiring {
        probed: Option<Epoch>,
    },
    /// No version can be served to the leader, and another process holds the lease.
    WaitingForPeer {
        since: Tick,
        until: Tick,
    },
    /// The pause that began at `since` is over. Another sync is worth it only if a visitor still waits.
    AwaitingVisitor {
        since: Tick,
    },
    /// The machine waits for the answer of a sync, which tells whether the peer still holds the lease.
    AskingForPeerLease,
    Generating {
        lease: Option<Fence>,
        snapshot: Snapshot,
        began: Tick,
    },
    Publishing(Publishing<B>),
    /// The publish of this version was refused. The store is asked for the version that stands in its
    /// place.
    ProbingAfterRefusal {
        refused: Version<B>,
    },
    /// Memory has the result already. A request that finds the result stale may already join the next
    /// regeneration, which waits until this lease has been released.
    Releasing {
        cooldown: Duration,
        removes: bool,
    },
    Ended,
}

impl<B> State<B> {
    /// Returns true if the regeneration holds the lease, as far as the machine knows.
    fn has_lease(&self) -> bool {
        match self {
            Self::Generating { lease, .. } => lease.is_some(),
            Self::Publishing(_) | Self::ProbingAfterRefusal { .. } => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Publishing<B> {
    pub(super) new: Version<B>,
    /// The statement under way renews the stored version; otherwise it sends the content.
    pub(super) renews: bool,
    /// The number of tries that the store has not answered.
    pub(super) failed_tries: u32,
    /// Visitors have the new version from memory, although the publish has not succeeded.
    pub(super) served_unsaved: bool,
    /// The time of the next attempt. `None` while a statement is under way.
    pub(super) retry_at: Option<Tick>,
}

/// What the request that starts a regeneration asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaderRequest {
    /// See [`Visitor::min_epoch`](crate::cache::entry::Visitor::min_epoch). Other visitors are served
    /// meanwhile.
    pub(crate) min_epoch: Epoch,
    /// The application has asked for the regeneration.
    pub(crate) is_requested: bool,
    /// The row is kept for [`BRIEF_RETENTION`], and not for the interval and the site's retention.
    pub(crate) is_kept_briefly: bool,
}

/// A regeneration of a key in this process.
#[derive(Clone, Debug)]
pub(crate) struct Regeneration<B> {
    pub(super) state: State<B>,
    /// The newest version known, servable or not.
    pub(super) newest: Option<Version<B>>,
    pub(super) has_permit: bool,
    /// The number of failures in a row, as far as this process knows.
    pub(super) failures: u32,
    /// The number of waits for another process.
    pub(super) waits: u32,
    /// The end of another process's lease, as far as this process knows.
    pub(super) peer_lease_until: Tick,
    /// The end of a cooldown that began while the store did not answer. Until then, the generator
    /// runs only if the store answers.
    pub(super) cooldown: Option<(Tick, Arc<Meta>)>,
    /// The reason why the last response was not stored, if it was not.
    pub(super) hit_for_pass: Option<Bypass>,
    /// A fresh version is stored that this code cannot use, and it is so young that processes with other code
    /// may be running. The result stays in the memory of this process: to publish it over theirs would make them
    /// generate again, and publish over it in turn.
    pub(super) is_kept_apart: bool,
    pub(super) request: LeaderRequest,
}

impl<B: SameContent> Regeneration<B> {
    /// Creates a regeneration of a key with this entry in memory, and the first progress for its
    /// visitors.
    pub(crate) fn new(
        entry: Option<CacheEntry<B>>,
        request: LeaderRequest,
        context: &DecisionContext<'_>,
    ) -> (Self, Progress<B>) {
        let mut regeneration = Self {
            state: State::Starting,
            newest: None,
            has_permit: false,
            failures: 0,
            waits: 0,
            peer_lease_until: Tick(i64::MIN),
            cooldown: None,
            hit_for_pass: None,
            is_kept_apart: false,
            request,
        };
        match entry {
            Some(CacheEntry::Version(version)) => {
                regeneration.newest = Some(Version::clone(&version));
            }
            Some(CacheEntry::HitForPass { why, .. }) => regeneration.hit_for_pass = Some(why),
            Some(CacheEntry::Cooldown {
                until,
                failures,
                meta,
                ..
            }) => {
                regeneration.failures = failures;
                regeneration.cooldown = Some((until, meta)).filter(|_| context.now < until);
            }
            None => {}
        }
        let mut transition = Transition::new(&mut regeneration, context);
        // A visitor who demands a regeneration does not take this process's word for a cooldown, and waits
        // for what the store says.
        if request.is_requested || transition.local_cooldown().is_none() {
            transition.show(Progress::Probing);
        }
        let progress = transition.output.progress.unwrap_or(Progress::Probing);
        (regeneration, progress)
    }

    /// Takes an input, and returns what the driver has to do.
    pub(crate) fn on(&mut self, context: &DecisionContext<'_>, input: Input<B>) -> Output<B> {
        let mut transition = Transition::new(self, context);
        transition.on(input);
        transition.output
    }

    /// Returns the time of the next [`Input::TimerFired`].
    pub(crate) fn timer(&self, context: &DecisionContext<'_>) -> Option<Tick> {
        match &self.state {
            State::WaitingForPeer { until, .. } => Some(*until),
            State::Generating { began, .. } => Some(*began + context.policy.generator_timeout),
            State::Publishing(publishing) => match publishing.retry_at {
                Some(retry_at) => Some(retry_at),
                None if publishing.served_unsaved => None,
                None => Some(publishing.new.published_at + context.store_patience),
            },
            _ => None,
        }
    }

    /// Returns true while the lease is being released: memory has the result, and the next regeneration
    /// of the key may be started.
    pub(crate) fn is_releasing(&self) -> bool {
        matches!(self.state, State::Releasing { .. })
    }

    /// Returns the end of another process's lease, as far as this process knows.
    pub(crate) fn peer_lease_until(&self) -> Tick {
        self.peer_lease_until
    }

    /// Returns the newest version known, servable or not.
    pub(crate) fn newest(&self) -> Option<&Version<B>> {
        self.newest.as_ref()
    }

    /// Returns the fence of the newest version.
    fn fence(&self) -> Fence {
        let newest = self.newest.as_ref();
        newest.map_or(Fence::NONE, |newest| newest.fence)
    }

    /// Returns the epoch to store with content that is generated now. If the list has no later epoch
    /// than the newest version, the newest version's epoch is used. That is right, because it was known
    /// before that version's generator began, and so before this generator begins.
    fn latest_epoch(&self, context: &DecisionContext<'_>) -> Epoch {
        let newest = self.newest.as_ref();
        let newest = newest.map_or(Epoch::NONE, |newest| newest.page.meta.snapshot().epoch);
        context.list.latest().max(newest)
    }
}

/// One transition: the machine, its surroundings, and the output so far.
struct Transition<'a, B> {
    machine: &'a mut Regeneration<B>,
    context: &'a DecisionContext<'a>,
    output: Output<B>,
}

impl<'a, B: SameContent> Transition<'a, B> {
    fn new(machine: &'a mut Regeneration<B>, context: &'a DecisionContext<'a>) -> Self {
        Self {
            machine,
            context,
            output: Output {
                peer_lease: None,
                entry: None,
                conclusion: None,
                progress: None,
                action: None,
            },
        }
    }

    fn on(&mut self, input: Input<B>) {
        // Each arm sets the next state. If one panicked, the machine would have ended.
        let state = mem::replace(&mut self.machine.state, State::Ended);
        match (state, input) {
            (State::Ended, _) => {}
            (State::Releasing { cooldown, removes }, Input::Panicked) => {
                // The panic may have come before the answer, and the release may not have begun.
                if self.is_servable() {
                    self.answer_with_newest();
                }
                self.release(cooldown, removes);
            }
            (state, Input::Panicked) => self.panicked(state.has_lease()),

            (State::Starting, Input::Start) => self.take_permit(false),
            (State::Starting, Input::StoreFailed) => self.take_permit(true),
            (State::TakingPermit { store_failed }, Input::Permit { granted }) => {
                self.machine.has_permit = granted;
                if store_failed {
                    self.go_on_without_store();
                } else {
                    self.begin();
                }
            }

            (State::Probing, Input::Probed(found)) => self.probed(found),
            (State::Probing, Input::StoreFailed)
                if self.context.now < self.machine.peer_lease_until =>
            {
                self.wait_for_peer();
            }
            (State::Acquiring { probed }, Input::Acquired(Some(fence))) => {
                self.generate(Some(fence), self.snapshot(probed.unwrap_or_default()));
            }
            (State::Acquiring { probed: None }, Input::Acquired(None)) => self.probe(),
            (State::Acquiring { .. }, Input::Acquired(None)) => {
                if self.is_servable_to_leader() {
                    self.keep_old(Outcome::HeldByPeer, RECHECK_INTERVAL);
                } else {
                    self.wait_for_peer();
                }
            }
            (State::Probing | State::Acquiring { .. }, Input::StoreFailed) => {
                self.go_on_without_store();
            }

            (
                State::WaitingForPeer { .. } | State::AwaitingVisitor { .. },
                Input::TimerFired | Input::VisitorWaits,
            )
            | (State::AskingForPeerLease, Input::PeerLease { .. })
                if self.context.is_shutting_down =>
            {
                self.answer(Answer::Pass(Bypass::ShuttingDown));
                self.end();
            }
            (State::WaitingForPeer { since, .. }, Input::TimerFired) => {
                // If a version may be served, no visitor waits, so the pause can end at once. While this
                // regeneration exists, even while it only sleeps, no visitor can start another one.
                let at_most = if self.is_servable() {
                    Duration::ZERO
                } else {
                    RECHECK_INTERVAL
                };
                let action = Action::AwaitVisitor { at_most };
                self.enter(State::AwaitingVisitor { since }, action);
            }
            (State::AwaitingVisitor { .. }, Input::NobodyWaits) => self.end(),
            (State::AwaitingVisitor { since }, Input::VisitorWaits) => {
                // If another regeneration has started a sync in the second half of the wait, the answer of that
                // sync is good enough here.
                let since = since + (self.context.now - since) / 2;
                self.enter(State::AskingForPeerLease, Action::AskForPeerLease { since });
            }
            (State::AskingForPeerLease, Input::PeerLease { held: true }) => self.wait_for_peer(),
            (State::AskingForPeerLease, Input::PeerLease { held: false }) => {
                self.take_permit(false);
            }

            (
                State::Generating {
                    lease,
                    snapshot,
                    began,
                },
                Input::Generated(generated),
            ) => {
                self.generated(lease, snapshot, began, generated);
            }
            (
                State::Generating {
                    lease,
                    snapshot,
                    began,
                },
                Input::TimerFired,
            ) => {
                let timeout = self.context.policy.generator_timeout;
                let late = Failure::new(format!("the generator took longer than {timeout:?}"));
                self.generated(lease, snapshot, began, Generated::Failed(late));
                if let Some(conclusion) = &mut self.output.conclusion {
                    conclusion.outcome = Outcome::TimedOut;
                }
            }

            (State::Publishing(publishing), Input::Published { accepted: true }) => {
                self.published(publishing);
            }
            (State::Publishing(publishing), Input::Published { accepted: false }) => {
                self.publish_refused(publishing);
            }
            (State::Publishing(publishing), Input::StoreFailed) => self.publish_failed(publishing),
            (State::Publishing(publishing), Input::TimerFired) => {
                if publishing.retry_at.is_some() {
                    self.send(publishing);
                } else {
                    self.publish_is_slow(publishing);
                }
            }
            (State::ProbingAfterRefusal { refused }, Input::Probed(found)) => {
                self.overtaken(&refused, found.stored.version());
            }
            (State::ProbingAfterRefusal { refused }, Input::StoreFailed) => {
                self.overtaken(&refused, None);
            }
            (State::Releasing { .. }, Input::Released) => self.end(),

            // The input is late, and changes nothing.
            (state, _) => self.machine.state = state,
        }
    }

    fn enter(&mut self, state: State<B>, action: Action<B>) {
        self.machine.has_permit &= action.needs_permit();
        self.machine.state = state;
        self.output.action = Some(action);
    }

    fn end(&mut self) {
        self.enter(State::Ended, Action::End);
    }

    // The following functions lead up to the generator: the permit, the probe, the lease, and the wait for
    // another process.

    fn take_permit(&mut self, store_failed: bool) {
        self.enter(State::TakingPermit { store_failed }, Action::TakePermit);
    }

    /// Chooses the first call to the store:
    ///
    /// - Without a permit, and with a version to serve: none; the old version is kept. A first version is
    ///   never held back, as a visitor waits for it.
    /// - If this process itself has published the newest version, and nobody has touched its lock since,
    ///   as far as this process knows: the lease is acquired at once. The fence in the attempt tells
    ///   whether that guess was right.
    /// - Otherwise a probe.
    fn begin(&mut self) {
        let is_servable = self.is_servable();
        if is_servable && !self.machine.has_permit {
            return self.keep_old(Outcome::Busy, RECHECK_INTERVAL);
        }
        let lock_untouched = Origin::Published {
            lock_untouched: true,
        };
        if let Some(newest) = &mut self.machine.newest
            && is_servable
            && newest.origin == lock_untouched
        {
            newest.origin = Origin::Published {
                lock_untouched: false,
            };
            let (seen, validity) = (newest.fence, newest.validity(self.context.list));
            self.output.entry = Some(CacheEntry::Version(newest.clone().into()));
            if validity == Validity::Valid {
                return self.enter(State::Acquiring { probed: None }, Action::Acquire { seen });
            }
        }
        self.probe();
    }

    /// Asks the store for a version.
    fn probe(&mut self) {
        let known = self.machine.fence();
        self.enter(State::Probing, Action::Probe { known });
    }

    fn probed(&mut self, found: ProbeResult<B>) {
        let stored_fence = found.stored.fence().max(self.machine.fence());
        self.machine.is_kept_apart = match &found.stored {
            Stored::Unreadable(version) => {
                version.freshness(self.context) == Freshness::Fresh
                    && version.age(self.context.now) < KEPT_APART_FOR
            }
            Stored::NoNewer | Stored::Version(_) => false,
        };
        self.keep_better(found.stored.version());
        let shows_stale = self.show_stale(false);
        if self.freshness() == Some(Freshness::Fresh) {
            self.answer_with_newest();
            return self.end();
        }
        let lock = found.lock;
        self.machine.failures = lock.failures;
        // The database's clock may have been ahead when the lock was released, and may have been set
        // back since. The cooldown would then seem to last for years, so it is limited.
        let longest = self.context.policy.cooldown_time().max(RECHECK_INTERVAL);
        let remaining = lock.remaining.min(longest);
        if lock.remaining.is_zero() {
            if shows_stale && !self.machine.has_permit {
                return self.keep_old(Outcome::Busy, RECHECK_INTERVAL);
            }
            let probed = Some(found.epoch);
            let action = Action::Acquire { seen: lock.fence };
            return self.enter(State::Acquiring { probed }, action);
        }
        if lock.owned {
            let until = self.context.now + remaining;
            self.machine.peer_lease_until = until;
            self.output.peer_lease = Some(PeerLease {
                stored_fence,
                until,
            });
            if self.is_servable_to_leader() {
                // A sync will report when it is worth asking again.
                self.keep_old(Outcome::HeldByPeer, Duration::ZERO);
            } else {
                self.wait_for_peer();
            }
        } else if shows_stale {
            self.keep_old(Outcome::Cooldown, remaining);
        } else {
            // The lock is in cooldown, because a regeneration in some process has failed.
            if self.grant_error_grace(remaining) {
                self.serve_old(remaining, Pause::Cooldown);
            } else {
                let snapshot = self.snapshot(found.epoch);
                self.cool_down(remaining, remaining, snapshot, None);
                self.answer(Answer::Unavailable {
                    retry_in: remaining,
                });
            }
            self.end();
        }
    }

    /// Keeps the better of two versions. Invalidations are compared first. If they do not decide, the version
    /// that was published later is better. Fences cannot be compared, because an unsaved version has the fence
    /// of the version before it.
    fn keep_better(&mut self, stored: Option<Version<B>>) {
        let Some(stored) = stored else { return };
        let is_better = self.machine.newest.as_ref().is_none_or(|newest| {
            let list = self.context.list;
            match stored.validity(list).cmp(&newest.validity(list)) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => stored.published_at >= newest.published_at,
            }
        });
        if is_better {
            self.set_newest(stored);
        }
    }

    /// Waits before the next sync, as no version can be served to the leader and another process holds
    /// the lease.
    fn wait_for_peer(&mut self) {
        let pause = POLL_PAUSES.after(self.machine.waits);
        let left = self.machine.peer_lease_until - self.context.now;
        let pause = if left.is_zero() {
            pause
        } else {
            pause.min(left)
        };
        self.machine.waits += 1;
        match self.machine.hit_for_pass {
            // The other process finds out whether the next response may be stored, and nobody waits
            // for that here.
            Some(why) if !self.is_servable() => self.answer(Answer::Pass(why)),
            _ => self.show(Progress::HeldByPeer),
        }
        let since = self.context.now;
        let until = since + pause;
        self.enter(State::WaitingForPeer { since, until }, Action::Sleep);
    }

    /// Goes on while the store fails: an old version is still served, and a first version is generated without
    /// a lease and not stored.
    fn go_on_without_store(&mut self) {
        if self.is_servable() {
            return self.keep_old(Outcome::DatabaseUnavailable, RECHECK_INTERVAL);
        }
        let Some((until, meta)) = self.local_cooldown() else {
            return self.generate(None, self.snapshot(Epoch::NONE));
        };
        self.output.entry = Some(CacheEntry::Cooldown {
            until,
            recheck_at: until.min(self.context.now + RECHECK_INTERVAL),
            failures: self.machine.failures,
            failure: None,
            meta,
        });
        self.conclude(Outcome::DatabaseUnavailable);
        self.end();
    }

    /// If a cooldown that only this process knows of is still in effect, answers visitors accordingly and
    /// returns it.
    fn local_cooldown(&mut self) -> Option<(Tick, Arc<Meta>)> {
        let (until, meta) = self.machine.cooldown.clone()?;
        if self.context.now >= until || self.context.list.validity(&meta) == Validity::Purged {
            return None;
        }
        let retry_in = until - self.context.now;
        self.answer(Answer::Unavailable { retry_in });
        Some((until, meta))
    }

    // The next group of functions: the generator, and everything up to the end of the regeneration.

    fn generate(&mut self, lease: Option<Fence>, snapshot: Snapshot) {
        if !self.show_stale(true) {
            self.show(Progress::GeneratingFirst);
        }
        let generating = State::Generating {
            lease,
            snapshot,
            began: self.context.now,
        };
        let reason = self.reason();
        self.enter(generating, Action::Generate { snapshot, reason });
    }

    /// Returns the reason for the regeneration: it was requested, or it follows from the newest version so far.
    fn reason(&self) -> Reason {
        if self.machine.request.is_requested {
            return Reason::Requested;
        }
        let Some(newest) = &self.machine.newest else {
            return Reason::Miss;
        };
        match newest.freshness(self.context) {
            Freshness::Purged => Reason::Purged,
            Freshness::Expired => Reason::Expired,
            _ if newest.validity(self.context.list) != Validity::Valid => Reason::Invalidated,
            _ if newest.is_only_verified(self.context) => Reason::Verified,
            Freshness::Fresh | Freshness::Stale => Reason::Stale,
        }
    }

    fn generated(
        &mut self,
        lease: Option<Fence>,
        snapshot: Snapshot,
        began: Tick,
        generated: Generated<Arc<Page<B>>>,
    ) {
        let policy = self.context.policy;
        let (cooldown, removes) = match generated {
            Generated::Content(page) => return self.publish(lease, began, page),
            Generated::NotStored(Bypass::TooLarge, _) if self.is_servable() => {
                let cooldown = policy.cooldown_time();
                self.output.conclusion = Some(Conclusion {
                    outcome: Outcome::NotStored(Bypass::TooLarge),
                    failure: None,
                    serves_old: true,
                    cooldown,
                });
                self.serve_old(cooldown, Pause::Cooldown);
                (cooldown, false)
            }
            Generated::NotStored(why, tags) => {
                // A response's status, its size and the answer of `store_if` may soon be different.
                // The other reasons are properties of the route.
                let time = match why {
                    Bypass::Status | Bypass::StoreIf | Bypass::TooLarge => policy.cooldown_time(),
                    _ => policy.interval,
                };
                self.conclude(Outcome::NotStored(why));
                self.hit_for_pass(why, time, snapshot, tags);
                // If a version is stored, it comes from a time when responses could be shared, and has to be
                // removed. If the removal fails, the next regeneration tries again. Two kinds of stored
                // versions stay: one that is too large here, because another process may have a larger limit,
                // and one that was generated by another revision of the code.
                let stays = why == Bypass::TooLarge || self.machine.is_kept_apart;
                (Duration::ZERO, !stays)
            }
            Generated::Failed(failure) => (self.failed(lease, snapshot, failure), false),
        };
        match lease {
            Some(_) => self.release(cooldown, removes),
            None => self.end(),
        }
    }

    /// Answers after a failure, and returns the cooldown.
    fn failed(&mut self, lease: Option<Fence>, snapshot: Snapshot, failure: Failure) -> Duration {
        let policy = self.context.policy;
        let serves_old = self.grant_error_grace(policy.cooldown_time()) && !policy.shows_failures;
        let cooldown = if serves_old {
            policy.cooldown_time()
        } else {
            policy.cooldown_after(self.machine.failures)
        };
        let failure = failure.retrying(cooldown);
        let text = failure.text();
        self.output.conclusion = Some(Conclusion {
            outcome: Outcome::Failed,
            failure: Some(failure.clone()),
            serves_old,
            cooldown,
        });
        self.machine.failures = self.machine.failures.saturating_add(1);
        if let Some(newest) = &mut self.machine.newest {
            newest.failure = Some(Arc::clone(&text));
        }
        let recheck = match lease {
            Some(_) => cooldown,
            // The store did not answer, and may have a version: it is asked again soon.
            None => cooldown.min(RECHECK_INTERVAL),
        };
        if serves_old {
            self.serve_old(recheck, Pause::Cooldown);
        } else {
            self.cool_down(cooldown, recheck, snapshot, Some(text));
            self.answer(Answer::Failed(failure));
        }
        cooldown
    }

    /// Ends after a panic outside of the generator. As after a failure, the page is not regenerated again
    /// before the cooldown is over. Visitors get the old version, or learn that this regeneration has
    /// ended without an answer.
    fn panicked(&mut self, has_lease: bool) {
        let policy = self.context.policy;
        let serves_old = self.grant_error_grace(policy.cooldown_time());
        let cooldown = if serves_old {
            policy.cooldown_time()
        } else {
            policy.cooldown_after(self.machine.failures)
        };
        let recheck = if has_lease {
            cooldown
        } else {
            cooldown.min(RECHECK_INTERVAL)
        };
        if serves_old {
            self.serve_old(recheck, Pause::Cooldown);
        } else {
            self.machine.failures = self.machine.failures.saturating_add(1);
            let failure = "the application's code panicked in the task of the regeneration";
            let snapshot = self.snapshot(Epoch::NONE);
            self.cool_down(cooldown, recheck, snapshot, Some(failure.into()));
        }
        self.release(cooldown, false);
    }

    fn publish(&mut self, lease: Option<Fence>, began: Tick, page: Arc<Page<B>>) {
        let newest = self.machine.newest.as_ref();
        // The age counts from the first attempt, as that one may have been carried out although its answer
        // was lost.
        let mut new = Version::new(
            page,
            Fence::NONE,
            self.context.now,
            Origin::Published {
                lock_untouched: true,
            },
        );
        new.began = began;
        new.replaced_version =
            newest.is_some_and(|newest| newest.validity(self.context.list) != Validity::Purged);
        let Some(fence) = lease else {
            self.conclude(Outcome::Unsaved);
            self.serve_unsaved(&new);
            return self.end();
        };
        if self.machine.is_kept_apart {
            self.conclude(Outcome::KeptApart);
            self.serve_from_memory(&new, Origin::KeptApart);
            return self.release(Duration::ZERO, false);
        }
        new.fence = fence;
        self.send(Publishing {
            new,
            renews: false,
            failed_tries: 0,
            served_unsaved: false,
            retry_at: None,
        });
    }

    /// Renews the stored version if the new content is the same, or else publishes the new version.
    fn send(&mut self, publishing: Publishing<B>) {
        let newest = self.machine.newest.as_ref();
        let same = newest.filter(|newest| {
            !newest.is_unsaved() && newest.page.body.is_same(&publishing.new.page.body)
        });
        let renews = same.map(|newest| newest.fence);
        self.send_as(renews, publishing);
    }

    fn send_as(&mut self, renews: Option<Fence>, publishing: Publishing<B>) {
        let version = publishing.new.clone();
        let publishing = Publishing {
            renews: renews.is_some(),
            retry_at: None,
            ..publishing
        };
        let action = Action::Publish {
            keeping: self.keeping(&version),
            version,
            renews,
        };
        self.enter(State::Publishing(publishing), action);
    }

    /// Returns how long the row of a version is kept. A visitor who asks for something that does not exist must
    /// not create a row that stays for long.
    fn keeping(&self, version: &Version<B>) -> Keeping {
        let meta = &version.page.meta;
        let interval = meta.terms(self.context.policy).interval;
        let (is_brief, is_negative) = (self.machine.request.is_kept_briefly, meta.is_negative());
        let usual = self.context.retention;
        let end = meta.stored.expire_after.unwrap_or(Duration::MAX);
        let retention = if is_brief {
            BRIEF_RETENTION
        } else if is_negative {
            interval.saturating_add(usual.min(BRIEF_RETENTION))
        } else {
            interval.saturating_add(usual)
        };
        let retention = retention.min(end);
        Keeping {
            interval,
            retention,
            is_lasting: !is_brief && !is_negative,
        }
    }

    fn published(&mut self, publishing: Publishing<B>) {
        self.conclude(if publishing.renews {
            Outcome::Renewed
        } else {
            Outcome::Stored
        });
        self.set_newest(publishing.new);
        self.answer_with_newest();
        self.release(Duration::ZERO, false);
    }

    fn publish_refused(&mut self, publishing: Publishing<B>) {
        if publishing.renews {
            // The stored version is no longer the one that has the same content, so the content has to be sent
            // after all.
            return self.send_as(None, publishing);
        }
        // Another process has published a version, or soon will.
        self.conclude(Outcome::Overtaken);
        if publishing.served_unsaved {
            self.release(Duration::ZERO, false);
        } else {
            let known = self.machine.fence();
            let refused = publishing.new;
            self.enter(
                State::ProbingAfterRefusal { refused },
                Action::Probe { known },
            );
        }
    }

    /// The store takes longer than the process waits for it: visitors get the new version meanwhile.
    fn publish_is_slow(&mut self, mut publishing: Publishing<B>) {
        if !publishing.served_unsaved {
            self.serve_unsaved(&publishing.new);
            publishing.served_unsaved = true;
        }
        self.machine.state = State::Publishing(publishing);
    }

    /// Handles a publish that has failed. While the store fails, the new version is served unsaved, and the
    /// publish is tried again. That ends after the length of a lease, after [`PUBLISH_RETRY_LIMIT`], or when
    /// the version may no longer be served, whichever comes first.
    fn publish_failed(&mut self, mut publishing: Publishing<B>) {
        let retry = self.context.policy.lease_duration.min(PUBLISH_RETRY_LIMIT);
        let retries_end = publishing.new.published_at + retry;
        let is_last = publishing.served_unsaved && self.context.now > retries_end;
        if !publishing.served_unsaved {
            self.serve_unsaved(&publishing.new);
            publishing.served_unsaved = true;
        }
        // If the version is not servable, the next visitor starts another regeneration.
        if is_last || !self.is_servable() {
            self.conclude(Outcome::Unsaved);
            return self.release(Duration::ZERO, false);
        }
        let pause = PUBLISH_PAUSES.after(publishing.failed_tries);
        publishing.retry_at = Some(self.context.now + pause);
        publishing.failed_tries += 1;
        self.enter(State::Publishing(publishing), Action::Sleep);
    }

    /// Answers the visitors who still wait after a refused publish: with `stored`, which another process
    /// has published, or with the old version. If neither is servable, they get the refused version,
    /// unsaved.
    fn overtaken(&mut self, refused: &Version<B>, stored: Option<Version<B>>) {
        self.keep_better(stored);
        if self.is_servable() {
            self.answer_with_newest();
        } else {
            self.serve_unsaved(refused);
        }
        self.release(Duration::ZERO, false);
    }

    fn release(&mut self, cooldown: Duration, removes: bool) {
        let releasing = State::Releasing { cooldown, removes };
        self.enter(releasing, Action::Release { cooldown, removes });
    }

    // The remaining functions compute what others need to know: the generator's snapshot, and what
    // memory, the visitors and the log are told.

    /// Returns the snapshot for a generator that begins now. `probed` is the epoch in the store's last
    /// answer.
    fn snapshot(&self, probed: Epoch) -> Snapshot {
        Snapshot {
            epoch: self.machine.latest_epoch(self.context).max(probed),
            revision: self.context.list.revision(),
        }
    }

    fn freshness(&self) -> Option<Freshness> {
        let newest = self.machine.newest.as_ref();
        newest.map(|version| version.freshness(self.context))
    }

    /// Returns true if the newest version may be served to an ordinary visitor.
    fn is_servable(&self) -> bool {
        self.freshness().is_some_and(Freshness::is_servable)
    }

    /// Returns true if the newest version may be served to the leader, too.
    fn is_servable_to_leader(&self) -> bool {
        let newest = self.machine.newest.as_ref();
        let min_epoch = self.machine.request.min_epoch;
        newest.is_some_and(|newest| newest.freshness_for(self.context, min_epoch).is_servable())
    }

    /// Offers the old version to visitors, if it may be served. If it may not, and the last
    /// response was not stored, the visitors' requests are passed to the service. In all other
    /// cases, shows `otherwise`.
    fn show(&mut self, otherwise: Progress<B>) {
        if !self.show_stale(false) {
            self.output.progress = Some(match self.machine.hit_for_pass {
                Some(why) => Progress::Passing(why),
                None => otherwise,
            });
        }
    }

    /// Offers the old version to visitors, if the version is servable. Returns true if so.
    fn show_stale(&mut self, generating: bool) -> bool {
        let is_servable = self.is_servable();
        if let Some(version) = self.machine.newest.clone().filter(|_| is_servable) {
            let version = version.into();
            self.output.progress = Some(Progress::Stale {
                version,
                generating,
            });
        }
        is_servable
    }

    /// Reports an end without a failure.
    fn conclude(&mut self, outcome: Outcome) {
        self.output.conclusion = Some(Conclusion {
            outcome,
            failure: None,
            serves_old: false,
            cooldown: Duration::ZERO,
        });
    }

    /// Takes a version as the newest one, here and in memory.
    fn set_newest(&mut self, version: Version<B>) {
        self.output.entry = Some(CacheEntry::Version(version.clone().into()));
        self.machine.newest = Some(version);
    }

    fn serve_unsaved(&mut self, new: &Version<B>) {
        self.serve_from_memory(new, Origin::Unsaved);
    }

    /// Serves the new version without a publish. The version keeps the fence of the version before,
    /// so that the next published version replaces it.
    fn serve_from_memory(&mut self, new: &Version<B>, origin: Origin) {
        self.set_newest(Version {
            fence: self.machine.fence(),
            origin,
            ..new.clone()
        });
        self.answer_with_newest();
    }

    /// Lets an expired version be served during `cooldown`, within the limits of `stale-if-error`.
    /// Returns true if a version may be served then.
    fn grant_error_grace(&mut self, cooldown: Duration) -> bool {
        if let Some(newest) = &mut self.machine.newest {
            newest.grant_error_grace(cooldown, self.context);
        }
        self.is_servable()
    }

    /// Answers with the old version. For `time`, the process does not ask the store about this
    /// version. `pause` says why.
    fn serve_old(&mut self, time: Duration, pause: Pause) {
        if let Some(newest) = &mut self.machine.newest {
            newest.recheck_at = self.context.now + time;
            newest.pause = pause;
            self.output.entry = Some(CacheEntry::Version(newest.clone().into()));
        }
        self.answer_with_newest();
    }

    /// Ends with the old version and without a regeneration.
    fn keep_old(&mut self, outcome: Outcome, time: Duration) {
        self.conclude(outcome);
        let pause = match outcome {
            Outcome::Busy => Pause::Busy,
            Outcome::HeldByPeer => Pause::Peer,
            _ => Pause::Cooldown,
        };
        self.serve_old(time, pause);
        self.end();
    }

    /// Runs no generator for `time`. For the time `recheck`, this process does not query the store about the
    /// page.
    fn cool_down(
        &mut self,
        time: Duration,
        recheck: Duration,
        snapshot: Snapshot,
        failure: Option<Arc<str>>,
    ) {
        self.output.entry = Some(CacheEntry::Cooldown {
            until: self.context.now + time,
            recheck_at: self.context.now + recheck,
            failures: self.machine.failures,
            failure,
            meta: self.without_version(snapshot, Tags::default()),
        });
    }

    fn hit_for_pass(&mut self, why: Bypass, time: Duration, snapshot: Snapshot, tags: Tags) {
        // What was shared before is withdrawn.
        self.machine.newest = None;
        self.output.entry = Some(CacheEntry::HitForPass {
            until: self.context.now + time.max(RECHECK_INTERVAL),
            why,
            meta: self.without_version(snapshot, tags),
        });
        self.answer(Answer::Pass(why));
    }

    fn without_version(&self, snapshot: Snapshot, tags: Tags) -> Arc<Meta> {
        let meta = Meta::without_version(self.context.key, snapshot, tags);
        Arc::new(meta.seen(self.context.list.sightings()))
    }

    fn answer_with_newest(&mut self) {
        self.answer(match &self.machine.newest {
            Some(version) => Answer::Version(version.clone().into()),
            None => Answer::Unavailable {
                retry_in: self.context.policy.cooldown_time(),
            },
        });
    }

    fn answer(&mut self, answer: Answer<B>) {
        self.output.progress = Some(Progress::Done(answer));
    }
}
