//! Perennial as its users meet it: real servers, real files, real processes.

mod content;
mod database;
mod failures;
mod gateway;
mod keys;
mod layer;
mod locks;
mod processes;
mod regeneration;
mod store;
mod support;
