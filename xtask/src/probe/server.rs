//! Servers that stand in for what runs on an edge node.

use std::io::{self, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::bytes;

/// A port and what is served on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    port: u16,
    behaviour: Behaviour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// Sends back what it receives, and ends when the client has ended.
    Echo,
    /// Reads all, then says how much it was and its digest.
    Sink,
    /// Sends that many bytes without being asked, and closes.
    Source(u64),
    /// Speaks first: names its host; then echoes.
    Greet,
}

impl FromStr for Service {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (port, behaviour) = text.split_once('=').context("expected PORT=BEHAVIOUR")?;
        let behaviour = match behaviour.split_once(':') {
            None if behaviour == "echo" => Behaviour::Echo,
            None if behaviour == "sink" => Behaviour::Sink,
            None if behaviour == "greet" => Behaviour::Greet,
            Some(("source", bytes)) => Behaviour::Source(bytes.parse()?),
            _ => bail!("unknown behaviour {behaviour:?}"),
        };
        Ok(Self { port: port.parse()?, behaviour })
    }
}

/// Serves until it is killed.
pub(super) fn serve(services: &[Service]) -> Result<()> {
    let mut threads = Vec::new();
    for service in services.iter().copied() {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, service.port))
            .with_context(|| format!("listen on {}", service.port))?;
        threads.push(std::thread::spawn(move || {
            for client in listener.incoming().filter_map(Result::ok) {
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
            Self::Source(count) => bytes::generate(&mut client, count).map(drop),
            Self::Greet => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
                writeln!(client, "hello from {}", host.trim())?;
                echo(client)
            }
        }
    }
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
            Service { port: 9001, behaviour: Behaviour::Source(12) }
        );
        assert!("9001=nothing".parse::<Service>().is_err());
        assert!("echo".parse::<Service>().is_err());
    }
}
