//! Prints the statements that make Perennial's tables, for an administrator to run where the site's
//! own role may not.
//!
//! ```text
//! cargo run -p perennial-examples --features postgres --bin ddl -- postgres:// | psql site
//! ```

use std::process::ExitCode;

use clap::Parser;
use example_common::{self as common, say};
use perennial::Perennial;

/// Prints the statements that make Perennial's tables.
#[derive(Parser)]
struct Options {
    /// The beginning of the database's URL: sqlite://, postgres:// or mysql://
    kind: String,
}

fn main() -> ExitCode {
    let ddl = Perennial::builder().ddl(&Options::parse().kind);
    let printed = ddl.map(|ddl| say!("{}", ddl.trim_end()));
    common::exit("ddl", printed.map_err(Into::into))
}
