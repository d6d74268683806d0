//! What a real systemd on a cloud host does beside Culvert: filters of units, nftables.service, and
//! networkd.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, inside, workspace};
use serde_json::Value;

use crate::machine::{Machine, with_lab};

/// A unit that may send only to what `$1` names asks the exporter of edge-1.
const ASK: &str = r#"
systemd-run --quiet --pipe --wait --collect --property=IPAddressDeny=any \
  --property="IPAddressAllow=$allowed" \
  curl --silent --output /dev/null --write-out '%{http_code}' --max-time 5 http://10.0.3.7:9100/ || true
"#;
/// As Debian has it, with a rule of the administrator's.
const FIREWALL: &str = r#"
cat >/etc/nftables.conf <<'END'
flush ruleset
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct state established,related accept
    ct status dnat accept
    tcp dport { 22, 7400 } accept
  }
}
END
"#;
/// Who dials while the rules are not back yet is not answered.
const DEADLINE: Duration = Duration::from_secs(3);
/// A port of edge-1 that sends back what it gets.
const ECHO: u16 = 9001;
/// A file for whatever there is, in which networkd is told to manage the interface too.
const CATCH_ALL: &str = r#"
mkdir -p /run/systemd/network
printf '[Match]\nName=cul*\n[Network]\nLinkLocalAddressing=no\n' >/run/systemd/network/10-all.network
systemctl start systemd-networkd
"#;
/// What the package has.
const LEFT_ALONE: &str = r#"
printf '%s' "$file" >/run/systemd/network/05-culvert.network
systemctl restart systemd-networkd
"#;

/// Culvert in a lab, and a machine with systemd in the place of the cloud host.
struct Cloud<'lab> {
    lab: &'lab Lab,
    machine: Machine,
    culvert: Culvert<'lab>,
    _servers: [Process; 2],
}

impl<'lab> Cloud<'lab> {
    fn start(lab: &'lab Lab) -> Result<Self> {
        let edge = lab.site(Host::Edge1);
        let mut exporter = edge.command(Unpacked::NodeExporter.program());
        exporter.args(["--collector.disable-defaults", "--collector.uname"]);
        let exporter = edge.start_process("exporter", &mut exporter)?;
        wait::until("the exporter listens", PATIENCE, || {
            edge.http_get(9100, "/metrics").map(drop)
        })?;
        let mut echo = edge.command(workspace::binary("xtask"));
        echo.args(["probe", "serve", &format!("{ECHO}=echo")]);
        let echo = edge.start_process("echo", &mut echo)?;
        let options = Options {
            ports: vec![ECHO],
            ..Options::default()
        };
        let culvert = Culvert::start(lab, &[Host::Edge1], options)?;
        let machine = Machine::boot(lab.site(Host::Cloud))?;
        Ok(Self {
            lab,
            machine,
            culvert,
            _servers: [exporter, echo],
        })
    }

    /// The status of the answer, `000` without one.
    fn ask(&self, allowed: &str) -> Result<String> {
        self.machine.run(&format!("allowed='{allowed}'\n{ASK}"))
    }
}

/// A connection to the echo that nftables steers: this process is in no cgroup of the lab.
struct Stream(TcpStream);

impl Stream {
    fn open(netns: &Path) -> Result<Self> {
        let echo: SocketAddr = format!("10.0.3.7:{ECHO}").parse()?;
        let socket = inside::run(netns, || Ok(TcpStream::connect_timeout(&echo, DEADLINE)?))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    fn exchange(&mut self) -> Result<()> {
        self.0.write_all(b"?")?;
        self.0.read_exact(&mut [0])?;
        Ok(())
    }
}

fn in_the_cloud(test: impl FnOnce(&Cloud<'_>) -> Result<()>) {
    with_lab(|lab| test(&Cloud::start(lab)?));
}

/// The filter sees the loopback address that the hook leads to, and not the edge's.
#[test]
fn a_unit_with_ip_address_deny_needs_the_addresses_that_it_is_steered_to_and_check_counts_it() {
    in_the_cloud(|cloud| {
        wait::until("a unit that may send to both is served", PATIENCE, || {
            let status = cloud.ask("10.0.3.7 127.64.0.0/10")?;
            ensure!(status == "200", "{status}");
            Ok(())
        })?;
        for (allowed, expected) in [
            ("10.0.3.7", "000"),
            ("127.64.0.0/10", "200"),
            ("localhost", "200"),
            ("127.0.0.1", "000"),
        ] {
            let status = cloud.ask(allowed)?;
            ensure!(status == expected, "with {allowed}: {status}");
        }
        let mut check = cloud.culvert.control(&["check", "-o", "json"]);
        let checked: Value = serde_json::from_slice(&check.output()?.stdout)?;
        let rows = checked["hosts"][0]["checks"]
            .as_array()
            .context("no checks")?;
        let row = rows.iter().find(|row| row["check"] == "firewall");
        let row = row.context("no such row")?;
        ensure!(row["verdict"] == "warning", "{row}");
        Ok(())
    });
}

/// The unit flushes all rules when it is started, reloaded, restarted and stopped.
#[test]
fn streams_that_nftables_steers_outlive_the_nftables_unit_and_new_ones_are_made_soon() {
    in_the_cloud(|cloud| {
        let pod = cloud.lab.add_pod()?;
        let host = cloud.lab.site(Host::Cloud).netns();
        let mut streams = Vec::new();
        for netns in [&*pod, host] {
            streams.push(wait::until("a stream is steered", PATIENCE, || {
                let mut stream = Stream::open(netns)?;
                stream.exchange()?;
                Ok(stream)
            })?);
        }
        cloud.machine.run(FIREWALL)?;
        for action in ["start", "reload", "restart", "stop"] {
            cloud.machine.run(&format!("systemctl {action} nftables"))?;
            for stream in &mut streams {
                stream.exchange().with_context(|| action.to_owned())?;
            }
            for netns in [&*pod, host] {
                wait::until("a new stream is steered", PATIENCE, || {
                    Stream::open(netns)?.exchange()
                })
                .with_context(|| action.to_owned())?;
            }
        }
        Ok(())
    });
}

#[test]
fn networkd_with_a_file_for_all_interfaces_leaves_the_redirectors_alone_by_the_packages_file() {
    in_the_cloud(|cloud| {
        cloud.machine.run(CATCH_ALL)?;
        wait::until("networkd takes it without the file", PATIENCE, || {
            let state = cloud.machine.run("networkctl --no-legend list culvert0")?;
            ensure!(
                !state.contains("unmanaged") && !state.contains("pending"),
                "{state}"
            );
            Ok(())
        })?;
        let file = workspace::root().join("deploy/network/culvert.network");
        let file = std::fs::read_to_string(file)?;
        cloud.machine.run(&format!("file='{file}'\n{LEFT_ALONE}"))?;
        wait::until("networkd leaves it alone", PATIENCE, || {
            let state = cloud.machine.run("networkctl --no-legend list culvert0")?;
            ensure!(state.contains("unmanaged"), "{state}");
            let routes = cloud.machine.run("ip route show table local")?;
            ensure!(routes.contains("198.18.0.0/15 dev culvert0"), "{routes}");
            Ok(())
        })
    });
}
