//! A site without IPv4: cloud host, pod and edge have IPv6 addresses alone.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Culvert;
use culvert_lab::dns::{self, Resolver};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::wait::PATIENCE;
use culvert_lab::{Lab, workspace};

use crate::nodes::{EDGE_V6, remove_ipv4_from_the_edge};
use crate::world::{self, GREET, World};

/// The cloud host's own address.
const CLOUD: &str = "fd00:203:0:113::1";

#[test]
fn hosts_and_pods_without_ipv4_reach_a_node_by_address_vip_and_name() {
    world::in_lab(|lab| {
        remove_ipv4_from_the_edge(lab)?;
        let pod = add_pod(lab)?;
        remove_ipv4_from_the_cloud(lab)?;
        let backends = world::serve(lab, Host::Edge1)?;
        let way_in = format!("[{CLOUD}]:7400");
        // In place of the lab's own way in, which has IPv4.
        let mut options = world::with_defaults(world::proxy_options(["--advertise", &way_in]));
        options.redirector = ["--dns-client", "fd00:244::/64"].map(str::to_owned).into();
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, vec![backends]);
        let settings = ["--address", EDGE_V6, "--port", &GREET.to_string()].map(str::to_owned);
        let join = world.culvert.create_bare_token(Host::Edge1, &settings)?;
        let unquoted: Vec<String> = join.iter().map(|word| word.replace('\'', "")).collect();
        world.culvert.join(Host::Edge1, &unquoted)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;

        let vip = world.vip(Host::Edge1, "vip6")?;
        let by_address = format!("[{EDGE_V6}]");
        world.wait_greeting(&by_address, PATIENCE)?;
        for host in [&by_address, &format!("[{vip}]"), "edge-1.edge.internal"] {
            world.check_greeting(host, "edge-1")?;
        }
        let resolver = Resolver::seen_from(&pod, CLOUD.parse()?);
        let answer = resolver.ask("edge-1", dns::AAAA)?;
        let address = answer.first().context("the pod is told no address")?;
        ensure!(address == vip.to_string(), "the pod is told {address}");
        for host in [by_address.clone(), format!("[{vip}]")] {
            let mut client = lab.site(Host::Cloud).command_in(&pod, world::xtask());
            let greet = Client::listen(format!("{host}:{GREET}"));
            let greeting = world::report(greet.complete(&mut client)?)?;
            ensure!(
                greeting == Report::Answer("hello from edge-1".to_owned()),
                "{host} from the pod: {greeting:?}"
            );
        }
        let target = format!("[{EDGE_V6}]:{GREET}");
        let mut explain = world.culvert.control(&["why", &target]);
        let said = workspace::output(&mut explain)?;
        ensure!(said.contains("edge-1"), "{said}");
        let check = world.culvert.control(&["check"]).output()?;
        let said = String::from_utf8_lossy(&check.stdout);
        ensure!(check.status.success(), "{said}");
        Ok(())
    });
}

/// A pod with IPv6 alone.
fn add_pod(lab: &Lab) -> Result<PathBuf> {
    let pod = lab.add_pod()?;
    let cloud = lab.site(Host::Cloud);
    cloud.output("sysctl", ["-qw", "net.ipv6.conf.all.forwarding=1"])?;
    cloud.output("ip", words("addr add fd00:244::1/64 dev pod nodad"))?;
    for line in [
        "-4 addr flush dev eth0",
        "addr add fd00:244::2/64 dev eth0 nodad",
        "route add default via fd00:244::1",
    ] {
        workspace::output(cloud.command_in(&pod, "ip").args(line.split(' ')))?;
    }
    Ok(pod)
}

/// Leaves the cloud host only loopback and IPv6. Its resolver is the redirector, by IPv6.
fn remove_ipv4_from_the_cloud(lab: &Lab) -> Result<()> {
    let cloud = lab.site(Host::Cloud);
    for device in ["wan", "pod"] {
        cloud.output("ip", words(&format!("-4 addr flush dev {device}")))?;
    }
    let file = cloud.file("resolv.conf");
    let text = std::fs::read_to_string(&file).context("read resolv.conf")?;
    let text = text.replace(&Host::Cloud.address().to_string(), CLOUD);
    std::fs::write(&file, text).context("write resolv.conf")
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}
