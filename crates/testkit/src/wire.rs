//! A network with faults between a process and its server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The state of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Everything passes.
    Open,
    /// Each reply is delayed by this time.
    Slow(Duration),
    /// The server executes requests, and after this number of replies the replies are lost.
    RepliesLost {
        /// The replies that still arrive.
        after: usize,
    },
    /// The connection is reset in the middle of a reply.
    Reset,
    /// Nothing passes in either direction before the state changes.
    Silent,
    /// Connections are closed, and no new one is made.
    Cut,
}

/// A port of this machine whose connections go to a server.
pub struct Wire {
    /// The port to connect to in place of the server.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    state: watch::Sender<State>,
    /// The connections with lower numbers are held: their requests arrive after the release.
    held: watch::Sender<usize>,
    /// The number of held requests.
    waiting: AtomicUsize,
    connections: AtomicUsize,
    /// The replies since the state has changed.
    replies: AtomicUsize,
    /// The number of all requests, without signs of life.
    asked: AtomicUsize,
}

impl Wire {
    /// Opens a port to the server of this URL.
    pub async fn before(url: &str) -> Self {
        let (_, rest) = url.rsplit_once('@').expect("names a user");
        let (server, _) = rest.split_once('/').expect("names a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server: server.parse().expect("host and port"),
            state: watch::Sender::new(State::Open),
            held: watch::Sender::new(0),
            waiting: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            replies: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("accepts");
                let shared = Arc::clone(&accepting);
                let number = shared.connections.fetch_add(1, SeqCst);
                tokio::spawn(async move { shared.carry(client, number).await });
            }
        });
        Self { address, shared }
    }

    /// Returns the URL of the database behind this network. The connection is not encrypted,
    /// because the network has to read the messages.
    pub fn url(&self, url: &str) -> String {
        let (user, rest) = url.rsplit_once('@').expect("names a user");
        let (_, database) = rest.split_once('/').expect("names a database");
        let and = if database.contains('?') { '&' } else { '?' };
        let clear = match url.split(':').next() {
            Some("mysql") => "ssl-mode=DISABLED",
            _ => "sslmode=disable",
        };
        format!("{user}@{}/{database}{and}{clear}", self.address)
    }

    /// Changes the state, for present connections, too.
    pub fn set(&self, state: State) {
        self.shared.replies.store(0, SeqCst);
        self.shared.state.send_replace(state);
    }

    /// Returns the number of requests to the server: statements, and those of connecting and
    /// preparing.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(SeqCst)
    }

    /// Returns the number of replies since the state last changed.
    pub fn replied(&self) -> usize {
        self.shared.replies.load(SeqCst)
    }

    /// Holds the requests on the present connections until [`let_go`](Self::let_go). New
    /// connections are not held.
    pub fn hold(&self) {
        let connections = self.shared.connections.load(SeqCst);
        self.shared.held.send_replace(connections);
    }

    /// Returns true while a request is held.
    pub fn is_holding(&self) -> bool {
        self.shared.waiting.load(SeqCst) > 0
    }

    /// Lets what was held pass.
    pub fn let_go(&self) {
        self.shared.held.send_replace(0);
    }
}

impl Shared {
    async fn carry(&self, client: TcpStream, number: usize) {
        // If the server cannot be reached, the client's connection is closed.
        let Ok(server) = TcpStream::connect(self.server).await else {
            return;
        };
        // Dropping this socket resets the connection.
        client.set_zero_linger().expect("is set");
        server.set_nodelay(true).expect("is set");
        client.set_nodelay(true).expect("is set");
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            _ = self.when(|state| state == State::Cut) => {}
            () = self.requests(from_client, to_server, number) => {}
            () = self.replies(from_server, to_client) => {}
        }
    }

    /// Waits for such a state, and returns it.
    async fn when(&self, is: impl Fn(State) -> bool) -> State {
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| is(*state)).await;
        *state.expect("the sender lives as long as `self`")
    }

    async fn requests(&self, mut client: OwnedReadHalf, mut server: OwnedWriteHalf, number: usize) {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(read @ 1..) = client.read(&mut chunk).await {
            // PostgreSQL's Sync and a Query without text, MySQL's COM_PING.
            let sign_of_life = matches!(
                &chunk[..read],
                [b'S', 0, 0, 0, 4] | [b'Q', 0, 0, 0, 5, 0] | [1, 0, 0, 0, 0x0e]
            );
            if !sign_of_life {
                self.asked.fetch_add(1, SeqCst);
            }
            let mut held = self.held.subscribe();
            if number < *held.borrow() {
                self.waiting.fetch_add(1, SeqCst);
                let over = held.wait_for(|held| *held <= number).await;
                drop(over.expect("the sender lives as long as `self`"));
                self.waiting.fetch_sub(1, SeqCst);
            }
            self.when(|state| state != State::Silent).await;
            if server.write_all(&chunk[..read]).await.is_err() {
                return;
            }
        }
    }

    async fn replies(&self, mut server: OwnedReadHalf, mut client: OwnedWriteHalf) {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(read @ 1..) = server.read(&mut chunk).await {
            let state = self.when(|state| state != State::Silent).await;
            let before = self.replies.fetch_add(1, SeqCst);
            let mut passed = read;
            match state {
                State::Open | State::Silent | State::Cut => {}
                State::RepliesLost { after } if before < after => {}
                State::Slow(delay) => tokio::time::sleep(delay).await,
                // Nothing after a gap is ever delivered.
                State::RepliesLost { .. } => std::future::pending().await,
                State::Reset => passed /= 2,
            }
            if client.write_all(&chunk[..passed]).await.is_err() || passed < read {
                return;
            }
        }
    }
}
