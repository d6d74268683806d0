//! The programs on an edge node beside the agent: a stock node_exporter, and an HTTPS server that
//! stands for kubelet.

use std::path::PathBuf;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use culvert_lab::Lab;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;

/// Kubelet's port.
const KUBELET: u16 = 10250;

/// The programs of one edge node. Dropping it ends them.
pub(super) struct EdgePrograms {
    exporter: Process,
    kubelet: Process,
}

impl EdgePrograms {
    /// Starts them.
    pub(super) fn start(site: &Site) -> Result<Self> {
        let mut exporter = site.command(Unpacked::NodeExporter.program());
        // Only the collector that reports the host name, which distinguishes nodes.
        exporter.args([
            "--web.listen-address=:9100",
            "--collector.disable-defaults",
            "--collector.uname",
            "--collector.loadavg",
        ]);
        let exporter = site.start_process("node_exporter", &mut exporter)?;
        Ok(Self {
            exporter,
            kubelet: start_kubelet(site)?,
        })
    }

    /// Fails if one of them has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.exporter.check()?;
        self.kubelet.check()
    }
}

/// `openssl s_server` with the node's own certificate; it serves one file.
fn start_kubelet(site: &Site) -> Result<Process> {
    let name = site.host().name();
    let folder = site.file("kubelet");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    std::fs::write(
        folder.join("healthz"),
        format!("ok, says the kubelet of {name}\n"),
    )
    .context("write the kubelet's page")?;
    let subject = format!("/O=system:nodes/CN=system:node:{name}");
    let names = format!("subjectAltName=DNS:{name},IP:{}", site.host().address());
    SelfSigned::make(&folder, "kubelet", &subject, &names)?;
    let mut command = site.command("sh");
    // s_server serves files of its working directory, which is the root directory in a new mount
    // namespace.
    command.args([
        "-c",
        r#"cd "$0" && exec openssl s_server -accept "$1" -cert kubelet.crt -key kubelet.key -WWW -quiet"#,
    ]);
    site.start_process("kubelet", command.arg(&folder).arg(KUBELET.to_string()))
}

fn certificate(lab: &Lab, host: Host) -> PathBuf {
    lab.site(host).file("kubelet/kubelet.crt")
}

/// Runs curl in the cloud. It trusts the certificate of `host` alone.
fn curl(lab: &Lab, host: Host, url: &str) -> Result<Output> {
    let mut curl = lab.site(Host::Cloud).command("curl");
    curl.args(["--silent", "--show-error", "--verbose"])
        .args(["--max-time", "10", "--cacert"])
        .arg(certificate(lab, host))
        .arg(url);
    curl.output().context("run curl")
}

/// Shows that curl sees and verifies the server's own certificate, by name and by address.
pub(super) fn show_kubelet(lab: &Lab) -> Result<()> {
    for (host, address) in [
        (Host::Edge1, "10.0.3.7"),
        (Host::Edge2, "edge-2"),
        (Host::Edge3, "edge-3"),
    ] {
        let url = format!("https://{address}:{KUBELET}/healthz");
        let done = curl(lab, host, &url)?;
        let page = String::from_utf8_lossy(&done.stdout);
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(
            done.status.success(),
            "curl {url} ended with {}: {said}",
            done.status
        );
        let subject = said
            .lines()
            .find(|line| line.contains("subject:"))
            .context("curl saw no certificate")?;
        println!(
            "\n$ curl --cacert {}.crt {url}\n    {}\n    {}",
            host.name(),
            subject.trim_start_matches(['*', ' ']),
            page.trim()
        );
        ensure!(
            page.contains(host.name()),
            "{url} was answered by another node: {page}"
        );
    }
    Ok(())
}
