//! How clients with many connections reach a node: steered by the kernel, or by HTTP CONNECT on a
//! Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

/// The expected node of an address that several nodes have.
const NOBODY: &str = "nobody";

/// `HOST=NODE`, or `SOCKET,HOST=NODE` for a CONNECT socket. `NODE` must answer; `nobody` means that
/// no node may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The text of the argument.
    pub(crate) text: String,
    socket: Option<PathBuf>,
    host: String,
    /// The node that must answer; `None` if no node may.
    pub(crate) node: Option<String>,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, node) = text
            .split_once('=')
            .context("expected [SOCKET,]HOST=NODE")?;
        let (socket, host) = match address.split_once(',') {
            Some((socket, host)) => (Some(socket.into()), host),
            None => (None, address),
        };
        let node = (node != NOBODY).then(|| node.to_owned());
        Ok(Self {
            text: text.to_owned(),
            socket,
            host: host.to_owned(),
            node,
        })
    }
}

/// How a client closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With FIN; it reads no further.
    Fin,
    /// With RST.
    Rst,
}

/// A client's connection, with a deadline for everything on it.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    deadline: Instant,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Target {
    /// Connects to a port of the host. The connect and everything on the connection must be done
    /// within `patience`.
    pub(crate) fn connect(&self, port: u16, patience: Duration) -> io::Result<Client> {
        let mut client = self.open(port, patience)?;
        if let Stream::Unix(_) = client.stream {
            let head = client.head()?;
            if !head.starts_with("HTTP/1.1 200 ") {
                let status = head.lines().next().unwrap_or_default().to_owned();
                return Err(io::Error::new(ErrorKind::ConnectionRefused, status));
            }
        }
        Ok(client)
    }

    /// The same without waiting for the answer to a CONNECT request.
    pub(crate) fn open(&self, port: u16, patience: Duration) -> io::Result<Client> {
        let deadline = Instant::now() + patience;
        let target = format!("{}:{port}", self.host);
        let Some(socket) = &self.socket else {
            let address = target
                .to_socket_addrs()?
                .next()
                .ok_or_else(|| io::Error::other("the name has no address"))?;
            let stream = TcpStream::connect_timeout(&address, patience)?;
            return Ok(Client {
                stream: Stream::Tcp(stream),
                deadline,
            });
        };
        let mut client = Client {
            stream: Stream::Unix(UnixStream::connect(socket)?),
            deadline,
        };
        write!(
            client,
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        )?;
        Ok(client)
    }
}

impl Client {
    /// Reads up to the first empty line.
    fn head(&mut self) -> io::Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.byte()?);
        }
        Ok(String::from_utf8_lossy(&head).into_owned())
    }

    /// The next line, without its line end.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
                byte => line.push(byte),
            }
        }
    }

    /// Reads single bytes, because the bytes after a head or line must stay unread. Heads and lines
    /// are short.
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Sends a message and reads the same one back.
    pub(crate) fn echo(&mut self, message: &[u8]) -> io::Result<()> {
        self.write_all(message)?;
        let mut answer = vec![0; message.len()];
        self.read_exact(&mut answer)?;
        if answer == message {
            Ok(())
        } else {
            Err(io::Error::new(
                ErrorKind::InvalidData,
                "another message came back",
            ))
        }
    }

    /// Ends in order: ends its direction, and reads to the peer's end.
    pub(crate) fn end(mut self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write)?,
        }
        match self.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::Error::new(
                ErrorKind::InvalidData,
                "more came back than was sent",
            )),
        }
    }

    /// Ends the connection without reading the rest.
    pub(crate) fn leave(self, leave: Leave) -> io::Result<()> {
        match (&self.stream, leave) {
            // With a linger time of zero, closing sends a reset.
            (Stream::Tcp(stream), Leave::Rst) => setsockopt(
                stream,
                sockopt::Linger,
                &linger {
                    l_onoff: 1,
                    l_linger: 0,
                },
            )
            .map_err(io::Error::from),
            (Stream::Tcp(stream), Leave::Fin) => stream.shutdown(Shutdown::Write),
            // A Unix socket has no RST: its peer sees a reset if bytes are left unread.
            (Stream::Unix(_), Leave::Rst) => Ok(()),
            (Stream::Unix(stream), Leave::Fin) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Limits the next wait to the deadline.
    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match &self.stream {
            Stream::Tcp(stream) => stream
                .set_read_timeout(Some(left))
                .and(stream.set_write_timeout(Some(left))),
            Stream::Unix(stream) => stream
                .set_read_timeout(Some(left))
                .and(stream.set_write_timeout(Some(left))),
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_from_the_command_line() {
        let target: Target = "/run/connect.sock,[fd00::1]=edge-2".parse().unwrap();
        assert_eq!(
            (target.socket, target.host.as_str()),
            (Some("/run/connect.sock".into()), "[fd00::1]")
        );
        assert_eq!(target.node.as_deref(), Some("edge-2"));
        assert_eq!("192.168.1.10=nobody".parse::<Target>().unwrap().node, None);
        assert!("edge-1".parse::<Target>().is_err());
    }
}
