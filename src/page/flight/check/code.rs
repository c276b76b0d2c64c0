//! The normalised form of a world: two worlds with the same future have the same bytes.
//!
//! Times are whole seconds from now and are cut where no decision tells them apart. Fences are
//! numbered by rank. An owner only says whether the lock is its own. The two processes are sorted.

use crate::{
    clock::Tick,
    page::flight::{
        AsOf,
        check::{
            content::{Marks, Text},
            database::{Database, Entry, FREE, Lock, Reply, Row, Statement, Stored},
            setup::{NOW, OLDEST, SECOND},
            world::World,
        },
    },
};

/// Returns the normalised form.
pub(super) fn code(world: &World) -> Vec<u8> {
    let World {
        processes,
        database,
        left,
        all,
        owners: _,
        setup: _,
    } = world;
    // The first pass finds the fences.
    let mut code = Code {
        owner: database.lock.owner,
        ..Code::default()
    };
    code.database(database);
    processes.iter().for_each(|process| code.process(process));
    let mut fences = std::mem::take(&mut code.fences);
    fences.push(0);
    fences.sort_unstable();
    fences.dedup();
    code.ranks = fences;
    code.bytes.clear();
    let mut parts = [0, 1].map(|at: usize| {
        code.process(&processes[at]);
        std::mem::take(&mut code.bytes)
    });
    parts.sort_unstable();
    code.database(database);
    code.bytes.extend_from_slice(left);
    code.bytes.push(*all);
    let [first, second] = parts;
    let lengths = [first.len() as u8, second.len() as u8];
    [&code.bytes[..], &lengths, &first, &second].concat()
}

#[derive(Default)]
pub(super) struct Code {
    bytes: Vec<u8>,
    /// All fences, on the first pass.
    fences: Vec<i64>,
    /// All fences in their order, on the second pass.
    ranks: Vec<i64>,
    /// The owner of the lock.
    owner: u32,
}

impl Code {
    pub(super) fn byte(&mut self, byte: i64) {
        self.bytes.push(byte as u8);
    }

    pub(super) fn flags(&mut self, flags: &[bool]) {
        let bits = flags
            .iter()
            .fold(0, |bits, flag| bits << 1 | i64::from(*flag));
        self.byte(bits);
    }

    /// More failures change nothing: the cooldown has its full length.
    pub(super) fn failures(&mut self, failures: u32) {
        self.byte(i64::from(failures.min(2)));
    }

    pub(super) fn fence(&mut self, fence: i64) {
        if self.ranks.is_empty() {
            self.fences.push(fence);
        }
        let rank = self.ranks.partition_point(|it| *it < fence);
        self.byte(rank as i64);
    }

    /// A time in the past or in the future.
    pub(super) fn time(&mut self, time: Tick) {
        let seconds = (time.0.max(OLDEST) + SECOND - 1).div_euclid(SECOND);
        self.byte(seconds + 100);
    }

    /// Adds a time that matters only in the future.
    pub(super) fn until(&mut self, time: Tick) {
        self.time(time.max(NOW));
    }

    pub(super) fn owns(&mut self, owner: u32) {
        self.flags(&[owner != 0 && owner == self.owner]);
    }

    pub(super) fn row(&mut self, row: Row) {
        let Row { owner, fence } = row;
        self.owns(owner);
        self.fence(fence);
    }

    pub(super) fn as_of(&mut self, as_of: AsOf) {
        self.byte(as_of.epoch);
        self.byte(as_of.revision);
    }

    pub(super) fn text(&mut self, text: Text) {
        let Text { read, as_of } = text;
        self.byte(read);
        self.as_of(as_of);
    }

    pub(super) fn marks(&mut self, marks: Marks) {
        let Marks {
            stale,
            purged,
            revision,
            latest,
        } = marks;
        for epoch in [stale, purged, revision, latest] {
            self.byte(epoch);
        }
    }

    fn database(&mut self, database: &Database) {
        let Database {
            lock,
            entry,
            marks,
            cooling,
            broken,
            begun,
        } = database;
        let Lock {
            fence,
            owner,
            acquired,
            expires,
            failures,
        } = *lock;
        self.fence(fence);
        self.flags(&[owner != 0, expires == FREE, entry.is_some()]);
        self.until(acquired);
        self.until(expires);
        self.failures(failures);
        self.until(*cooling);
        self.fence(*broken);
        self.byte(i64::from(*begun));
        self.marks(*marks);
        if let Some(Entry { fence, made, text }) = *entry {
            self.fence(fence);
            self.time(made);
            self.text(text);
        }
    }

    pub(super) fn statement(&mut self, statement: Statement) {
        match statement {
            Statement::Learn { is_new } => {
                self.byte(0);
                self.flags(&[is_new]);
            }
            Statement::Probe { known } => {
                self.byte(1);
                self.fence(known);
            }
            Statement::Try { seen, owner } => {
                self.byte(2);
                self.fence(seen);
                self.owns(owner);
            }
            Statement::Renew { row, text, known } => {
                self.byte(3);
                self.row(row);
                self.text(text);
                self.fence(known);
            }
            Statement::Publish { row, text } => {
                self.byte(4);
                self.row(row);
                self.text(text);
            }
            Statement::Remove { row } => {
                self.byte(5);
                self.row(row);
            }
            Statement::Release { row, cooldown } => {
                self.byte(6);
                self.row(row);
                self.byte(cooldown.as_secs() as i64);
            }
        }
    }

    pub(super) fn reply(&mut self, reply: Option<Reply>) {
        match reply {
            None => self.byte(0),
            Some(Reply::Learned(marks)) => {
                self.byte(1);
                self.marks(marks);
            }
            Some(Reply::Probed { entry, lock, epoch }) => {
                self.byte(2);
                self.fence(lock.fence);
                self.flags(&[lock.owned, entry.is_some()]);
                self.byte(lock.remaining.as_secs() as i64);
                self.failures(lock.failures);
                self.byte(epoch);
                if let Some(Stored {
                    fence,
                    age,
                    undated,
                    text,
                }) = entry
                {
                    self.fence(fence);
                    self.byte(age.as_secs().min(7) as i64);
                    self.flags(&[undated]);
                    self.text(text);
                }
            }
            Some(Reply::Tried(fence)) => {
                self.byte(3);
                self.fence(fence.unwrap_or(0));
            }
            Some(Reply::Done(done)) => {
                self.byte(4);
                self.flags(&[done]);
            }
        }
    }
}
