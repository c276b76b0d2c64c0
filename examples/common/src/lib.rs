//! The shared parts of the examples: start, output, listening and end.

use std::{
    error::Error,
    fmt,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use tokio::net::TcpListener;

/// Prints a line by [`print()`].
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::print(format_args!($($line)*)) };
}

/// Prints a line. Unlike `println!`, continues without a reader, as in `once | head`.
pub fn print(line: fmt::Arguments<'_>) {
    // The reader has gone.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Ends a program: an error is printed with its causes, in one line.
pub fn exit(program: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to stderr, in colours on a terminal.
pub fn log() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// Listens on an address as a user writes it, `localhost:3211` as well.
pub async fn listen(address: &str) -> Result<TcpListener, Box<dyn Error>> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

/// Waits for ctrl-c, or for SIGTERM, which systemd and Docker send.
pub async fn told_to_stop() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<Option<()>>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
    tracing::info!("closing: the last visitors are served");
}

/// Returns a database's URL without its password.
pub fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}
