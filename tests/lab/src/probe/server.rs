//! Servers that stand for programs on an edge node.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::bytes;

/// The interval between two words of a backend that never closes.
const WORD_INTERVAL: Duration = Duration::from_millis(200);

/// A port and its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    port: u16,
    behaviour: Behaviour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// Returns what it receives, and ends when the client has ended.
    Echo,
    /// Reads everything, then sends the count and the digest.
    Sink,
    /// Sends that many bytes at once, and closes.
    Source(u64),
    /// Reads everything, sends nothing, and never closes.
    Silent,
    /// Reads everything, sends a word at intervals, and never closes.
    Endless,
    /// Sends good-bye and ends its direction at once. Continues to read, and prints the count and
    /// the digest.
    Farewell,
    /// Reads a little, sends that many bytes and closes without reading the rest.
    Hasty(u64),
    /// Sends the name of its host first; then echoes.
    Greet,
    /// Forwards everything to another address, as a load balancer does.
    Forward(SocketAddr),
    /// The same, and says whose connection it is by a PROXY protocol header, version 2.
    ForwardWithHeader(SocketAddr),
    /// An HTTP forward proxy that supports only CONNECT to IP addresses.
    HttpProxy,
}

impl FromStr for Service {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (port, behaviour) = text.split_once('=').context("expected PORT=BEHAVIOUR")?;
        let behaviour = match behaviour.split_once(':') {
            None if behaviour == "echo" => Behaviour::Echo,
            None if behaviour == "sink" => Behaviour::Sink,
            None if behaviour == "greet" => Behaviour::Greet,
            None if behaviour == "silent" => Behaviour::Silent,
            None if behaviour == "endless" => Behaviour::Endless,
            None if behaviour == "farewell" => Behaviour::Farewell,
            None if behaviour == "http-proxy" => Behaviour::HttpProxy,
            Some(("forward", target)) => Behaviour::Forward(target.parse()?),
            Some(("forward-with-header", target)) => Behaviour::ForwardWithHeader(target.parse()?),
            Some(("hasty", bytes)) => Behaviour::Hasty(bytes.parse()?),
            Some(("source", bytes)) => Behaviour::Source(bytes.parse()?),
            _ => bail!("unknown behaviour {behaviour:?}"),
        };
        Ok(Self {
            port: port.parse()?,
            behaviour,
        })
    }
}

/// Serves until it is killed.
pub(super) fn serve(services: &[Service]) -> Result<()> {
    let mut threads = Vec::new();
    for service in services.iter().copied() {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, service.port))
            .with_context(|| format!("listen on {}", service.port))?;
        threads.push(std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    if let Err(error) = service.behaviour.answer(client) {
                        eprintln!("port {}: {error}", service.port);
                    }
                });
            }
        }));
    }
    println!("ready");
    io::stdout().flush()?;
    for thread in threads {
        thread.join().ok();
    }
    Ok(())
}

impl Behaviour {
    fn answer(self, mut client: TcpStream) -> io::Result<()> {
        match self {
            Self::Echo => echo(client),
            Self::Sink => {
                let received = bytes::consume(&mut client)?;
                writeln!(client, "{received}")
            }
            Self::Silent => {
                bytes::consume(&mut client)?;
                wait_for_reset(&client)
            }
            Self::Endless => {
                bytes::consume(&mut client)?;
                loop {
                    client.write_all(b"still here\n")?;
                    std::thread::sleep(WORD_INTERVAL);
                }
            }
            Self::Farewell => {
                client.write_all(b"good-bye\n")?;
                client.shutdown(Shutdown::Write)?;
                println!("read {}", bytes::consume(&mut client)?);
                io::stdout().flush()
            }
            Self::Source(count) => bytes::generate(&mut client, count).map(drop),
            Self::Hasty(count) => {
                client.read_exact(&mut [0; 1000])?;
                bytes::generate(&mut client, count).map(drop)
            }
            Self::Greet => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
                writeln!(client, "hello from {}", host.trim())?;
                echo(client)
            }
            Self::Forward(target) => relay(client, TcpStream::connect(target)?),
            Self::ForwardWithHeader(target) => {
                let mut server = TcpStream::connect(target)?;
                server.write_all(&proxy_header(client.peer_addr()?, target))?;
                relay(client, server)
            }
            Self::HttpProxy => http_proxy(client),
        }
    }
}

/// Holds a connection whose peer has ended its direction until the peer resets it.
fn wait_for_reset(client: &TcpStream) -> io::Result<()> {
    // Without requested events, only an error or the end of both directions wakes it.
    poll(
        &mut [PollFd::new(client.as_fd(), PollFlags::empty())],
        PollTimeout::NONE,
    )?;
    Ok(())
}

fn http_proxy(client: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut request = String::new();
    let mut line = String::new();
    reader.read_line(&mut request)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let Some(target) = requested_target(&request) else {
        return (&client).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    };
    (&client).write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    relay(client, TcpStream::connect(target)?)
}

/// The target in `CONNECT HOST:PORT HTTP/1.1`.
fn requested_target(request: &str) -> Option<SocketAddr> {
    let rest = request.strip_prefix("CONNECT ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The header of a connection from `client`, with both addresses as IPv6 ones.
fn proxy_header(client: SocketAddr, target: SocketAddr) -> Vec<u8> {
    let ports = [client, target].map(|address| address.port().to_be_bytes());
    [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".as_slice(),
        &octets(client.ip()),
        &octets(target.ip()),
        &ports.concat(),
    ]
    .concat()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn relay(client: TcpStream, server: TcpStream) -> io::Result<()> {
    std::thread::scope(|scope| {
        let back = scope.spawn(|| pass(&server, &client));
        pass(&client, &server)?;
        back.join().unwrap_or(Ok(()))
    })
}

fn pass(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

fn echo(client: TcpStream) -> io::Result<()> {
    io::copy(&mut &client, &mut &client)?;
    client.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_from_the_command_line() {
        assert_eq!(
            "9001=source:12".parse::<Service>().unwrap(),
            Service {
                port: 9001,
                behaviour: Behaviour::Source(12)
            }
        );
        assert!("9001=nothing".parse::<Service>().is_err());
        assert!("echo".parse::<Service>().is_err());
    }
}
