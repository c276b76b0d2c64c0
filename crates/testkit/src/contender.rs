//! Other processes that a test tells what to do, by lines on their input.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// A process that tries to get locks and rows as the commands on its standard input say.
pub struct Contender {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Contender {
    /// Starts a program that prints one line for each command that it reads: the word `said`, and
    /// then the words of its answer.
    pub fn run(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("starts");
        Self {
            input: process.stdin.take().expect("is piped"),
            output: BufReader::new(process.stdout.take().expect("is piped")),
            process,
        }
    }

    /// Sends a line.
    pub fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("is alive");
    }

    /// Reads the results of a command.
    pub fn said(&mut self) -> Vec<String> {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("is alive");
            assert!(read > 0, "a process of the herd has failed");
            // The test's own words come before.
            if let Some(said) = line.strip_prefix("said") {
                return said.split_whitespace().map(str::to_owned).collect();
            }
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
