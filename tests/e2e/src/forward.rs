//! `kubectl port-forward`, and a large download through it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::MASTER;
use crate::command::{Finished, Running, finish};
use crate::pods;
use crate::world::World;

/// The large file.
pub(super) const BIG: Page = Page {
    name: "big",
    megabytes: 200,
};

/// A file for downloads of a bounded time. It needs little processor time for each second, so that
/// it takes no longer on a busy machine.
pub(super) const STEADY: Page = Page {
    name: "steady",
    megabytes: 30,
};

/// A file that a pod serves.
#[derive(Clone, Copy)]
pub(super) struct Page {
    name: &'static str,
    megabytes: usize,
}

/// Time for 200 MB on two busy cores, with or without a rate limit. It is more than any limit
/// causes.
const DOWNLOAD_TIME: Duration = Duration::from_secs(180);

/// Proves a page and a download from the pod on a node.
pub(super) fn prove(world: &mut World, node: &str) -> Result<()> {
    let forward = world.claim(
        &format!("kubectl port-forward to {node}: a page over HTTP"),
        |world| {
            let forward = Forward::open(world, &format!("forward-{node}"), node)?;
            let page = world.cluster.on(
                MASTER,
                &[
                    "curl",
                    "--silent",
                    "--show-error",
                    "--fail",
                    &forward.url("page"),
                ],
            )?;
            ensure!(page == format!("page of {node}\n"), "another page: {page}");
            Ok(forward)
        },
    )?;
    world.claim_once(
        &format!(
            "kubectl port-forward to {node}: {} MB with the same SHA-256",
            BIG.megabytes
        ),
        |world| {
            let expected = make_file(world, node, BIG)?;
            let mut download = world.cluster.enter(MASTER, "bash");
            download.args(["-c", DOWNLOAD, &forward.url(BIG.name)]);
            check_digest(finish(&mut download, DOWNLOAD_TIME)?, &expected)
        },
    )
}

/// Downloads slowly until its standard input ends.
const SLOW_DOWNLOAD: &str = include_str!("download.py");

/// Prints the digest of what curl received, and fails if curl does.
const DOWNLOAD: &str =
    r#"set -o pipefail; curl --silent --show-error --fail "$0" "$@" | sha256sum"#;

/// A port on the master's loopback that is forwarded to a pod.
pub(super) struct Forward {
    _running: Running,
    port: u16,
}

impl Forward {
    /// Starts forwarding, and waits until the port is open.
    pub(super) fn open(world: &World, what: &str, node: &str) -> Result<Self> {
        let target = format!("pod/{}", pods::name(node));
        let mut running = world.start_shop(
            what,
            &[
                "port-forward",
                "--address",
                "127.0.0.1",
                &target,
                &format!(":{}", pods::HTTP),
            ],
        )?;
        let port = running.wait_until("a port", Duration::from_secs(20), port_of)?;
        Ok(Self {
            _running: running,
            port,
        })
    }

    fn url(&self, page: &str) -> String {
        format!("http://127.0.0.1:{}/{page}", self.port)
    }

    /// Starts to download [`STEADY`], which must exist. The download takes at least `seconds`.
    pub(super) fn download(&self, world: &World, what: &str, seconds: usize) -> Result<Running> {
        let rate = format!("{}M", STEADY.megabytes / seconds);
        let mut command = world.cluster.enter(MASTER, "bash");
        command.args(["-c", DOWNLOAD, &self.url(STEADY.name)]);
        command.args(["--limit-rate", &rate]);
        Running::start(world.folder(), what, &mut command)
    }

    /// Starts to download [`BIG`], which must exist, and goes on until
    /// [`finish_download`].
    pub(super) fn slow_download(&self, world: &World, what: &str) -> Result<Running> {
        let script = world.file("download.py");
        std::fs::write(&script, SLOW_DOWNLOAD)
            .with_context(|| format!("write {}", script.display()))?;
        let mut python = world.cluster.enter(MASTER, "python3");
        python.arg(&script).arg(self.url(BIG.name));
        Running::start(world.folder(), what, &mut python)
    }
}

/// Waits for the end of a download and compares its digest with that of the file.
pub(super) fn finish_download(download: Running, expected: &str) -> Result<()> {
    check_digest(download.end(DOWNLOAD_TIME)?, expected)
}

fn check_digest(done: Finished, expected: &str) -> Result<()> {
    let said = done.success().context("download")?;
    ensure!(
        said.split_whitespace().next() == Some(expected),
        "its digest is {said}, that of what is there {expected}"
    );
    Ok(())
}

/// Makes the file in the pod on a node, if it does not exist, and returns its digest.
pub(super) fn make_file(world: &World, node: &str, page: Page) -> Result<String> {
    let Page { name, megabytes } = page;
    let script = format!(
        "cd /www && [ -s {name} ] || dd if=/dev/urandom of={name} bs=1M count={megabytes} \
         2>/dev/null; sha256sum < {name}"
    );
    let said = world.shop_within(
        DOWNLOAD_TIME,
        &["exec", &pods::name(node), "--", "sh", "-c", &script],
    )?;
    said.split_whitespace()
        .next()
        .map(str::to_owned)
        .context("sha256sum said nothing")
}

/// Parses `Forwarding from 127.0.0.1:41234 -> 8080`.
fn port_of(said: &str) -> Result<u16> {
    let after = said.split("127.0.0.1:").nth(1).context("no port yet")?;
    let port = after.split_whitespace().next().unwrap_or_default();
    port.parse().ok().context("no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_port_is_found_in_what_kubectl_says() {
        assert_eq!(
            port_of("Forwarding from 127.0.0.1:41234 -> 8080\n").unwrap(),
            41234
        );
        assert!(port_of("error: lost").is_err());
    }
}
