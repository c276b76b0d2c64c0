//! The regenerations of one process.

#[cfg(test)]
mod check;
mod driver;
mod generate;
mod machine;
mod report;
mod visit;
mod waiting;

pub(crate) use machine::{
    Action, Ended, Generated, Input, Output, ProbeResult, Regeneration,
};
#[cfg(test)]
use machine::{Publishing, State};
pub(crate) use visit::Visited;
pub(crate) use waiting::{Accepts, Next, Progress, Visitor};
