//! A network with faults between a site and its server.

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

/// The fault of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weather {
    Fair,
    /// Each reply is delayed by this time.
    Slow(Duration),
    /// The server executes requests, and after this number of replies the replies are lost.
    RepliesLost {
        after: usize,
    },
    /// The connection is reset in the middle of a reply.
    Reset,
    /// Nothing passes in either direction until the fault ends.
    Blackout,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    weather: watch::Sender<Weather>,
    /// The connections with lower numbers are held: their requests arrive after the release.
    held: watch::Sender<usize>,
    /// The number of held requests.
    waiting: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// The replies since the weather has changed.
    replies: Arc<AtomicUsize>,
    /// The number of all requests, without signs of life.
    asked: Arc<AtomicUsize>,
}

impl Proxy {
    /// In front of the server of a URL.
    pub(crate) async fn before(url: &str) -> Self {
        let server = url.rsplit('@').next().expect("names a user");
        let server: SocketAddr = server
            .split('/')
            .next()
            .and_then(|address| address.parse().ok())
            .expect("host and port");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let weather = watch::Sender::new(Weather::Fair);
        let held = watch::Sender::new(0);
        let (waiting, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let shared = (held.clone(), Arc::clone(&waiting), Arc::clone(&connections));
        let forecast = weather.clone();
        let replies = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicUsize::new(0));
        let counters = (Arc::clone(&asked), Arc::clone(&replies));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("accepts");
                let weather = forecast.subscribe();
                let (held, waiting, connections) = &shared;
                let held = HeldBytes {
                    number: connections.fetch_add(1, SeqCst),
                    held: held.subscribe(),
                    waiting: Arc::clone(waiting),
                };
                let (asked, replies) = counters.clone();
                tokio::spawn(async move {
                    // A server that is away ends the client's connection.
                    if let Ok(server) = TcpStream::connect(server).await {
                        carry(client, server, weather, held, &asked, &replies).await;
                    }
                });
            }
        });
        Self {
            address,
            weather,
            held,
            waiting,
            connections,
            replies,
            asked,
        }
    }

    /// The URL through this proxy.
    pub(crate) fn url(&self, url: &str) -> String {
        let (user, rest) = url.rsplit_once('@').expect("names a user");
        let (_, database) = rest.split_once('/').expect("names a database");
        format!("{user}@{}/{database}", self.address)
    }

    /// The number of requests to the server: statements, and those of connecting and preparing.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// The number of replies since the weather has changed.
    pub(crate) fn replied(&self) -> usize {
        self.replies.load(SeqCst)
    }

    /// Holds the requests on the present connections until [`let_go`](Self::let_go). New
    /// connections are not held.
    pub(crate) fn hold(&self) {
        self.held.send_replace(self.connections.load(SeqCst));
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    pub(crate) fn let_go(&self) {
        self.held.send_replace(0);
    }

    pub(crate) fn weather(&self, weather: Weather) {
        self.replies.store(0, SeqCst);
        self.weather.send_replace(weather);
    }
}

/// Holds the requests on one connection.
struct HeldBytes {
    number: usize,
    held: watch::Receiver<usize>,
    waiting: Arc<AtomicUsize>,
}

impl HeldBytes {
    async fn is_over(&mut self) {
        let number = self.number;
        if number < *self.held.borrow() {
            self.waiting.fetch_add(1, SeqCst);
            let over = self.held.wait_for(|held| *held <= number).await.is_ok();
            assert!(over, "the proxy lives as long as its connections");
            self.waiting.fetch_sub(1, SeqCst);
        }
    }
}

async fn carry(
    client: TcpStream,
    server: TcpStream,
    weather: watch::Receiver<Weather>,
    held: HeldBytes,
    asked: &AtomicUsize,
    replied: &AtomicUsize,
) {
    // A drop of this socket resets the connection.
    client.set_zero_linger().expect("is set");
    server.set_nodelay(true).expect("is set");
    client.set_nodelay(true).expect("is set");
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = requests(from_client, to_server, weather.clone(), held, asked) => {}
        () = replies(from_server, to_client, weather, replied) => {}
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    mut held: HeldBytes,
    asked: &AtomicUsize,
) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(read @ 1..) = client.read(&mut chunk).await {
        // PostgreSQL's Sync, MySQL's COM_PING.
        let sign_of_life = matches!(&chunk[..read], [b'S', 0, 0, 0, 4] | [1, 0, 0, 0, 0x0e]);
        if !sign_of_life {
            asked.fetch_add(1, SeqCst);
        }
        held.is_over().await;
        let over = weather.wait_for(|weather| *weather != Weather::Blackout);
        if over.await.is_err() || server.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    replied: &AtomicUsize,
) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(read @ 1..) = server.read(&mut chunk).await {
        let over = weather.wait_for(|weather| *weather != Weather::Blackout);
        let now = match over.await {
            Ok(weather) => *weather,
            Err(_) => return,
        };
        let before = replied.fetch_add(1, SeqCst);
        let mut passed = read;
        match now {
            Weather::Fair | Weather::Blackout => {}
            Weather::RepliesLost { after } if before < after => {}
            Weather::Slow(delay) => tokio::time::sleep(delay).await,
            // Nothing after a gap is ever delivered.
            Weather::RepliesLost { .. } => std::future::pending().await,
            Weather::Reset => passed /= 2,
        }
        if client.write_all(&chunk[..passed]).await.is_err() || passed < read {
            return;
        }
    }
}
