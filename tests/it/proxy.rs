//! A network between a site and its server, with all that goes wrong there.

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

/// What happens to what is sent while it lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weather {
    Fair,
    /// Each reply comes this much later.
    Slow(Duration),
    /// The server does what it is told, and after so many replies nobody hears of it.
    RepliesLost {
        after: usize,
    },
    /// The connection is reset in the middle of a reply.
    Reset,
    /// Nothing gets through in either direction; what was sent arrives when it is over.
    Blackout,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    weather: watch::Sender<Weather>,
    /// The connections of lower numbers: what is asked on them arrives when they are let go.
    held: watch::Sender<usize>,
    /// How many requests are held.
    waiting: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// The replies since the weather has changed.
    replies: Arc<AtomicUsize>,
    /// What was asked in all, without signs of life.
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
        let hold = (held.clone(), Arc::clone(&waiting), Arc::clone(&connections));
        let forecast = weather.clone();
        let replies = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicUsize::new(0));
        let counters = (Arc::clone(&asked), Arc::clone(&replies));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("accepts");
                let weather = forecast.subscribe();
                let (held, waiting, connections) = &hold;
                let hold = Hold {
                    number: connections.fetch_add(1, SeqCst),
                    held: held.subscribe(),
                    waiting: Arc::clone(waiting),
                };
                let (asked, replies) = counters.clone();
                tokio::spawn(async move {
                    // A server that is away ends the client's connection.
                    if let Ok(server) = TcpStream::connect(server).await {
                        carry(client, server, weather, hold, &asked, &replies).await;
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

    /// The URL by way of this.
    pub(crate) fn url(&self, url: &str) -> String {
        let (user, rest) = url.rsplit_once('@').expect("names a user");
        let (_, database) = rest.split_once('/').expect("names a database");
        format!("{user}@{}/{database}", self.address)
    }

    /// How many times something was asked of the server: statements, and what it takes to connect and to prepare them.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// Holds what is asked on the connections that there are now, until [`let_go`](Self::let_go). New ones are carried as ever.
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

/// Holds what is asked on one connection.
struct Hold {
    number: usize,
    held: watch::Receiver<usize>,
    waiting: Arc<AtomicUsize>,
}

impl Hold {
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
    hold: Hold,
    asked: &AtomicUsize,
    replied: &AtomicUsize,
) {
    // A dropped socket is reset, as is one whose other end has been.
    client.set_zero_linger().expect("is set");
    server.set_nodelay(true).expect("is set");
    client.set_nodelay(true).expect("is set");
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = requests(from_client, to_server, weather.clone(), hold, asked) => {}
        () = replies(from_server, to_client, weather, replied) => {}
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    mut hold: Hold,
    asked: &AtomicUsize,
) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(read @ 1..) = client.read(&mut chunk).await {
        // PostgreSQL's Sync, MySQL's COM_PING.
        let sign_of_life = matches!(&chunk[..read], [b'S', 0, 0, 0, 4] | [1, 0, 0, 0, 0x0e]);
        if !sign_of_life {
            asked.fetch_add(1, SeqCst);
        }
        hold.is_over().await;
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
            // Nothing that comes after a gap is ever delivered.
            Weather::RepliesLost { .. } => std::future::pending().await,
            Weather::Reset => passed /= 2,
        }
        if client.write_all(&chunk[..passed]).await.is_err() || passed < read {
            return;
        }
    }
}
