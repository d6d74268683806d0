//! Cuts links between the sites without any notice, as a mobile network does.

use std::process::Command;

use anyhow::Result;

use crate::cloud_host::CloudHost;
use crate::host::Host;
use crate::{Lab, network, workspace};

/// While it exists, packets are dropped.
pub struct Cut {
    netns: String,
    table: String,
}

impl Cut {
    /// Cuts the link of a site: the internet drops every packet from and to it.
    ///
    /// # Errors
    /// The rule cannot be set.
    pub fn of(lab: &Lab, host: Host) -> Result<Self> {
        let router = lab.name().netns(network::INTERNET);
        let link = host.router_link();
        let table = format!("cut_{link}");
        let rules = format!(
            "add table inet {table}
             add chain inet {table} drop_all {{ type filter hook forward priority filter; }}
             add rule inet {table} drop_all iifname {link} drop
             add rule inet {table} drop_all oifname {link} drop\n"
        );
        network::nft(&router, &rules)?;
        Ok(Self {
            netns: router,
            table,
        })
    }

    /// Drops the large packets from and to a site, and sends no message about it: a path with a
    /// smaller MTU behind a firewall that drops ICMP.
    ///
    /// # Errors
    /// The rule cannot be set.
    pub fn of_large_packets(lab: &Lab, host: Host) -> Result<Self> {
        // What leaves a host has the length that it will have on a wire.
        for end in [Host::Cloud, host] {
            let mut undivided = Command::new("ip");
            undivided.args(["-n", &lab.name().netns(end.name())]);
            undivided.args(["link", "set", "wan", "gso_max_segs", "1"]);
            workspace::output(&mut undivided)?;
        }
        let router = lab.name().netns(network::INTERNET);
        let link = host.router_link();
        let table = format!("lossy_{link}");
        let rules = format!(
            "add table inet {table}
             add chain inet {table} drop_large {{ type filter hook forward priority filter; }}
             add rule inet {table} drop_large iifname {link} meta length > 1300 drop
             add rule inet {table} drop_large oifname {link} meta length > 1300 drop\n"
        );
        network::nft(&router, &rules)?;
        Ok(Self {
            netns: router,
            table,
        })
    }

    /// Drops what a host gets for a TCP port of its own, from anywhere and from itself. What it
    /// sends from the port still arrives.
    ///
    /// # Errors
    /// The rule cannot be set.
    pub fn to_port(lab: &Lab, host: Host, port: u16) -> Result<Self> {
        let netns = lab.name().netns(host.name());
        let table = format!("cut_to_{port}");
        let rules = format!(
            "add table inet {table}
             add chain inet {table} drop_all {{ type filter hook input priority filter; }}
             add rule inet {table} drop_all tcp dport {port} drop\n"
        );
        network::nft(&netns, &rules)?;
        Ok(Self { netns, table })
    }

    /// Drops what one host of the cloud sends to another one. The other direction stays.
    ///
    /// # Errors
    /// The rule cannot be set.
    pub fn one_way(lab: &Lab, from: CloudHost, to: CloudHost) -> Result<Self> {
        let netns = lab.name().netns(to.name());
        let table = format!("cut_from_{}", from.name().replace('-', "_"));
        let rules = format!(
            "add table inet {table}
             add chain inet {table} drop_all {{ type filter hook input priority filter; }}
             add rule inet {table} drop_all ip saddr {} drop\n",
            from.address()
        );
        network::nft(&netns, &rules)?;
        Ok(Self { netns, table })
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let healed = workspace::output(Command::new("ip").args([
            "netns",
            "exec",
            &self.netns,
            "nft",
            "delete",
            "table",
            "inet",
            &self.table,
        ]));
        if let Err(error) = healed {
            eprintln!("healing {}: {error:#}", self.table);
        }
    }
}
