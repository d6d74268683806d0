//! What `check` says of firewalls on the cloud host, real ones: it judges by what the last minutes'
//! connections met, so that a firewall is named while it drops, and no longer once it is repaired.

mod firewalld;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use serde_json::Value;

use crate::world::{self, ECHO, World, xtask};
use firewalld::Firewalld;

const EDGE: &[Host] = &[Host::Edge1];
/// What `check` looks back at, and more.
const FORGOTTEN: Duration = Duration::from_secs(200);
/// `nobody`.
const USER: &str = "65534";

#[test]
fn a_filter_of_iptables_legacy_is_found_by_what_it_drops_and_forgotten_once_it_is_mended() {
    world::with(EDGE, Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        verdict(world, "ok", &[])?;
        // nft lists none of it; the kernel has the names of its tables.
        for rule in [
            "-A INPUT -i lo -j ACCEPT",
            "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-A INPUT -p tcp --dport 7400 -j ACCEPT",
            "-P INPUT DROP",
        ] {
            legacy(world, rule)?;
        }
        verdict(world, "ok", &["ip filter of iptables-legacy"])?;
        ensure!(!pod_is_served(world, &pod)?, "the filter does nothing");
        verdict(world, "warning", &["nftables", "7410-7413"])?;
        legacy(
            world,
            "-A INPUT -s 10.244.0.0/16 -p tcp --dport 7410:7413 -j ACCEPT",
        )?;
        ensure!(pod_is_served(world, &pod)?, "the filter is still there");
        wait::until("the repaired filter is forgotten", FORGOTTEN, || {
            is(world, "ok", &[])
        })
    });
}

/// As iptables-services has it: policy accept, and a last rule that rejects.
#[test]
fn a_last_rule_that_rejects_is_named_before_a_pod_has_dialled_and_found_by_what_it_drops() {
    world::with(EDGE, Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        let cloud = world.lab.site(Host::Cloud);
        for rule in [
            "-A INPUT -i lo -j ACCEPT",
            "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-A INPUT -p tcp --dport 7400 -j ACCEPT",
            "-A INPUT -j REJECT --reject-with icmp-host-prohibited",
        ] {
            cloud.output("iptables-nft", rule.split(' '))?;
        }
        verdict(world, "ok", &["ip filter INPUT", "dial an edge node"])?;
        ensure!(!pod_is_served(world, &pod)?, "the filter does nothing");
        verdict(world, "warning", &["ip filter INPUT", "NetworkPolicy"])
    });
}

/// ufw denies what comes in, and writes `-m multiport`, which nft lists without its ports.
#[test]
fn ufw_is_found_by_what_it_drops_and_its_documented_rule_is_no_fault() {
    world::with(EDGE, Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        ufw(world, "allow 7400/tcp")?;
        ufw(
            world,
            "allow proto tcp from 10.244.0.0/16 to any port 7410:7413",
        )?;
        ufw(world, "--force enable")?;
        ensure!(
            pod_is_served(world, &pod)?,
            "the documented rule does not do"
        );
        verdict(world, "ok", &[])?;
        ufw(
            world,
            "delete allow proto tcp from 10.244.0.0/16 to any port 7410:7413",
        )?;
        ensure!(!pod_is_served(world, &pod)?, "ufw drops nothing");
        verdict(world, "warning", &["filter INPUT", "ufw allow"])
    });
}

/// firewalld lets translated connections pass.
#[test]
fn firewalld_drops_nothing_that_nftables_steers_and_check_does_not_say_that_it_does() {
    world::with(EDGE, Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        let firewalld = Firewalld::start(world)?;
        firewalld.command(&["--add-port=7400/tcp"])?;
        ensure!(pod_is_served(world, &pod)?, "no pod is served");
        verdict(world, "ok", &[])
    });
}

/// What hooks steer is not translated: firewalld rejects it until pods are trusted.
#[test]
fn firewalld_is_found_by_what_it_rejects_with_hooks_for_pods_and_its_documented_rule_is_no_fault() {
    let options = Options {
        redirector: ["--hooks", "all"].map(str::to_owned).into(),
        ..Options::default()
    };
    world::with(EDGE, options, |world| {
        let pod = world.lab.add_pod()?;
        let firewalld = Firewalld::start(world)?;
        firewalld.command(&["--add-port=7400/tcp"])?;
        ensure!(!pod_is_served(world, &pod)?, "firewalld rejects nothing");
        verdict(
            world,
            "warning",
            &["connect hooks", "inet firewalld filter_INPUT"],
        )?;
        firewalld.command(&["--zone=trusted", "--add-source=10.244.0.0/16"])?;
        ensure!(
            pod_is_served(world, &pod)?,
            "the documented rule does not do"
        );
        wait::until("what is repaired is forgotten", FORGOTTEN, || {
            is(world, "ok", &[])
        })
    });
}

/// tigera/docs#1307: a policy for the host's own users saw other addresses than its author meant.
#[test]
fn a_filter_by_user_is_named_and_found_by_what_it_drops() {
    world::with(EDGE, Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        let filter = format!(
            "add table inet egress; add chain inet egress out \
             {{ type filter hook output priority filter; }}; \
             add rule inet egress out meta skuid {USER} ip daddr != 10.0.0.0/8 drop"
        );
        cloud.output("nft", [filter])?;
        verdict(world, "ok", &["inet egress out", "users or cgroups"])?;
        world.check_greeting("10.0.3.7", "edge-1")?;
        let mut client = cloud.command("setpriv");
        client.args(["--reuid", USER, "--clear-groups"]);
        client.arg(xtask());
        ensure!(!is_served(&mut client)?, "the filter does nothing");
        verdict(world, "warning", &["connect hooks", "inet egress out"])
    });
}

/// envoy#16130.
#[test]
fn a_zone_of_connection_tracking_resets_pods_and_is_named_by_check() {
    world::with(EDGE, Options::default(), |world| {
        let pod = world.lab.add_pod()?;
        let cloud = world.lab.site(Host::Cloud);
        ensure!(pod_is_served(world, &pod)?, "no pod is served");
        wait::until("no zone is named", PATIENCE, || {
            row_is(world, "nftables", "ok", &[])
        })?;
        let zone = "add table inet vpc; \
            add chain inet vpc pre { type filter hook prerouting priority raw; }; \
            add chain inet vpc out { type filter hook output priority raw; }; \
            add rule inet vpc pre ip saddr 10.244.0.0/16 ct zone set 7; \
            add rule inet vpc out ip daddr 10.244.0.0/16 ct zone set 7";
        cloud.output("nft", [zone])?;
        ensure!(!pod_is_served(world, &pod)?, "the zone does nothing");
        world.check_greeting("10.0.3.7", "edge-1")?;
        wait::until("the zones are named", PATIENCE, || {
            row_is(
                world,
                "nftables",
                "warning",
                &["inet vpc pre", "inet vpc out"],
            )
        })?;
        cloud.output("nft", ["delete table inet vpc"])?;
        ensure!(pod_is_served(world, &pod)?, "the zone is still there");
        wait::until("the zones are forgotten", PATIENCE, || {
            row_is(world, "nftables", "ok", &[])
        })
    });
}

#[test]
fn with_hooks_for_pods_a_filter_that_drops_them_is_found_too() {
    let options = Options {
        redirector: ["--hooks", "all"].map(str::to_owned).into(),
        ..Options::default()
    };
    world::with(EDGE, options, |world| {
        let pod = world.lab.add_pod()?;
        ensure!(pod_is_served(world, &pod)?, "no pod is served");
        verdict(world, "ok", &[])?;
        let filter = "add table inet filter; add chain inet filter in \
            { type filter hook input priority filter; policy drop; }; \
            add rule inet filter in iifname lo accept; \
            add rule inet filter in ct state established accept; \
            add rule inet filter in tcp dport 7400 accept";
        world.lab.site(Host::Cloud).output("nft", [filter])?;
        ensure!(!pod_is_served(world, &pod)?, "the filter does nothing");
        verdict(world, "warning", &["connect hooks", "inet filter in"])
    });
}

/// Waits until the row `firewall` of `check` has this verdict, and these words.
fn verdict(world: &World<'_>, expected: &str, words: &[&str]) -> Result<()> {
    wait::until(&format!("the verdict {expected}"), PATIENCE, || {
        is(world, expected, words)
    })
}

fn is(world: &World<'_>, expected: &str, words: &[&str]) -> Result<()> {
    row_is(world, "firewall", expected, words)
}

/// Whether a row of `check` has this verdict, and these words.
pub(crate) fn row_is(world: &World<'_>, row: &str, expected: &str, words: &[&str]) -> Result<()> {
    let output = world.culvert.control(&["check", "-o", "json"]).output()?;
    let checked: Value = serde_json::from_slice(&output.stdout)?;
    let findings = checked["hosts"][0]["checks"]
        .as_array()
        .context("no checks")?;
    let row = findings
        .iter()
        .find(|finding| finding["check"] == row)
        .context("no such row")?;
    let text = row.to_string();
    let has_words = words.iter().all(|word| text.contains(word));
    ensure!(row["verdict"] == expected && has_words, "{text}");
    Ok(())
}

fn pod_is_served(world: &World<'_>, pod: &Path) -> Result<bool> {
    is_served(&mut world.lab.site(Host::Cloud).command_in(pod, xtask()))
}

/// Whether a client reaches the node.
fn is_served(client: &mut Command) -> Result<bool> {
    let once = Client::GiveUp {
        target: format!("10.0.3.7:{ECHO}"),
        count: 1,
        patience: Duration::from_secs(4),
    };
    let report = world::report(once.complete(client)?)?;
    Ok(report == culvert_lab::probe::Report::Answered(1))
}

fn legacy(world: &World<'_>, rule: &str) -> Result<()> {
    let cloud = world.lab.site(Host::Cloud);
    cloud.output("iptables-legacy", rule.split(' ')).map(drop)
}

/// Debian's ufw, with its files in the lab.
fn ufw(world: &World<'_>, arguments: &str) -> Result<()> {
    let cloud = world.lab.site(Host::Cloud);
    let root = cloud.file("ufw");
    if !root.exists() {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(Unpacked::Ufw.folder()).arg(&root);
        workspace::output(&mut copy)?;
        // As its package does at the installation.
        for entry in std::fs::read_dir(root.join("usr/share/ufw"))? {
            let from = entry?.path();
            if from.is_file() {
                let name = from.file_name().context("a file without name")?;
                std::fs::copy(&from, root.join("etc/ufw").join(name))?;
            }
        }
    }
    let mut command = cloud.command("python3");
    command
        .arg(root.join("usr/sbin/ufw"))
        .arg(format!("--rootdir={}", root.display()))
        .arg(format!("--datadir={}", root.display()))
        .args(arguments.split(' '))
        .env("PYTHONPATH", root.join("usr/lib/python3/dist-packages"));
    workspace::output(&mut command).map(drop)
}
