//! Asks every host for everything at once. A question that is not answered in time, or is refused, is
//! an item with the reason: it stops nothing.

mod cluster;
mod folder;
mod hosts;
mod nodes;
mod pages;

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_site::answered::{Answered, all_ok};
use culvert_site::cloud_host::CloudHost;
use culvert_site::node::{Node, nodes};
use culvert_site::stream::Stream;
use culvert_site::summary::Status;
use culvert_site::units::now_seconds;
use serde::Serialize;

use self::folder::folder;
use super::{Collection, Item, KnownName, Names};
use crate::cloud_host::ask_cloud_host;
use crate::session::Session;

/// Collects all of it, for an archive with these names.
///
/// # Errors
/// Names are to be replaced, and no host says which there are.
pub(crate) async fn collect(session: &Session, wanted: Names) -> Result<Collection> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    ensure!(
        wanted == Names::Real || !all_ok(&answers).is_empty(),
        "no host says which nodes there are, so their names cannot be replaced: give a longer --timeout, or \
         leave --anonymize out"
    );
    let known = nodes(all_ok(&answers));
    let mut collection = Collection {
        names: names(session, &answers, &known),
        ..Collection::default()
    };
    add_answers(&mut collection, &answers, &known);
    let (of_hosts, explained, of_agents, of_cluster) = tokio::join!(
        hosts::collect(session),
        nodes::explain_offline(session, &known),
        nodes::agent_pages(session, &answers, &known),
        cluster::collect(session)
    );
    collection.items.extend(explained);
    collection.items.extend(of_hosts);
    collection.items.extend(of_agents);
    collection.items.extend(of_cluster);
    Ok(collection)
}

/// What `status`, `nodes` and `streams` say.
fn add_answers(collection: &mut Collection, hosts: &[Answered<CloudHost>], known: &[Node]) {
    let mut streams = Vec::new();
    for host in all_ok(hosts) {
        for stream in &host.streams {
            streams.push(Stream::of(host.name(), stream));
        }
    }
    let status = Status::of(hosts, Vec::new(), now_seconds());
    for problem in &status.problems {
        let line = format!("{}: {}; {}", problem.subject, problem.found, problem.fix);
        collection.summary.push(line);
    }
    for (path, about, content) in [
        ("status.json", "culvert status", json(&status)),
        ("nodes.json", "culvert nodes", json(&known)),
        ("streams.json", "culvert streams", json(&streams)),
    ] {
        let item = Item::new(path.to_owned(), about, content);
        collection.items.push(item);
    }
}

fn json<T: Serialize + ?Sized>(answer: &T) -> Result<String, String> {
    serde_json::to_string_pretty(answer).map_err(|error| error.to_string())
}

fn names(session: &Session, hosts: &[Answered<CloudHost>], known: &[Node]) -> Vec<KnownName> {
    let mut names = Vec::new();
    for node in known {
        names.push(KnownName {
            name: node.node.clone(),
            kind: "node",
        });
    }
    for host in all_ok(hosts) {
        for proxy in &host.proxies {
            names.push(KnownName {
                name: proxy.host.clone(),
                kind: "host",
            });
        }
    }
    for host in &session.hosts.cloud {
        let host = host_of(host.name());
        for name in [host.to_owned(), folder(host)] {
            names.push(KnownName { name, kind: "host" });
        }
    }
    names.retain(|known| !["", "this host", "this_host"].contains(&known.name.as_str()));
    names
}

/// The host of what ssh takes: `HOST`, `USER@HOST` or `ssh://USER@HOST:PORT`.
fn host_of(destination: &str) -> &str {
    let (_, host) = destination.rsplit_once('@').unwrap_or(("", destination));
    let Some(url) = destination.strip_prefix("ssh://") else {
        return host;
    };
    let host = if url.contains('@') { host } else { url };
    let host = host.split('/').next().unwrap_or(host);
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        return address;
    }
    host.split(':').next().unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_what_ssh_takes_is_found() {
        for destination in [
            "cloud-1",
            "root@cloud-1",
            "ssh://cloud-1",
            "ssh://root@cloud-1:22",
            "ssh://cloud-1:22/",
        ] {
            assert_eq!(host_of(destination), "cloud-1", "{destination}");
        }
        assert_eq!(host_of("root@fd00::7"), "fd00::7");
        assert_eq!(host_of("ssh://root@[fd00::7]:22"), "fd00::7");
    }
}
