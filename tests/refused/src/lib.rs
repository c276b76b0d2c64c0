//! Nothing: the cases are in the test.
