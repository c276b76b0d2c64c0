//! Prints the statements that make Perennial's tables, for an administrator to run where the site's own role may not.
//!
//! ```text
//! cargo run --features postgres --example ddl -- postgres:// | psql site
//! ```

use std::process::ExitCode;

use perennial::Perennial;

fn main() -> ExitCode {
    let kind = std::env::args().nth(1).unwrap_or_default();
    match Perennial::builder().ddl(&kind) {
        Ok(ddl) => {
            print!("{ddl}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
