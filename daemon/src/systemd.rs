//! Reports to systemd, if it started the process with `Type=notify` (sd_notify(3)): ready, alive,
//! stopping, and what is missing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::{Drain, Readiness, chain};

/// After this time a process reports that it has started although it is not ready. A host whose
/// peer is away must boot, and systemd would kill the process after 90 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the status line is updated without a watchdog.
const STATUS: Duration = Duration::from_secs(5);

/// Reports until the process ends; without systemd it only waits. `without` names gates for which
/// the start does not wait.
///
/// # Errors
/// None: a report that cannot be sent is logged.
pub async fn report_to_systemd(
    readiness: Readiness,
    without: &'static [&'static str],
    drain: Drain,
) -> Result<()> {
    let Some(systemd) = Systemd::from_environment(|name| std::env::var_os(name)) else {
        return std::future::pending().await;
    };
    systemd.report(&readiness, without, &drain).await
}

/// The socket of systemd at a path, and an own one that never blocks.
fn open(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = address(path)?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Half of the limit, as sd_watchdog_enabled(3) recommends.
fn watchdog_interval(limit: Option<OsString>) -> Option<Duration> {
    let limit = limit?.to_str()?.parse().ok()?;
    if limit == 0 {
        return None;
    }
    Some(Duration::from_micros(limit) / 2)
}

/// The connection to systemd.
struct Systemd {
    socket: UnixDatagram,
    address: SocketAddr,
    /// The interval at which systemd expects reports that the process is alive.
    watchdog: Option<Duration>,
    patience: Duration,
}

impl Systemd {
    fn from_environment(read: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let path = read("NOTIFY_SOCKET")?;
        if path.is_empty() {
            return None;
        }
        let (socket, address) = match open(&path) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(?path, error = chain(&error), "open NOTIFY_SOCKET");
                return None;
            }
        };
        Some(Self {
            socket,
            address,
            watchdog: watchdog_interval(read("WATCHDOG_USEC")),
            patience: PATIENCE,
        })
    }

    async fn report(&self, readiness: &Readiness, without: &[&str], drain: &Drain) -> ! {
        let started = readiness.ready_without(without);
        tokio::select! {
            () = started => {}
            () = tokio::time::sleep(self.patience) => {}
            () = drain.leaving() => {}
        }
        self.send("READY=1");
        let mut said = String::new();
        let mut due = Instant::now();
        while !drain.is_leaving() {
            let status = status(readiness);
            if status != said {
                self.send(&format!("STATUS={status}"));
                said = status;
            }
            if self.watchdog.is_some() {
                self.send("WATCHDOG=1");
            }
            due += self.watchdog.unwrap_or(STATUS).min(STATUS);
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = drain.leaving() => {}
            }
        }
        self.send("STOPPING=1");
        loop {
            // A drain may take longer than the watchdog's limit.
            tokio::time::sleep(self.watchdog.unwrap_or(STATUS)).await;
            if self.watchdog.is_some() {
                self.send("WATCHDOG=1");
            }
        }
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            tracing::warn!(message, error = chain(&error), "report to systemd");
        }
    }
}

/// A path, or an abstract name (`@name`).
fn address(path: &OsStr) -> io::Result<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

/// One line, as `systemctl status` shows it.
fn status(readiness: &Readiness) -> String {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ready".to_owned();
    }
    let reasons: Vec<_> = missing
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    format!("not ready: {}", reasons.join("; ").replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    struct Heard(tokio::net::UnixDatagram);

    impl Heard {
        async fn next(&self) -> String {
            let mut message = [0; 256];
            let length = self.0.recv(&mut message).await.unwrap();
            String::from_utf8(message[..length].into()).unwrap()
        }
    }

    /// Runs a process that reports to a socket of this name, with a watchdog, while `test` listens.
    async fn with_systemd(
        name: &str,
        patience: Duration,
        test: impl AsyncFnOnce(Heard, Readiness, Drain),
    ) {
        let socket = UnixDatagram::bind_addr(&address(name.as_ref()).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = Heard(tokio::net::UnixDatagram::from_std(socket).unwrap());
        let environment = |wanted: &str| match wanted {
            "NOTIFY_SOCKET" => Some(name.into()),
            "WATCHDOG_USEC" => Some("2000000".into()),
            _ => None,
        };
        let readiness = Readiness::default();
        let drain = Drain::default();
        let systemd = Systemd {
            patience,
            ..Systemd::from_environment(environment).unwrap()
        };
        tokio::select! {
            // First, so that its gates exist before anything is reported.
            biased;
            () = test(socket, readiness.clone(), drain.clone()) => {}
            _never = systemd.report(&readiness, &["directory"], &drain) => unreachable!(),
        }
    }

    #[tokio::test]
    async fn systemd_hears_that_a_process_is_ready_once_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        with_systemd(
            path.to_str().unwrap(),
            PATIENCE,
            async |heard, readiness, drain| {
                let hooks = readiness.gate("hooks");
                let directory = readiness.gate("directory");
                for _turn in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert!(
                    heard.0.try_recv(&mut [0; 9]).is_err(),
                    "nothing is reported before"
                );
                hooks.open();
                assert_eq!(heard.next().await, "READY=1");
                assert_eq!(
                    heard.next().await,
                    "STATUS=not ready: directory: not there yet"
                );
                assert_eq!(heard.next().await, "WATCHDOG=1");
                directory.open();
                assert_eq!(heard.next().await, "STATUS=ready");
                drain.start();
                while heard.next().await != "STOPPING=1" {}
                assert_eq!(heard.next().await, "WATCHDOG=1", "a drain is alive too");
            },
        )
        .await;
    }

    #[tokio::test]
    async fn a_process_that_does_not_get_ready_counts_as_started_after_a_while() {
        let name = format!("@culvert-late-{}", std::process::id());
        with_systemd(&name, SHORT, async |heard, readiness, _drain| {
            let _missing = readiness.gate("tunnel");
            let before = Instant::now();
            assert_eq!(heard.next().await, "READY=1");
            assert!(before.elapsed() >= SHORT);
            assert_eq!(
                heard.next().await,
                "STATUS=not ready: tunnel: not there yet"
            );
        })
        .await;
    }

    #[test]
    fn without_systemd_there_is_nobody_to_report_to() {
        assert!(Systemd::from_environment(|_name| None).is_none());
        assert!(Systemd::from_environment(|_name| Some("".into())).is_none());
    }
}
