//! What a real systemd on a cloud host does beside Culvert: filters of units, and networkd.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, skip, workspace};
use serde_json::Value;

use crate::machine::Machine;

/// A unit that may send only to what `$1` names asks the exporter of edge-1.
const ASK: &str = r#"
systemd-run --quiet --pipe --wait --collect --property=IPAddressDeny=any \
  --property="IPAddressAllow=$allowed" \
  curl --silent --output /dev/null --write-out '%{http_code}' --max-time 5 http://10.0.3.7:9100/ || true
"#;
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
    machine: Machine,
    culvert: Culvert<'lab>,
    _exporter: Process,
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
        let culvert = Culvert::start(lab, &[Host::Edge1], Options::default())?;
        let machine = Machine::boot(lab.site(Host::Cloud))?;
        Ok(Self {
            machine,
            culvert,
            _exporter: exporter,
        })
    }

    /// The status of the answer, `000` without one.
    fn ask(&self, allowed: &str) -> Result<String> {
        self.machine.run(&format!("allowed='{allowed}'\n{ASK}"))
    }
}

fn in_the_cloud(test: impl FnOnce(&Cloud<'_>) -> Result<()>) {
    if !skip::may_make_labs() {
        return;
    }
    let lab = Lab::start_test().expect("the lab");
    // The panic must happen while the lab is up, so that its logs are shown.
    if let Err(error) = Cloud::start(&lab).and_then(|cloud| test(&cloud)) {
        panic!("{error:#}");
    }
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
