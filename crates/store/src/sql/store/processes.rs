//! The operations of `calls.rs` on the statistics that processes share.

use std::time::SystemTime;

use super::{SqlResult, SqlStore};
use crate::{
    calls::{NoteProcess, Processes, PruneProcesses},
    clock::{FOREVER, duration, micros},
    name::bounded,
    rows::ProcessRow,
    sql::{
        run::{Arg, Cells},
        statements::processes,
    },
};

impl SqlStore {
    pub(crate) async fn note_process(&self, call: &NoteProcess) -> SqlResult<()> {
        let name = bounded(&call.name);
        let arguments = [&name, &*call.figures].map(Arg::Text);
        self.run(&processes::NOTE, &arguments).await?;
        Ok(())
    }

    pub(crate) async fn processes(&self, call: &Processes) -> SqlResult<Vec<ProcessRow>> {
        let limit = [Arg::Int(call.limit.into())];
        let rows = self.run(&processes::LIST, &limit).await?.rows;
        let read = rows.iter().filter_map(|row| {
            // A row that cannot be read does not hide the others.
            Some(ProcessRow {
                name: row.name(0).ok()?,
                noted_at: SystemTime::UNIX_EPOCH.checked_add(duration(row.number(1).ok()?))?,
                age: duration(row.number(2).ok()?),
                figures: row.name(3).ok()?,
            })
        });
        Ok(read.collect())
    }

    pub(crate) async fn prune_processes(&self, call: &PruneProcesses) -> SqlResult<()> {
        let silent = [Arg::Int(micros(call.silent.min(FOREVER)))];
        self.run(&processes::PRUNE, &silent).await?;
        Ok(())
    }
}
