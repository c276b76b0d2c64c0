//! The bookshop as a program: the shop in two processes, and the demonstration.

mod browser;
mod demo;
mod shop;
mod usage;
