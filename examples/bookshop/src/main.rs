//! A small bookshop whose lists regrow by themselves, and a demonstration around it.
//!
//! ```text
//! cargo run --release -p bookshop             # the demonstration: open the page that it names
//! cargo run --release -p bookshop -- --plain  # the demonstration as text
//! cargo run --release -p bookshop -- --shop   # the shop alone
//! ```
//!
//! The shop is in `shop.rs`, as an example of use. The demonstration (`demo/`) starts the shop twice
//! over one database, sends visitors, and shows who regenerates a page and when. For a database on a
//! server, add `--features postgres` or `mysql`, and `--database` with its URL.

mod demo;
mod options;
mod shop;

use std::process::ExitCode;

use options::{Mode, Options};

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            example_common::print(format_args!("{}", options::HELP));
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("bookshop: {wrong}; --help lists the options");
            return ExitCode::from(2);
        }
    };
    example_common::log();
    let ended = match options.mode {
        Mode::Page => demo::run(&options).await,
        Mode::Plain => demo::plain::run(&options).await,
        Mode::Shop => shop::run(&options, |_, shop| shop).await,
        Mode::Controlled => {
            demo::copy::ends_with_its_parent();
            shop::run(&options, demo::copy::router).await
        }
    };
    example_common::exit("bookshop", ended)
}
