//! What happens to a connection from one host, hop by hop, and what to do.

use culvert_api::proto::control as proto;
use serde::Serialize;

/// What happens to a connection from one host.
#[derive(Debug, Default, Serialize)]
pub struct HostPath {
    /// The host's own name.
    pub host: String,
    /// Whether the connection gets through.
    pub reachable: bool,
    /// In the order of the connection.
    pub hops: Vec<Hop>,
    /// What to do.
    pub fixes: Vec<String>,
    /// Whether its proxy knows no node of this name.
    #[serde(skip)]
    pub no_node: bool,
}

/// A part of the way.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// `kernel`; `unused`, an address of the node that this host cannot steer, beside one that it
    /// can; or what `culvert why` names: `directory`, `tunnel`, `agent`, `dial`, ...
    pub hop: String,
    /// Whether a connection gets past it.
    pub ok: bool,
    /// What is known of it.
    pub text: String,
}

impl HostPath {
    /// Adds what the host's proxy says.
    pub fn add_proxy(&mut self, lines: Vec<proto::ExplainLine>) {
        for line in lines {
            if line.subject == "fix" {
                self.fixes.push(line.text);
            } else {
                self.hops.push(Hop {
                    hop: line.subject,
                    ok: !line.broken,
                    text: line.text,
                });
            }
        }
    }
}
