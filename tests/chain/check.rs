//! Tests that `culvert check` names what is broken, and its fix.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::wait;
use serde_json::Value;

use crate::world::{GREET, World, report, with, xtask};

const DEADLINE: Duration = Duration::from_secs(60);

/// The output of the check, and whether its exit code is 0.
#[derive(Debug)]
struct Checked {
    passed: bool,
    findings: Vec<Value>,
}

impl Checked {
    fn of(world: &World<'_>) -> Result<Self> {
        let mut check: Command = world.culvert.control(&["check", "-o", "json"]);
        let done = check.output().context("run culvert check")?;
        let said = String::from_utf8_lossy(&done.stdout);
        let said: Value = serde_json::from_str(&said)
            .with_context(|| format!("{said} {}", String::from_utf8_lossy(&done.stderr)))?;
        let findings = said["hosts"][0]["checks"]
            .as_array()
            .context("no checks")?
            .clone();
        Ok(Self {
            passed: done.status.success(),
            findings,
        })
    }

    /// The verdict of one check; finding and fix in one text.
    fn verdict(&self, check: &str) -> Result<(&str, String)> {
        let finding = self
            .findings
            .iter()
            .find(|finding| finding["check"] == check);
        let finding =
            finding.with_context(|| format!("no check {check} in {:?}", self.findings))?;
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        Ok((
            text("verdict"),
            format!("{}; {}", text("found"), text("fix")),
        ))
    }

    fn not_ok(&self) -> Vec<String> {
        let bad = self
            .findings
            .iter()
            .filter(|finding| finding["verdict"] != "ok");
        bad.map(|finding| finding["check"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// Breaks something with `provoke` until the check reports it. The report must contain these words.
fn finds(
    world: &World<'_>,
    check: &str,
    verdict: &str,
    words: &[&str],
    mut provoke: impl FnMut() -> Result<()>,
) -> Result<Checked> {
    wait::until(&format!("{check} is found"), DEADLINE, || {
        provoke()?;
        let checked = Checked::of(world)?;
        let (found, text) = checked.verdict(check)?;
        ensure!(
            found == verdict && words.iter().all(|word| text.contains(word)),
            "{found}: {text}"
        );
        ensure!(
            checked.passed == (verdict != "failure"),
            "the exit code does not fit: {checked:?}"
        );
        Ok(checked)
    })
}

#[test]
fn a_check_names_a_missing_hook_a_stopped_redirector_and_an_offline_node_with_their_fixes() {
    with(&[Host::Edge1, Host::Edge2], Options::default(), |world| {
        let good = wait::until("all is well", DEADLINE, || {
            let checked = Checked::of(world)?;
            // In the lab, the redirector is the only server in the cloud's resolv.conf.
            ensure!(checked.not_ok() == ["resolver"], "{checked:?}");
            Ok(checked)
        })?;
        ensure!(good.passed, "{good:?}");
        ensure!(
            good.verdict("hooks")?.1.contains("5 kernel programs"),
            "{good:?}"
        );
        ensure!(
            good.verdict("mechanism")?
                .1
                .contains("connect hooks carry the host's connections, nftables"),
            "{good:?}"
        );
        ensure!(
            good.verdict("dial")?
                .1
                .contains("(edge-1) came by the connect hooks"),
            "{good:?}"
        );
        ensure!(
            good.verdict("resolver")?
                .1
                .contains("203.0.113.1: CoreDNS pods"),
            "{good:?}"
        );

        let cloud = world.lab.site(Host::Cloud);
        let pin = "/sys/fs/bpf/culvert/v1/links/cv_sockops";
        // The redirector attaches it again within 5 s.
        finds(
            world,
            "hooks",
            "failure",
            &["cv_sockops", "culvert-redirector status"],
            || cloud.output("rm", ["-f", pin]).map(drop),
        )?;
        wait::until("the hook is back", DEADLINE, || {
            ensure!(Checked::of(world)?.not_ok() == ["resolver"], "not yet");
            Ok(())
        })?;

        // A chain like firewalld's: accepts by policy, rejects in the last rule.
        let firewalld = "add table inet firewalld; add chain inet firewalld filter_INPUT \
            { type filter hook input priority filter + 10; policy accept; }; \
            add rule inet firewalld filter_INPUT iifname != pod accept; \
            add rule inet firewalld filter_INPUT reject";
        let chain = "inet firewalld filter_INPUT";
        let pod = world.lab.add_pod()?;
        cloud.output("nft", [firewalld])?;
        finds(
            world,
            "firewall",
            "ok",
            &["may drop those of pods", chain],
            || Ok(()),
        )?;
        let mut client = cloud.command_in(&pod, xtask());
        let greet = Client::listen(format!("10.0.3.7:{GREET}"));
        let refused = report(greet.complete(&mut client)?);
        ensure!(refused.is_err(), "the pod reached edge-1: {refused:?}");
        finds(
            world,
            "firewall",
            "warning",
            &[chain, "firewall-cmd"],
            || Ok(()),
        )?;
        cloud.output("nft", ["delete table inet firewalld"])?;

        world.culvert.agent(1).kill()?;
        finds(
            world,
            "tunnels",
            "warning",
            &["1 of 2 nodes offline: edge-2", "culvert why edge-2"],
            || Ok(()),
        )?;

        world.culvert.redirector.kill()?;
        let words = [
            "culvert-redirector does not answer",
            "start culvert-redirector",
        ];
        let stopped = finds(world, "redirector", "failure", &words, || Ok(()))?;
        ensure!(
            stopped.not_ok() == ["redirector", "tunnels"],
            "the rest is not guessed: {stopped:?}"
        );

        let page = world.culvert.control(&["check"]).output()?;
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        ensure!(
            page.contains("FAILURE  redirector") && page.contains("fix: start culvert-redirector"),
            "{page}"
        );
        fs::write(world.lab.site(Host::Cloud).file("check.txt"), page).context("keep the page")
    });
}

#[test]
fn a_check_dials_itself_and_no_agent_hears_of_it() {
    let mechanism = ["--mechanism", "nftables"].map(str::to_owned);
    let options = Options {
        redirector: mechanism.into(),
        ..Options::default()
    };
    with(&[Host::Edge1], options, |world| {
        // Counts of streams and dials, by their outcomes.
        let counts = || -> Result<Vec<String>> {
            let metrics = world
                .lab
                .site(Host::Edge1)
                .http_get(AGENT_ADMIN, "/metrics")?;
            let is_count = |line: &&str| {
                ["culvert_agent_streams_total{", "culvert_agent_dials_total{"]
                    .iter()
                    .any(|name| line.starts_with(name))
            };
            Ok(metrics
                .lines()
                .filter(is_count)
                .map(str::to_owned)
                .collect())
        };
        let before = counts()?;
        let checked = wait::until("a connection came", DEADLINE, || {
            let checked = Checked::of(world)?;
            ensure!(
                checked
                    .verdict("dial")?
                    .1
                    .contains("(edge-1) came by nftables"),
                "{checked:?}"
            );
            Ok(checked)
        })?;
        ensure!(
            checked
                .verdict("mechanism")?
                .1
                .contains("nftables carries host and pods"),
            "{checked:?}"
        );
        let after = counts()?;
        ensure!(
            !before.is_empty() && before == after,
            "the agent was asked: {before:?}, then {after:?}"
        );
        Ok(())
    });
}

#[test]
fn a_check_names_rules_of_others_that_use_the_exempt_mark() {
    with(&[Host::Edge1], Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        finds(world, "marks", "ok", &["0x1000"], || Ok(()))?;
        // As kube-proxy has it, of another bit.
        let kube = "add table ip kube-proxy; add chain ip kube-proxy masquerading \
            { type nat hook postrouting priority srcnat; }; \
            add rule ip kube-proxy masquerading meta mark & 0x4000 == 0x4000 masquerade";
        cloud.output("nft", [kube])?;
        finds(world, "marks", "ok", &["0x1000"], || Ok(()))?;
        let clash = "add table inet vpn; add chain inet vpn out \
            { type filter hook output priority mangle; }; \
            add rule inet vpn out ip daddr 192.0.2.9 meta mark set meta mark | 0x1000";
        cloud.output("nft", [clash])?;
        let rule = [
            "rule",
            "add",
            "priority",
            "77",
            "fwmark",
            "0x1000/0x1000",
            "lookup",
            "77",
        ];
        cloud.output("ip", rule)?;
        finds(
            world,
            "marks",
            "warning",
            &["inet vpn out", "ip rule 77", "--mark 0x"],
            || Ok(()),
        )
        .map(drop)
    });
}
