//! An echo server with one task per connection, whose buffer exists only while bytes move.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(clap::Args)]
pub(crate) struct Args {
    port: u16,
}

pub(crate) async fn run(args: &Args) -> Result<()> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))?;
    crate::ready()?;
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        connections.spawn(echo(client));
        while connections.try_join_next().is_some() {}
    }
}

/// Returns what it receives until the client ends.
pub(crate) async fn echo(mut client: TcpStream) -> io::Result<()> {
    loop {
        client.readable().await?;
        let piece = match read(&client) {
            Ok(piece) if piece.is_empty() => return client.shutdown().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            piece => piece?,
        };
        client.write_all(&piece).await?;
    }
}

fn read(client: &TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 16 << 10];
    let count = client.try_read(&mut buffer)?;
    Ok(buffer[..count].to_vec())
}
