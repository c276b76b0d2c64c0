//! The bookshop as a program: the shop in two processes, and the demonstration.

#[path = "../../../../tests/it/databases.rs"]
#[macro_use]
#[allow(dead_code, unused_macros, reason = "these tests need a part of it")]
mod databases;
#[path = "../../../../crates/admin/tests/driver/mod.rs"]
mod driver;
#[path = "../../../tests/programs/program.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod program;
#[path = "../../../../tests/it/support.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod support;

mod browser;
mod demo;
mod shop;
mod usage;
