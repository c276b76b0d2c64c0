//! The network between a process and its database, which a soak cuts or stops.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    select,
    sync::watch,
};

use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// Connections are closed, and no new one is made.
    Cut,
    /// What is sent does not arrive, before the wire is open again.
    Silent,
}

pub(super) struct Wire {
    pub(super) address: SocketAddr,
    state: watch::Sender<State>,
}

impl Wire {
    /// Opens a port of this machine whose connections go to another one.
    pub(super) async fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (state, changes) = watch::channel(State::Open);
        tokio::spawn(async move {
            while let Ok((visitor, _)) = listener.accept().await {
                tokio::spawn(carry(visitor, port, changes.clone()));
            }
        });
        Ok(Self { address, state })
    }

    pub(super) fn is(&self, state: State) {
        self.state.send_replace(state);
    }
}

/// Carries a connection, until it is closed or cut.
async fn carry(mut visitor: TcpStream, port: u16, mut state: watch::Receiver<State>) {
    let carried = async {
        let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
        copy_bidirectional(&mut visitor, &mut server).await
    };
    tokio::pin!(carried);
    loop {
        // A new connection may begin while the wire is cut or silent.
        let now = *state.borrow_and_update();
        let changed = match now {
            State::Cut => return,
            State::Silent => state.changed().await,
            State::Open => select! {
                _ = &mut carried => return,
                changed = state.changed() => changed,
            },
        };
        if changed.is_err() {
            return;
        }
    }
}
