//! Serves a stored page by hyper on port 3000, and by poem on port 3001:
//! cargo run -p frameworks

use std::time::Duration;

use frameworks::{best_sellers, poem_site, serve_by_hyper};
use perennial::{Perennial, Refresh};
use poem::{Server, listener::TcpListener};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let site = Perennial::open("sqlite://frameworks.db").await?;
    let policy = Refresh::every(Duration::from_secs(10));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://127.0.0.1:3000/best-sellers and http://127.0.0.1:3001/best-sellers");
    let by_hyper = serve_by_hyper(listener, best_sellers(&site, &policy));
    let by_poem = Server::new(TcpListener::bind("127.0.0.1:3001"));
    let by_poem = by_poem.run(poem_site(best_sellers(&site, &policy)));
    tokio::try_join!(by_hyper, by_poem)?;
    Ok(())
}
