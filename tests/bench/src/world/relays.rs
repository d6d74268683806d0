//! The relays for comparison, two processes each.

use std::path::PathBuf;

use anyhow::Result;
use culvert_lab::process::Process;

use super::{BACKENDS, Route, Starter, local, tcp};

/// The ports of the near and the far half.
const PLAIN: [u16; 2] = [8110, 8111];
const TLS: [u16; 2] = [8120, 8121];
const SIMPLE_TLS: [u16; 2] = [8122, 8123];

/// The relays, running.
pub(crate) struct Relays {
    plain: [Process; 2],
    tls: [Process; 2],
    simple_tls: [Process; 2],
}

impl Relays {
    pub(super) const PLAIN_FAR: u16 = PLAIN[1];
    pub(super) const TLS_FAR: u16 = TLS[1];

    pub(super) fn start(starter: &Starter<'_>) -> Result<Self> {
        let certificate = Self::certificate(starter);
        let plain_far = far(starter, "plain-far", PLAIN[1], BACKENDS[0], None)?;
        let tls_far = far(starter, "tls-far", TLS[1], BACKENDS[0], Some(&certificate))?;
        let plain_near = near(starter, "plain-near", PLAIN[0], &local(PLAIN[1]), None)?;
        let tls_near = near(
            starter,
            "tls-near",
            TLS[0],
            &local(TLS[1]),
            Some(&certificate),
        )?;
        Ok(Self {
            plain: [plain_near, plain_far],
            tls: [tls_near, tls_far],
            simple_tls: simple_tls(starter)?,
        })
    }

    pub(super) fn check(&mut self) -> Result<()> {
        self.plain
            .iter_mut()
            .chain(&mut self.tls)
            .chain(&mut self.simple_tls)
            .try_for_each(Process::check)
    }

    pub(super) fn plain(&self) -> Route {
        Route {
            endpoint: tcp(PLAIN[0]),
            pids: self.plain.iter().map(Process::pid).collect(),
        }
    }

    pub(super) fn tls(&self) -> Route {
        Route {
            endpoint: tcp(TLS[0]),
            pids: self.tls.iter().map(Process::pid).collect(),
        }
    }

    pub(super) fn simple_tls(&self) -> Route {
        Route {
            endpoint: tcp(SIMPLE_TLS[0]),
            pids: self.simple_tls.iter().map(Process::pid).collect(),
        }
    }

    /// The process ids of the far halves of the plain and the TLS relay.
    pub(super) fn far_pids(&self) -> [u32; 2] {
        [self.plain[1].pid(), self.tls[1].pid()]
    }

    /// The certificate that the near half of the TLS relay trusts.
    pub(crate) fn certificate(starter: &Starter<'_>) -> PathBuf {
        starter.site.file("relay.der")
    }
}

/// Starts a near half that listens on that port of the loopback, and reaches its far half.
pub(crate) fn near(
    starter: &Starter<'_>,
    name: &str,
    port: u16,
    far: &str,
    certificate: Option<&PathBuf>,
) -> Result<Process> {
    let words = ["relay-near", "--listen", &local(port), "--far", far].map(str::to_owned);
    starter.worker(name, port, &with_certificate(words.to_vec(), certificate))
}

/// Starts a far half that listens on that port of its host, and reaches a backend on a port of the
/// loopback.
pub(crate) fn far(
    starter: &Starter<'_>,
    name: &str,
    port: u16,
    backend: u16,
    certificate: Option<&PathBuf>,
) -> Result<Process> {
    let listen = format!("0.0.0.0:{port}");
    let backend = local(backend);
    let words = ["relay-far", "--listen", &listen, "--backend", &backend].map(str::to_owned);
    starter.worker(name, port, &with_certificate(words.to_vec(), certificate))
}

fn simple_tls(starter: &Starter<'_>) -> Result<[Process; 2]> {
    let certificate = starter.file("simple-relay.der");
    let [near, far] = SIMPLE_TLS;
    let [near_at, far_at, backend] = [near, far, BACKENDS[0]].map(local);
    let simple = ["--simple", "--certificate", &certificate];
    let of_far = ["relay-far", "--listen", &far_at, "--backend", &backend];
    let of_near = ["relay-near", "--listen", &near_at, "--far", &far_at];
    let far = starter.worker("simple-tls-far", far, &joined(&of_far, &simple))?;
    let near = starter.worker("simple-tls-near", near, &joined(&of_near, &simple))?;
    Ok([near, far])
}

fn joined(some: &[&str], more: &[&str]) -> Vec<String> {
    let all = some.iter().chain(more);
    all.map(|word| (*word).to_owned()).collect()
}

fn with_certificate(mut words: Vec<String>, certificate: Option<&PathBuf>) -> Vec<String> {
    if let Some(path) = certificate {
        words.extend(["--certificate".to_owned(), path.display().to_string()]);
    }
    words
}
