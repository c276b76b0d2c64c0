//! A pod is ready when its pages are warm, and a stopped one leaves no lease behind.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use stacks::Folder;

/// Longer than anything that is waited for.
const HANG: Duration = Duration::from_secs(60);

struct Pod {
    process: Child,
    port: u16,
}

impl Pod {
    fn start(folder: &Folder) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let process = Command::new(env!("CARGO_BIN_EXE_pod"))
            .env("DATABASE_URL", folder.url())
            .env("PORT", port.to_string())
            .spawn();
        Self {
            process: process.expect("starts"),
            port,
        }
    }

    /// Returns the status line of a path, or nothing while the pod does not listen.
    fn ask(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.port)) {
            let request = format!("GET {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n");
            socket.write_all(request.as_bytes()).expect("is sent");
            socket.read_to_string(&mut answer).expect("is read");
        }
        answer.lines().next().unwrap_or_default().to_owned()
    }

    fn until(&self, path: &str, status: &str) {
        let begun = Instant::now();
        while !self.ask(path).contains(status) {
            assert!(begun.elapsed() < HANG, "{path} never answered {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends as a container does, and returns its exit status.
    fn stop(mut self) -> Option<i32> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("is there");
        self.process.wait().expect("ends").code()
    }
}

#[test]
fn pod_is_ready_when_it_is_warm_and_leaves_no_lease_behind() {
    let folder = Folder::default();
    let first = Pod::start(&folder);
    first.until("/live", "200");
    // Its page takes two seconds.
    assert!(first.ask("/ready").contains("503"));
    assert_eq!(first.stop(), Some(0), "in the middle of a regeneration");

    let begun = Instant::now();
    let second = Pod::start(&folder);
    second.until("/ready", "200");
    let took = begun.elapsed();
    // If the pod had waited for a lease, this would be at least 15 s. It is printed and not
    // asserted, because a busy machine is slow, too.
    println!("the next pod was ready after {took:?}");
    assert!(second.ask("/").contains("200"));
    assert_eq!(second.stop(), Some(0));

    let third = Pod::start(&folder);
    third.until("/ready", "200");
    assert_eq!(third.stop(), Some(0));
}
