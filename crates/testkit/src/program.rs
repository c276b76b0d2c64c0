//! The examples as processes.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// An example as a process that serves HTTP and prints its address.
pub struct Program {
    child: Child,
    /// Where it serves.
    pub address: SocketAddr,
    /// The process may print more later.
    _output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program and waits until it serves.
    pub fn start(name: &str, database: &str, options: &str) -> Self {
        let options = options.split_whitespace().map(str::to_owned);
        Self::start_with(name, database, options, &[])
    }

    fn start_with(
        name: &str,
        database: &str,
        options: impl Iterator<Item = String>,
        environment: &[(&str, String)],
    ) -> Self {
        let mut child = Command::new(example(name))
            .args(["--listen", "127.0.0.1:0", "--database", database])
            .args(options)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("is piped"));
        output.read_line(&mut line).expect("a line");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split([' ', '/']).next()?.parse().ok())
            .unwrap_or_else(|| panic!("{name} did not start: {line:?}"));
        Self {
            child,
            address,
            _output: output,
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("is alive");
    }

    /// Waits for the process to end by itself, and returns its exit code.
    pub fn ended(mut self) -> Option<i32> {
        self.child.wait().expect("ends").code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The test may have killed the process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway as a process.
pub enum Gateway {}

impl Gateway {
    /// Starts a gateway in front of an origin.
    pub fn start(origin: SocketAddr, database: &str, options: &str) -> Program {
        Self::start_with(origin, database, options, &[])
    }

    /// As [`start`](Self::start), with variables of the environment.
    pub fn start_with(
        origin: SocketAddr,
        database: &str,
        options: &str,
        environment: &[(&str, String)],
    ) -> Program {
        let origin = ["--origin".to_owned(), format!("http://{origin}")];
        let options = options.split_whitespace().map(str::to_owned);
        Program::start_with(
            "gateway",
            database,
            origin.into_iter().chain(options),
            environment,
        )
    }
}

/// Returns the path of a program of the package whose test this is.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("has a path");
    let folder = test.parent().and_then(Path::parent);
    folder.expect("target/profile/deps/test").join(name)
}
