//! Tests docs/dns.md about CoreDNS and systemd-resolved, with the real programs. Their
//! configuration is the text of that page, so the lab has the addresses of the page: the redirector
//! answers on two of them, and the server that hosts ask has the third.

mod coredns;
mod resolved;
mod upstream;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::dns::{self, Answer, Resolver};
use culvert_lab::host::Host;
use culvert_lab::{Lab, page, workspace};

use crate::world::{self, World};
use upstream::Upstream;

const REDIRECTORS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 53);

/// Runs a test with edge-1 and the upstream server. `redirector` has further arguments of the
/// redirector.
fn with_upstream(redirector: &[&str], test: impl FnOnce(&World<'_>, &Upstream) -> Result<()>) {
    let options = |lab: &Lab| {
        let cloud = lab.site(Host::Cloud).netns();
        for address in REDIRECTORS {
            ip(cloud, &format!("addr add {address}/32 dev lo"))?;
        }
        ip(&lab.internet(), &format!("addr add {UPSTREAM}/32 dev lo"))?;
        ip(
            &lab.internet(),
            &format!("route add 10.244.0.0/24 via {}", Host::Cloud.address()),
        )?;
        let mut args = vec!["--dns-client".to_owned(), "10.0.0.0/24".to_owned()];
        for address in [Host::Cloud.address().to_string().as_str()]
            .into_iter()
            .chain(REDIRECTORS)
        {
            args.extend(["--dns-listen".to_owned(), format!("{address}:53")]);
        }
        args.extend(redirector.iter().copied().map(str::to_owned));
        Ok(Options {
            redirector: args,
            ..Options::default()
        })
    };
    world::prepared(&[Host::Edge1], options, |world| {
        let upstream = Upstream::start(&world.lab.internet(), UPSTREAM)?;
        test(world, &upstream)
    });
}

fn ip(netns: &Path, words: &str) -> Result<()> {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", netns.display()))
        .arg("ip")
        .args(words.split(' '));
    workspace::output(&mut command).map(drop)
}

/// The code block of docs/dns.md that contains these words.
fn documented(words: &str) -> Result<String> {
    let page = page::read("dns.md")?;
    Ok(page::block_with(&page, words)?.to_owned() + "\n")
}

/// The answers to a thousand names that are not Culvert's.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Equal to the upstream server's answers.
    right: usize,
    refused: usize,
    /// All others, with their names.
    wrong: Vec<(String, Answer)>,
}

impl Tally {
    const ALL_REFUSED: Self = Self {
        right: 0,
        refused: 1000,
        wrong: Vec::new(),
    };

    /// Asks for new names, so that no answer comes from a cache.
    fn of(resolver: &Resolver) -> Result<Self> {
        let names: Vec<_> = (0..1000)
            .map(|number| format!("name-{number}.example.org"))
            .collect();
        let answers = resolver.ask_each(&names, dns::A)?;
        let mut tally = Self::default();
        for (name, answer) in names.into_iter().zip(answers) {
            if answer == Answer::Addresses(vec![upstream::ADDRESS.into()]) {
                tally.right += 1;
            } else if answer == Answer::Refused {
                tally.refused += 1;
            } else {
                tally.wrong.push((name, answer));
            }
        }
        Ok(tally)
    }
}

/// Fails unless names that are not Culvert's are answered as by the upstream server.
fn check_foreign_names(resolver: &Resolver) -> Result<()> {
    let tally = Tally::of(resolver)?;
    ensure!(tally.right == 1000, "of 1000 foreign names: {tally:?}");
    let nowhere = resolver.ask(upstream::NOWHERE, dns::A)?;
    ensure!(
        nowhere == Answer::NoSuchName,
        "a name that does not exist: {nowhere:?}"
    );
    Ok(())
}

/// Fails unless these names are answered with the VIPs of edge-1.
fn check_vips(world: &World<'_>, resolver: &Resolver, names: &[&str]) -> Result<()> {
    for (kind, family) in [(dns::A, "vip4"), (dns::AAAA, "vip6")] {
        let vip: IpAddr = world.vip(Host::Edge1, family)?;
        for name in names {
            let answer = resolver.ask(name, kind)?;
            ensure!(
                answer == Answer::Addresses(vec![vip]),
                "{family} of {name}: {answer:?}, not {vip}"
            );
        }
    }
    Ok(())
}
