//! Cuts links between the sites without any notice, as a mobile network does.

use std::process::Command;

use anyhow::Result;

use crate::host::Host;
use crate::{Lab, network, workspace};

/// While it exists, the internet drops every packet from and to a site.
pub struct Cut {
    router: String,
    table: String,
}

impl Cut {
    /// Cuts the link of a site.
    ///
    /// # Errors
    /// The rule cannot be set.
    pub fn of(lab: &Lab, host: Host) -> Result<Self> {
        let (router, link) = (lab.name().netns(network::INTERNET), host.router_link());
        let table = format!("cut_{link}");
        let rules = format!(
            "add table inet {table}
             add chain inet {table} drop_all {{ type filter hook forward priority filter; }}
             add rule inet {table} drop_all iifname {link} drop
             add rule inet {table} drop_all oifname {link} drop\n"
        );
        network::nft(&router, &rules)?;
        Ok(Self { router, table })
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let healed = workspace::output(Command::new("ip").args([
            "netns",
            "exec",
            &self.router,
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
