//! Several processes on one database: contenders for a lock, the processes of a site, and programs in
//! another language.

mod lock_contention;
mod other_languages;
mod staleness;
mod triggers;
