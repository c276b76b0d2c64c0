//! The messages after a wrong use, and without a terminal.

use std::{
    net::TcpListener,
    process::{Command, Output},
};

use perennial_testkit::{Folder, program::example};

fn run(arguments: &[&str]) -> Output {
    let folder = Folder::new();
    let mut command = Command::new(example("bookshop"));
    command.args(arguments).current_dir(folder.path());
    command.output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn wrong_options_and_what_cannot_be_opened_get_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    for (arguments, status, says) in [
        (
            &["--nonsense"][..],
            2,
            "--nonsense is no option; --help lists the options",
        ),
        (&["--listen"], 2, "--listen needs a value"),
        (&["--slow", "7"], 2, "--slow 7: "),
        (&["--slow=1h"], 2, "needs --slow from 1ms to 5s"),
        (&["--plain", "--shop"], 2, "exclude each other"),
        (
            &["--listen", &taken],
            1,
            &format!("cannot listen on {taken}: "),
        ),
        (
            &["--shop", "--listen", &taken],
            1,
            &format!("cannot listen on {taken}: "),
        ),
        (
            &["--listen", "127.0.0.1:0", "--database", "nonsense://"],
            1,
            "bookshop: ",
        ),
        (
            &["--plain", "--database", "sqlite:///no/such/folder/site.db"],
            1,
            "bookshop: ",
        ),
    ] {
        let failed = run(arguments);
        assert_eq!(
            failed.status.code(),
            Some(status),
            "{arguments:?}: {failed:?}"
        );
        let said = text(&failed.stderr);
        let last = said.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("bookshop: ") && last.contains(says),
            "{arguments:?}: {said}"
        );
        assert_eq!(text(&failed.stdout), "", "{arguments:?}");
    }
}
