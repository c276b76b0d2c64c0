//! A small bookshop whose lists regrow by themselves, and a demonstration around it.
//!
//! ```text
//! cargo run --release --example bookshop             # the demonstration: open the page that it names
//! cargo run --release --example bookshop -- --plain  # the shop alone
//! ```
//!
//! The shop is in `shop.rs`, as an example of use. The demonstration (`demo/`) starts the shop twice
//! over one database, sends visitors, and shows who regenerates a page and when. For a database on a
//! server, add `--features postgres` or `mysql`, and `--database` with its URL.

#[path = "../common/mod.rs"]
#[macro_use]
mod common;
mod demo;
mod shop;

use std::process::ExitCode;

use axum::Router;
use clap::Parser;

/// A small bookshop whose lists regrow by themselves, and a demonstration around it.
#[derive(Parser)]
#[command(name = "bookshop")]
struct Options {
    #[command(flatten)]
    shop: shop::ShopOptions,
    /// Run the shop alone, in this process.
    #[arg(long)]
    plain: bool,
    /// Run the shop with the demonstration's controls.
    #[arg(long, hide = true)]
    controlled: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    common::log();
    let ended = if options.controlled {
        demo::copy::ends_with_its_parent();
        shop::run(&options.shop, demo::copy::router).await
    } else if options.plain {
        shop::run(&options.shop, |_| Router::new()).await
    } else {
        demo::run(&options.shop).await
    };
    common::exit("bookshop", ended)
}
