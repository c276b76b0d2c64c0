//! A map from names to numbers that takes at most 64 bytes for a name, however long the name is: a process
//! holds up to 300,000 names.

use std::collections::{BTreeSet, HashMap};

use foldhash::{fast, quality};
use std::hash::BuildHasher;

/// The latest number of each name. A name is represented by 128 bits of two hashes with random keys, so that
/// its text takes no memory and nobody can choose two names that collide.
#[derive(Debug, Default)]
pub(crate) struct Names<N> {
    hashers: [quality::RandomState; 2],
    numbers: HashMap<[u64; 2], N, fast::RandomState>,
    /// The lengths of the names, in bytes. A key has to be compared with the names only at these lengths.
    lengths: BTreeSet<usize>,
}

impl<N: Copy + Ord> Names<N> {
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn add(&mut self, name: &str, number: N) {
        let latest = self.numbers.entry(hash(&self.hashers, name.as_bytes()));
        let latest = latest.or_insert(number);
        *latest = number.max(*latest);
        self.lengths.insert(name.len());
    }

    pub(crate) fn get(&self, name: &str) -> Option<N> {
        if self.numbers.is_empty() {
            return None;
        }
        let hash = hash(&self.hashers, name.as_bytes());
        self.numbers.get(&hash).copied()
    }

    /// Returns the latest number of the names with which `key` begins, by a look-up for each length.
    pub(crate) fn latest_prefix_of(&self, key: &str) -> Option<N> {
        let begins = self.lengths.range(..=key.len()).filter_map(|length| {
            let hash = hash(&self.hashers, &key.as_bytes()[..*length]);
            self.numbers.get(&hash).copied()
        });
        begins.max()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = N> {
        self.numbers.values().copied()
    }

    /// Drops the names whose numbers are at most `number`.
    pub(crate) fn drop_older(&mut self, number: N) {
        self.numbers.retain(|_, latest| *latest > number);
        if self.numbers.is_empty() {
            self.lengths.clear();
        }
        self.numbers.shrink_to_fit();
    }
}

fn hash(hashers: &[quality::RandomState; 2], name: &[u8]) -> [u64; 2] {
    hashers.each_ref().map(|hasher| hasher.hash_one(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_at_each_of_its_lengths() {
        let mut names = Names::default();
        for (name, epoch) in [
            ("/", 1),
            ("/a", 4),
            ("/ab", 2),
            ("/\u{fc}", 9),
            ("/abcdef", 8),
        ] {
            names.add(name, epoch);
        }
        let table = [
            ("/", Some(1)),
            ("/b", Some(1)),
            ("/a", Some(4)),
            ("/abc", Some(4)),
            ("/abcdefg", Some(8)),
            ("/\u{fc}", Some(9)),
            ("a", None),
            ("", None),
        ];
        for (key, epoch) in table {
            assert_eq!(names.latest_prefix_of(key), epoch, "{key}");
        }
    }
}
