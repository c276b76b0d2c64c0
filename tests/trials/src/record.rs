//! Records of facts: one file for each process, one fact in a line.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    Result,
    history::{Fact, Micros},
};

/// Returns the time since the start of this machine, which is the same in each process, and which
/// no one sets.
pub(crate) fn now() -> Micros {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000_000 + time.tv_nsec / 1000) as Micros
}

/// Opens a file to which several starts of a program append.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// Makes the folder of a new record.
pub(crate) fn begin(folder: &Path) -> Result {
    fs::create_dir_all(folder)?;
    if read(folder)?.is_empty() {
        Ok(())
    } else {
        Err(format!("{folder:?} has another record: name an empty folder").into())
    }
}

#[derive(Clone)]
pub(crate) struct Recorder(Arc<Mutex<File>>);

impl Recorder {
    pub(crate) fn to(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(append(path)?))))
    }

    /// Writes a fact at once: the process may be killed after it.
    pub(crate) fn note(&self, fact: &Fact) {
        let mut line = serde_json::to_string(fact).expect("is JSON");
        line.push('\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .expect("the record is written");
    }
}

/// Reads the records of a folder. A line that a killed process has not ended is left out.
pub(crate) fn read(folder: &Path) -> io::Result<Vec<Fact>> {
    let mut facts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "facts")
        {
            continue;
        }
        let mut lines = BufReader::new(File::open(&path)?).lines().peekable();
        while let Some(line) = lines.next() {
            match serde_json::from_str(&line?) {
                Ok(fact) => facts.push(fact),
                Err(_) if lines.peek().is_none() => {}
                Err(error) => return Err(io::Error::other(format!("{path:?}: {error}"))),
            }
        }
    }
    Ok(facts)
}
