//! The examples as programs: their messages after a wrong use, and without a reader.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Command, Output, Stdio},
};

use crate::{program::example, support::Folder};

/// Runs an example to its end, in a folder of its own.
fn run(name: &str, arguments: &[&str]) -> Output {
    let folder = Folder::new();
    let mut command = Command::new(example(name));
    command.args(arguments).current_dir(folder.path());
    command.output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn each_example_explains_its_usage() {
    for name in [
        "ddl",
        "exclusive",
        "gateway",
        "locks",
        "mailout",
        "once",
        "payment",
        "session_lock",
        "sessions",
    ] {
        let help = run(name, &["--help"]);
        assert!(help.status.success(), "{name}: {help:?}");
        assert!(text(&help.stdout).contains("Usage: "), "{name}: {help:?}");
    }
    for name in ["ddl", "gateway", "session_lock"] {
        let missing = run(name, &[]);
        assert!(
            text(&missing.stderr).contains("Usage: "),
            "{name}: {missing:?}"
        );
    }
}

#[test]
fn errors_are_printed_as_sentences() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let origin = ["--origin", "http://127.0.0.1:1", "--every", "1m"];
    for (name, rest) in [
        ("exclusive", &[][..]),
        ("gateway", &origin),
        ("payment", &[]),
        ("sessions", &[]),
    ] {
        for (option, value, says) in [
            (
                "--listen",
                &*taken,
                format!("{name}: cannot listen on {taken}: "),
            ),
            ("--database", "nonsense://", format!("{name}: ")),
        ] {
            let arguments = [rest, &[option, value]].concat();
            let failed = run(name, &arguments);
            assert_eq!(failed.status.code(), Some(1), "{failed:?}");
            let last = text(&failed.stderr).lines().last().unwrap_or_default();
            assert!(last.starts_with(&says), "{failed:?}");
        }
    }
    for (name, argument) in [("ddl", "nonsense"), ("session_lock", "nonsense")] {
        let failed = run(name, &[argument]);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        assert!(
            text(&failed.stderr).starts_with(&format!("{name}: ")),
            "{failed:?}"
        );
    }
    let https = run(
        "gateway",
        &["--origin", "https://example.org", "--every", "1m"],
    );
    assert!(text(&https.stderr).contains("without TLS"), "{https:?}");
}

#[test]
fn session_lock_on_a_file_names_the_features_of_the_example() {
    let failed = run("session_lock", &["sqlite://site.db"]);
    let hint =
        "cargo run -p perennial-examples --features postgres --bin session_lock -- postgres://";
    assert!(text(&failed.stderr).contains(hint), "{failed:?}");
}

#[test]
fn servers_listen_on_a_name() {
    for name in ["exclusive", "gateway", "payment", "sessions"] {
        let folder = Folder::new();
        let mut command = Command::new(example(name));
        command
            .args(["--listen", "localhost:0"])
            .current_dir(folder.path());
        if name == "gateway" {
            command.args(["--origin", "http://localhost:1", "--every", "1m"]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(line.contains("http://"), "{name}: {line:?}");
        child.kill().expect("runs");
        child.wait().expect("ends");
    }
}

#[test]
fn once_example_continues_without_a_reader() {
    let mut command = Command::new(example("once"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    drop(child.stdout.take());
    let mut errors = String::new();
    let stderr = child.stderr.as_mut().expect("is piped");
    stderr.read_to_string(&mut errors).expect("text");
    assert!(child.wait().expect("ends").success(), "{errors}");
    assert_eq!(errors, "");
}
