//! Tests CoreDNS in a pod.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::dns::{self, Answer, Resolver};
use culvert_lab::go_program::GoProgram;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::skip::skip;
use culvert_lab::wait;

use super::{
    REDIRECTORS, Tally, UPSTREAM, Upstream, check_foreign_names, check_vips, documented, ip,
    with_upstream,
};
use crate::world::World;

/// The server block of a CoreDNS without any configuration for Culvert.
const USUAL: &str = ".:53 {
    errors
    forward . 10.0.0.53
    cache 30
    loop
}
";

#[test]
fn coredns_that_forwards_the_zone_answers_names_of_edge_nodes_and_all_others() {
    with_coredns(&[], |world, upstream| {
        let corefile = documented("edge.internal:53 {")? + USUAL;
        let coredns = CoreDns::start(world, &world.lab.add_pod()?, &corefile)?;
        check_vips(world, &coredns.resolver, &["edge-1.edge.internal"])?;
        let unknown = coredns.resolver.ask("edge-9.edge.internal", dns::A)?;
        ensure!(
            unknown == Answer::NoSuchName,
            "a name in the zone that no node has: {unknown:?}"
        );
        check_foreign_names(&coredns.resolver)?;
        let leaked = upstream.asked("edge.internal");
        ensure!(
            leaked.is_empty(),
            "the upstream server was asked for names of the zone: {leaked:?}"
        );
        Ok(())
    });
}

#[test]
fn coredns_with_failover_answers_bare_names_of_edge_nodes_and_all_others() {
    with_coredns(&[], |world, upstream| {
        let corefile = without("kubernetes", &documented("failover REFUSED")?)?;
        let coredns = CoreDns::start(world, &world.lab.add_pod()?, &corefile)?;
        check_vips(
            world,
            &coredns.resolver,
            &["edge-1", "edge-1.edge.internal"],
        )?;
        check_foreign_names(&coredns.resolver)?;
        let leaked = upstream.asked("edge-1");
        ensure!(
            leaked.is_empty(),
            "the upstream server was asked for edge-1: {leaked:?}"
        );
        Ok(())
    });
}

#[test]
fn coredns_without_failover_hands_on_what_the_redirector_refuses() {
    with_coredns(&[], |world, _upstream| {
        let pod = world.lab.add_pod()?;
        let in_turn = without(
            "failover",
            &without("kubernetes", &documented("failover REFUSED")?)?,
        )?;
        let coredns = CoreDns::start(world, &pod, &in_turn)?;
        let tally = Tally::of(&coredns.resolver)?;
        ensure!(
            tally == Tally::ALL_REFUSED,
            "not all of 1000 foreign names refused: {tally:?}"
        );
        drop(coredns);
        // As kubeadm's CoreDNS uses the servers of the host's resolv.conf.
        let file = world.lab.site(Host::Cloud).file("both.conf");
        std::fs::write(
            &file,
            format!("nameserver {}\nnameserver {UPSTREAM}\n", REDIRECTORS[0]),
        )?;
        let by_chance = USUAL.replace("10.0.0.53", &file.display().to_string());
        let coredns = CoreDns::start(world, &pod, &by_chance)?;
        let tally = Tally::of(&coredns.resolver)?;
        let some = tally.refused > 0 && tally.right > 0 && tally.wrong.is_empty();
        ensure!(
            some,
            "not some of 1000 foreign names refused and all others answered: {tally:?}"
        );
        Ok(())
    });
}

#[test]
fn coredns_goes_on_to_the_next_server_while_a_redirector_is_away() {
    with_coredns(&[], |world, _upstream| {
        let pod = world.lab.add_pod()?;
        let zone_only = documented("edge.internal:53 {")? + USUAL;
        let everything = without("kubernetes", &documented("failover REFUSED")?)?;
        ip(
            world.lab.site(Host::Cloud).netns(),
            &format!("addr del {}/32 dev lo", REDIRECTORS[0]),
        )?;
        let coredns = CoreDns::start(world, &pod, &zone_only)?;
        check_vips(world, &coredns.resolver, &["edge-1.edge.internal"])?;
        drop(coredns);
        let coredns = CoreDns::start(world, &pod, &everything)?;
        check_foreign_names(&coredns.resolver)
    });
}

#[test]
fn coredns_may_ask_nobody_but_a_redirector_that_forwards() {
    with_coredns(&["--forward", &UPSTREAM.to_string()], |world, upstream| {
        let corefile = format!(
            ".:53 {{\n    errors\n    forward . {}\n    cache 30\n}}\n",
            REDIRECTORS[0]
        );
        let coredns = CoreDns::start(world, &world.lab.add_pod()?, &corefile)?;
        check_vips(
            world,
            &coredns.resolver,
            &["edge-1", "edge-1.edge.internal"],
        )?;
        check_foreign_names(&coredns.resolver)?;
        let leaked = upstream.asked("edge-1.edge.internal");
        ensure!(
            leaked.is_empty(),
            "names of the zone were forwarded: {leaked:?}"
        );
        Ok(())
    });
}

#[test]
fn coredns_with_a_hosts_file_follows_it_and_answers_all_others() {
    with_coredns(&[], |world, _upstream| {
        let cloud = world.lab.site(Host::Cloud);
        let hosts = cloud.file("tunnel-nodes");
        let resolv_conf = cloud.file("upstream.conf");
        let listed = documented("edge-1 # culvert")?;
        std::fs::write(&hosts, &listed)?;
        std::fs::write(&resolv_conf, format!("nameserver {UPSTREAM}\n"))?;
        let corefile = documented("hosts /etc/edge/tunnel-nodes")?
            .replace("/etc/edge/tunnel-nodes", &hosts.display().to_string())
            .replace("/etc/resolv.conf", &resolv_conf.display().to_string());
        let coredns = CoreDns::start(world, &world.lab.add_pod()?, &corefile)?;
        let address = |name: &str| anyhow::Ok(coredns.resolver.ask(name, dns::A)?.first());
        for (name, expected) in [
            ("edge-1", "198.18.0.1"),
            ("master-1", "192.0.2.10"),
            ("registry.example", "10.0.0.9"),
        ] {
            ensure!(
                address(name)?.as_deref() == Some(expected),
                "{name}: {:?}",
                address(name)?
            );
        }
        check_foreign_names(&coredns.resolver)?;
        // Each question asks for a different new name, because the upstream server's answers are
        // cached.
        let further =
            (100..200).map(|number| format!("198.18.0.{number}\tedge-{number} # culvert\n"));
        std::fs::write(&hosts, listed + &further.collect::<String>())?;
        let mut numbers = 100..200;
        wait::until(
            "CoreDNS has read the new file",
            Duration::from_secs(60),
            || {
                let number = numbers.next().context("all names were asked for")?;
                let found = address(&format!("edge-{number}"))?;
                ensure!(
                    found == Some(format!("198.18.0.{number}")),
                    "edge-{number}: {found:?}"
                );
                Ok(())
            },
        )
    });
}

/// Runs a test as [`with_upstream`] does, if CoreDNS is there.
fn with_coredns(redirector: &[&str], test: impl FnOnce(&World<'_>, &Upstream) -> Result<()>) {
    if GoProgram::CoreDns.find().is_none() {
        skip("CoreDNS is not compiled: run `cargo xtask setup`");
        return;
    }
    with_upstream(redirector, test);
}

/// CoreDNS, running. Dropping it ends it.
struct CoreDns {
    _process: Process,
    resolver: Resolver,
}

impl CoreDns {
    fn start(world: &World<'_>, pod: &Path, corefile: &str) -> Result<Self> {
        let cloud = world.lab.site(Host::Cloud);
        let file = cloud.file("Corefile");
        std::fs::write(&file, corefile).context("write the Corefile")?;
        let mut process = cloud.start_process(
            "coredns",
            cloud
                .command_in(pod, GoProgram::CoreDns.path())
                .arg("-conf")
                .arg(&file),
        )?;
        let resolver = Resolver::seen_from(pod, Ipv4Addr::LOCALHOST.into());
        wait::until("CoreDNS answers", Duration::from_secs(60), || {
            process.check()?;
            resolver.ask("started.example", dns::A).map(drop)
        })?;
        Ok(Self {
            _process: process,
            resolver,
        })
    }
}

/// A Corefile without a plugin and its settings, or without one setting.
fn without(word: &str, corefile: &str) -> Result<String> {
    let mut kept = String::new();
    let mut lines = corefile.lines();
    while let Some(line) = lines.next() {
        if line.split_whitespace().next() != Some(word) {
            kept += &format!("{line}\n");
        } else if line.ends_with('{') {
            lines.by_ref().find(|line| line.trim() == "}");
        }
    }
    ensure!(kept.len() < corefile.len(), "no {word} in\n{corefile}");
    Ok(kept)
}
