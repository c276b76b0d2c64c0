//! The bank: numbers the contents, and makes payments. It is outside of the cluster, so that it
//! loses nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use axum::{
    Router,
    extract::{Path, State},
    routing::{get, post},
};
use tokio::net::TcpListener;

use crate::{Result, history::Fact, record::Recorder};

struct Bank {
    numbers: AtomicU64,
    charges: AtomicU64,
    recorder: Recorder,
}

/// Opens the bank, and returns its address.
pub(crate) async fn open(recorder: Recorder) -> Result<SocketAddr> {
    let bank = Bank {
        numbers: AtomicU64::new(1),
        charges: AtomicU64::new(1),
        recorder,
    };
    let number =
        async |State(bank): State<Arc<Bank>>| bank.numbers.fetch_add(1, SeqCst).to_string();
    let charge = async |State(bank): State<Arc<Bank>>, Path(payment): Path<String>| {
        bank.recorder.note(&Fact::Charged { payment });
        format!("charge {}", bank.charges.fetch_add(1, SeqCst))
    };
    let app = Router::new()
        .route("/number", get(number))
        .route("/charge/{payment}", post(charge))
        .with_state(Arc::new(bank));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}
