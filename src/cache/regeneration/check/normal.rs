//! The normal form of a world: two worlds with the same future have the same one.
//!
//! Two times become equal if no decision can tell them apart. Fences are replaced by their ranks.
//! Of each owner that is recorded, the normal form only says whether it owns the lock now. The two
//! processes are sorted.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use crate::{
    cache::{
        Failure, Meta,
        entry::{Answer, CacheEntry, Version},
        regeneration::{
            check::{
                content::Read,
                database::{Database, FREE, Reply, Row, Statement},
                process::{Doing, Process, Run},
                setup::{NOW, OLDEST, SECOND},
                world::World,
            },
            machine::{Publishing, Regeneration, State},
            waiting::Progress,
        },
    },
    clock::Tick,
};
use perennial_testkit::search::HASH;

/// A value that the normal form changes.
pub(crate) enum Part<'a> {
    /// A time that matters both before and after it has been reached.
    Time(&'a mut Tick),
    /// The end of a lock, which matters only while it is in the future, or [`FREE`].
    End(&'a mut Tick),
    /// A time that matters only in the future.
    Until(&'a mut Tick),
    Fence(&'a mut perennial_store::Fence),
    Owner(&'a mut u32),
    Failures(&'a mut u32),
}

use Part::{End, Failures, Fence, Owner, Time, Until};

/// Lets a second go by.
pub(crate) fn past(part: Part<'_>) {
    if let Time(time) | End(time) | Until(time) = part {
        time.0 = time.0.saturating_sub(SECOND);
    }
}

/// Returns the hash of the normal form.
pub(crate) fn normal(world: &World) -> u64 {
    let World {
        mut processes,
        mut database,
        left,
        all,
        owners: _,
        setup: _,
    } = world.clone();
    for process in &mut processes {
        process.number = 0;
        // Afterwards the lease is not known.
        process.held = process.held.filter(|held| NOW < held.until);
        let doing = process.acting_mut().map(|run| &mut run.doing);
        if let Some(Doing::Statement { reply, .. }) = doing
            && let Some(Reply::Probed { entry, .. }) = reply
            && let Some(entry) = entry
        {
            entry.age = entry.age.min(NOW - Tick(OLDEST));
        }
    }
    let own = |process: &Process| match process.late {
        Some(Statement::Try { owner, .. }) => owner == process.lost_try,
        _ => false,
    };
    let own = processes.each_ref().map(own);
    let (holder, mut fences) = (database.lock.owner, vec![perennial_store::Fence::NONE]);
    let mut each = |part: Part<'_>| match part {
        Time(time) => *time = *time.max(&mut Tick(OLDEST)),
        End(time) if *time == FREE => {}
        End(time) | Until(time) => {
            let seconds = (time.0 + SECOND - 1).div_euclid(SECOND);
            *time = Tick(seconds.max(0) * SECOND);
        }
        Fence(fence) => fences.push(*fence),
        Owner(owner) => *owner = (*owner != 0 && *owner == holder).into(),
        // More failures change nothing: the cooldown has its full length.
        Failures(failures) => *failures = (*failures).min(2),
    };
    database.parts(&mut each);
    processes.iter_mut().for_each(|it| it.parts(&mut each));
    fences.sort_unstable();
    fences.dedup();
    let mut rank = |part: Part<'_>| {
        if let Fence(fence) = part {
            fence.0 = fences.partition_point(|it| it < fence) as i64;
        }
    };
    database.parts(&mut rank);
    processes.iter_mut().for_each(|it| it.parts(&mut rank));
    let mut processes = [0, 1].map(|at| HASH.hash_one((&processes[at], own[at])));
    processes.sort_unstable();
    HASH.hash_one((database, left, all, processes))
}

impl Database {
    pub(crate) fn parts(&mut self, each: &mut impl FnMut(Part<'_>)) {
        let lock = &mut self.lock;
        each(Fence(&mut lock.fence));
        each(Owner(&mut lock.owner));
        each(Until(&mut lock.acquired));
        each(End(&mut lock.expires));
        each(Failures(&mut lock.failures));
        each(Until(&mut self.cooling));
        each(Fence(&mut self.broken));
        if let Some(entry) = &mut self.entry {
            each(Fence(&mut entry.fence));
            each(Time(&mut entry.made));
        }
    }
}

impl Process {
    pub(crate) fn parts(&mut self, each: &mut impl FnMut(Part<'_>)) {
        each(Until(&mut self.error_grace));
        each(Until(&mut self.cooling));
        each(Owner(&mut self.lost_try));
        if let Some(held) = &mut self.held {
            each(Fence(&mut held.stored_fence));
            each(Until(&mut held.until));
        }
        match &mut self.view {
            Some(CacheEntry::Version(version)) => of_version(Arc::make_mut(version), each),
            Some(CacheEntry::HitForPass { until, .. }) => each(Until(until)),
            Some(CacheEntry::Cooldown {
                until,
                recheck_at,
                failures,
                ..
            }) => {
                each(Until(until));
                each(Until(recheck_at));
                each(Failures(failures));
            }
            None => {}
        }
        for waiting in self.waiting.iter_mut().flatten() {
            each(Time(&mut waiting.visitor.arrived));
        }
        if let Some(statement) = &mut self.late {
            of_statement(statement, each);
        }
        for run in self.run.iter_mut().chain(&mut self.releasing) {
            of_run(run, each);
        }
    }
}

fn of_run(run: &mut Run, each: &mut impl FnMut(Part<'_>)) {
    of_state(&mut run.regeneration, each);
    match &mut run.progress {
        Progress::Stale { version, .. } | Progress::Done(Answer::Version(version)) => {
            of_version(Arc::make_mut(version), each);
        }
        Progress::Probing
        | Progress::GeneratingFirst
        | Progress::HeldByPeer
        | Progress::Withdrawn
        | Progress::Passing(_)
        | Progress::Done(_) => {}
    }
    if let Doing::Statement {
        statement,
        asked,
        reply,
    } = &mut run.doing
    {
        of_statement(statement, each);
        each(Time(asked));
        match reply {
            Some(Reply::Probed { entry, lock, .. }) => {
                each(Fence(&mut lock.fence));
                each(Failures(&mut lock.failures));
                entry
                    .iter_mut()
                    .for_each(|entry| each(Fence(&mut entry.fence)));
            }
            Some(Reply::TryLock(Some(fence))) => each(Fence(fence)),
            Some(Reply::TryLock(None) | Reply::Learned(_) | Reply::Done(_)) | None => {}
        }
    }
    if let Some(lease) = &mut run.lease {
        of_row(&mut lease.row, each);
        each(Until(&mut lease.until));
    }
}

fn of_row(row: &mut Row, each: &mut impl FnMut(Part<'_>)) {
    each(Owner(&mut row.owner));
    each(Fence(&mut row.fence));
}

fn of_statement(statement: &mut Statement, each: &mut impl FnMut(Part<'_>)) {
    match statement {
        Statement::Learn { .. } => {}
        Statement::Probe { known } => each(Fence(known)),
        Statement::Try { seen, owner } => {
            each(Fence(seen));
            each(Owner(owner));
        }
        Statement::Renew { row, known, .. } => {
            of_row(row, each);
            each(Fence(known));
        }
        Statement::Publish { row, .. }
        | Statement::Remove { row }
        | Statement::Release { row, .. } => of_row(row, each),
    }
}

fn of_version(version: &mut Version<Read>, each: &mut impl FnMut(Part<'_>)) {
    each(Fence(&mut version.fence));
    each(Time(&mut version.published_at));
    each(Time(&mut version.began));
    each(Until(&mut version.recheck_at));
    each(Until(&mut version.error_grace_until));
}

fn of_state(state: &mut Regeneration<Read>, each: &mut impl FnMut(Part<'_>)) {
    if let Some(newest) = &mut state.newest {
        of_version(newest, each);
    }
    each(Failures(&mut state.failures));
    each(End(&mut state.peer_lease_until));
    if let Some((until, _)) = &mut state.cooldown {
        each(Until(until));
    }
    match &mut state.state {
        State::WaitingForPeer { since, until } => {
            each(Time(since));
            each(Until(until));
        }
        State::AwaitingVisitor { since } => each(Time(since)),
        State::Generating { lease, began, .. } => {
            lease.iter_mut().for_each(|fence| each(Fence(fence)));
            each(Time(began));
        }
        State::Publishing(Publishing { new, retry_at, .. }) => {
            of_version(new, each);
            retry_at
                .iter_mut()
                .for_each(|retry_at| each(Until(retry_at)));
        }
        State::ProbingAfterRefusal { refused } => of_version(refused, each),
        State::Starting
        | State::TakingPermit { .. }
        | State::Probing
        | State::Acquiring { .. }
        | State::AskingForPeerLease
        | State::Releasing { .. }
        | State::Ended => {}
    }
}

impl<B: Hash> Hash for Regeneration<B> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Two states count as equal if they differ only in what no property depends on. For example,
        // each pause is a second here, so its length does not matter. Only whether `waits` is zero
        // matters, and not the number.
        let Self {
            state,
            newest,
            has_permit,
            failures,
            waits,
            peer_lease_until,
            cooldown,
            hit_for_pass,
            is_kept_apart,
            request,
        } = self;
        (state, newest, has_permit, failures, *waits > 0).hash(hasher);
        (peer_lease_until, cooldown, hit_for_pass, is_kept_apart).hash(hasher);
        request.min_epoch.hash(hasher);
    }
}

impl<B: Hash> Hash for Publishing<B> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            new,
            renews,
            failed_tries: _,
            served_unsaved,
            retry_at,
        } = self;
        (new, renews, served_unsaved, retry_at).hash(hasher);
    }
}

impl<B: Hash> Hash for Version<B> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // `replaced_version` and `failure` are left out, because no decision reads them. `began` matters
        // only to visitors who know of a change that has no epoch, and the model has no such change.
        let Self {
            page,
            fence,
            published_at,
            began: _,
            origin,
            age_unknown,
            replaced_version: _,
            recheck_at,
            pause,
            error_grace_until,
            failure: _,
        } = self;
        (fence, published_at, origin, age_unknown, recheck_at).hash(hasher);
        (pause, error_grace_until, &page.body, page.meta.snapshot()).hash(hasher);
    }
}

impl Hash for Meta {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.snapshot().hash(hasher);
    }
}

impl Hash for Failure {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
