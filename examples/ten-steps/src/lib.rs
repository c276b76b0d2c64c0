//! The programs of the tutorial `docs/tutorial.md`, one for each step, in `src/bin`. Each is a whole program, so that a
//! reader can start anywhere and compare two steps by `diff`.
