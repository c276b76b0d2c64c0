//! The rounds on each server of the test run.

use std::{env, process::Command};

#[test]
fn rounds_find_no_breach_on_one_server() {
    for variable in ["PERENNIAL_TEST_POSTGRES_URL", "PERENNIAL_TEST_MYSQL_URL"] {
        let Ok(url) = env::var(variable) else {
            let may_skip = env::var_os("PERENNIAL_TEST_ALL").is_none();
            assert!(
                may_skip,
                "{variable} is not set, and nothing may be skipped"
            );
            eprintln!("SKIPPED: {variable} is not set; scripts/test starts a server");
            continue;
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_perennial-trials"));
        let output = command.args(["rounds", &url, "--rounds", "2"]).output();
        let output = output.expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{output:?}");
        assert_eq!(text.matches("2 rounds, 0 breaches").count(), 6, "{text}");
    }
}
