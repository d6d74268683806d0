//! DNS messages on a TCP connection.

use std::io;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A message with its length before it (RFC 1035, 4.2.2); `None` once the other end has closed.
pub(super) async fn read(stream: &mut TcpStream, longest: u16) -> Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error).context("read a message"),
    };
    if length > longest {
        bail!("a message of {length} bytes; {longest} are enough for any");
    }
    let mut message = vec![0; length.into()];
    stream
        .read_exact(&mut message)
        .await
        .context("read a message")?;
    Ok(Some(message))
}

pub(super) async fn write(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let length = u16::try_from(message.len()).context("a message longer than TCP's DNS can say")?;
    let mut sent = length.to_be_bytes().to_vec();
    sent.extend_from_slice(message);
    stream.write_all(&sent).await.context("write a message")
}
