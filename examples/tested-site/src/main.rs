//! `cargo run -p tested-site`, then `curl -i http://127.0.0.1:3000/books` twice: the second answer
//! is a hit.

use perennial::Perennial;
use tested_site::{Shop, app};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    // With `read_own_writes`, the author of a book sees the new list even when another process
    // answers.
    let builder = Perennial::builder().read_own_writes();
    let site = builder.open("sqlite://tested-site.db").await?;
    let app = app(&site, Shop::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/books", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    site.shutdown().await;
    Ok(())
}
