//! Sockets of this process in a host's network namespace. They belong to no host's cgroup, so no
//! connect hook sees them. Use them for admin pages and for forwarding, never for a client under
//! test.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};

use crate::wait::PATIENCE;

/// Runs `work` on a thread inside a network namespace.
///
/// # Errors
/// The namespace cannot be entered, or `work` fails.
pub fn run<T: Send>(netns: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = File::open(netns).with_context(|| format!("open {}", netns.display()))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).context("enter the network namespace")?;
            work()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the thread inside {} panicked", netns.display())))
    })
}

/// The body of the answer to a request (`GET /readyz`) on the namespace's loopback.
///
/// # Errors
/// No answer comes in time, or its status is not a success; the error contains status and body.
pub fn http(netns: &Path, port: u16, request: &str, body: &str) -> Result<String> {
    let answer = run(netns, || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nConnection: \
             close\r\n\r\n{body}"
        )?;
        let mut answer = Vec::new();
        stream
            .read_to_end(&mut answer)
            .with_context(|| format!("read the answer to {request} from {address}"))?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    })?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("the answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    let body = if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        unchunk(body)
    } else {
        body.to_owned()
    };
    ensure!(
        status.starts_with("HTTP/1.1 2"),
        "{request}: {status}: {}",
        body.trim()
    );
    Ok(body)
}

fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        match after.get(..size) {
            None | Some("") => break,
            Some(chunk) => body.push_str(chunk),
        }
        rest = after.get(size + 2..).unwrap_or_default();
    }
    body
}

/// Makes a port of the namespace's loopback reachable on this machine's loopback, until the process
/// ends.
///
/// # Errors
/// The port is in use here.
pub fn forward(local_port: u16, netns: PathBuf, port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, local_port))
        .with_context(|| format!("listen on 127.0.0.1:{local_port}"))?;
    std::thread::Builder::new()
        .name("forward".into())
        .spawn(move || {
            for client in listener.incoming().flatten() {
                let netns = netns.clone();
                std::thread::spawn(move || relay(client, &netns, port));
            }
        })?;
    Ok(())
}

fn relay(client: TcpStream, netns: &Path, port: u16) {
    let Ok(server) = run(netns, || {
        Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)
    }) else {
        return;
    };
    let Ok(client_too) = client.try_clone() else {
        return;
    };
    let Ok(server_too) = server.try_clone() else {
        return;
    };
    let back = std::thread::spawn(move || copy(server_too, client_too));
    copy(client, server);
    back.join().ok();
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // A copy ends its direction when its reader or writer closes; there is nothing to report.
    std::io::copy(&mut from, &mut to).ok();
    to.shutdown(std::net::Shutdown::Write).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_joined() {
        assert_eq!(unchunk("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), "abcde");
    }
}
