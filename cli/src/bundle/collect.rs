//! Asks every host for everything at once. A question that is not answered in time, or is refused, is
//! an item with the reason: it stops nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_api::NodeName;
use culvert_api::ports::AGENT_ADMIN_PORT;
use culvert_api::proto::control as proto;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::cloud_host::CloudHost;
use culvert_site::event::Event;
use culvert_site::node::{Node, nodes};
use culvert_site::stream::Stream;
use culvert_site::summary::Status;
use culvert_site::units::now_seconds;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::timeout;

use super::{Collection, Item, KnownName, Names};
use crate::cloud_host::ask_cloud_host;
use crate::control::Control;
use crate::hops;
use crate::hosts::{Host, NoAnswer, Socket};
use crate::nearest::host_with_tunnel;
use crate::pages::Pages;
use crate::session::Session;

/// Offline nodes that are explained at once: each asks every host twice.
const NODES_AT_ONCE: usize = 4;
/// Offline nodes that are explained, and online ones whose agents are asked.
const MAX_NODES: usize = 20;
/// Lines of a log.
const LOG_LINES: &str = "5000";
/// Events of connections, of each proxy.
const MAX_EVENTS: u32 = 2_000;
/// A check dials, and asks DNS servers and the cluster.
const LONGER: Duration = Duration::from_secs(30);
/// Programs with pages, by their sockets.
const PROGRAMS: [(Socket, &str); 2] = [
    (Socket::Proxy, "culvert-proxy"),
    (Socket::Redirector, "culvert-redirector"),
];

/// What commands print on a cloud host, with its file and what it is.
const COMMANDS: [(&str, &str, &[&str]); 6] = [
    (
        "check.json",
        "culvert check",
        &["culvert-proxy", "check-host"],
    ),
    (
        "rules.txt",
        "rules of nftables",
        &["nft", "list", "table", "inet", "culvert"],
    ),
    (
        "programs.txt",
        "programs of the kernel that belong to cgroups",
        &["bpftool", "cgroup", "tree"],
    ),
    (
        "maps.txt",
        "pinned maps and links",
        &["ls", "-lR", "/sys/fs/bpf/culvert"],
    ),
    (
        "culvert-proxy.log",
        "the end of its log",
        &end_of_log("culvert-proxy"),
    ),
    (
        "culvert-redirector.log",
        "the end of its log",
        &end_of_log("culvert-redirector"),
    ),
];

/// The command that prints the end of a unit's log.
const fn end_of_log(unit: &str) -> [&str; 7] {
    [
        "journalctl",
        "--no-pager",
        "--output=short-iso",
        "-n",
        LOG_LINES,
        "-u",
        unit,
    ]
}

/// Collects all of it, for an archive with these names.
///
/// # Errors
/// Names are to be replaced, and no host says which there are.
pub(crate) async fn collect(session: &Session, wanted: Names) -> Result<Collection> {
    let hosts = session.ask(Duration::ZERO, ask_cloud_host).await;
    ensure!(
        wanted == Names::Real || !all_ok(&hosts).is_empty(),
        "no host says which nodes there are, so their names cannot be replaced: give a longer --timeout, or \
         leave --anonymize out"
    );
    let known = nodes(all_ok(&hosts));
    let mut collection = Collection {
        names: names(session, &hosts, &known),
        ..Collection::default()
    };
    add_answers(&mut collection, &hosts, &known);
    let (of_hosts, explained, of_agents, of_cluster) = tokio::join!(
        of_hosts(session),
        explain_offline(session, &known),
        of_agents(session, &hosts, &known),
        of_cluster(session)
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

/// A host's name as a folder.
fn folder(name: &str) -> String {
    let mut folder = String::new();
    for letter in name.chars() {
        let is_plain = letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
        folder.push(if is_plain { letter } else { '_' });
    }
    if folder.chars().all(|letter| letter == '.') {
        return "_".to_owned();
    }
    folder
}

/// A folder for each name. Two pods may be of one node, and two names may become one folder.
fn distinct_folders<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    for name in names {
        let first = folder(name);
        let mut other = first.clone();
        let mut number = 1;
        while folders.contains(&other) {
            number += 1;
            // After `_` the name is still found (`Anonymous`).
            other = format!("{first}_{number}");
        }
        folders.push(other);
    }
    folders
}

async fn of_hosts(session: &Session) -> Vec<Item> {
    let hosts = &session.hosts.cloud;
    let folders = distinct_folders(hosts.iter().map(Host::name));
    let mut questions = Vec::new();
    for (host, folder) in hosts.iter().zip(folders) {
        questions.push(of_host(session, host, format!("hosts/{folder}")));
    }
    join_all(questions).await.into_iter().flatten().collect()
}

/// Pages, commands and events of one cloud host.
async fn of_host(session: &Session, host: &Host, folder: String) -> Vec<Item> {
    let mut questions = Vec::new();
    for (file, about, words) in COMMANDS {
        let path = format!("{folder}/{file}");
        questions.push(ask_command(session, host, path, about, words));
    }
    let events = ask_events(session, host, format!("{folder}/connections.json"));
    let pages = async {
        let mut items = Vec::new();
        for (socket, program) in PROGRAMS {
            let path = format!("{folder}/{program}");
            let asked = async { Pages::connect(host, socket).await };
            items.extend(ask_pages(session.timeout, asked, &path).await);
        }
        items
    };
    let (mut items, events, pages) = tokio::join!(join_all(questions), events, pages);
    items.push(events);
    items.extend(pages);
    items
}

async fn ask_command(
    session: &Session,
    host: &Host,
    path: String,
    about: &str,
    words: &[&str],
) -> Item {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let deadline = session.timeout.saturating_add(LONGER);
    let content = match timeout(deadline, host.run(&words)).await {
        Ok(Ok(finished)) if finished.out.trim().is_empty() => {
            Err(format!("{}: {}", words[0], finished.err.trim()))
        }
        Ok(Ok(finished)) => Ok(finished.out),
        Ok(Err(unanswered)) => Err(unanswered.text),
        Err(_) => Err(NoAnswer::late(deadline).text),
    };
    Item::new(path, about, content)
}

async fn ask_events(session: &Session, host: &Host, path: String) -> Item {
    let asked = timeout(session.timeout, events(host)).await;
    let content = match asked {
        Ok(Ok(events)) => json(&events),
        Ok(Err(unanswered)) => Err(unanswered.text),
        Err(_) => Err(NoAnswer::late(session.timeout).text),
    };
    Item::new(path, "the last connections that began and ended", content)
}

async fn events(host: &Host) -> Result<Vec<Event>, NoAnswer> {
    let mut control = Control::connect(host).await?;
    let request = proto::ObserveRequest {
        last: MAX_EVENTS,
        ..proto::ObserveRequest::default()
    };
    let mut sent = control.observe(request).await?;
    let mut events = Vec::new();
    while let Ok(Some(event)) = sent.message().await {
        events.push(Event::of(host.name(), event));
    }
    Ok(events)
}

/// All pages of a program that its index lists.
async fn ask_pages(
    deadline: Duration,
    connect: impl Future<Output = Result<Pages, NoAnswer>>,
    folder: &str,
) -> Vec<Item> {
    let index = format!("{folder}/index.txt");
    let listed = timeout(deadline, async {
        let mut pages = connect.await?;
        let (_, index) = pages.get("/").await?;
        Ok::<_, NoAnswer>((pages, index))
    });
    let (mut pages, text) = match listed.await {
        Ok(Ok(listed)) => listed,
        Ok(Err(unanswered)) => return vec![Item::new(index, "its pages", Err(unanswered.text))],
        Err(_) => {
            let late = NoAnswer::late(deadline).text;
            return vec![Item::new(index, "its pages", Err(late))];
        }
    };
    let mut items = Vec::new();
    let mut is_over = false;
    for line in text.lines() {
        let Some((path, about)) = page_of(line) else {
            continue;
        };
        let content = if is_over {
            Err("not asked: the connection was of no use any more".to_owned())
        } else {
            page(deadline, &mut pages, path).await
        };
        is_over |= content.is_err();
        let file = format!("{folder}{path}.txt");
        items.push(Item::new(file, about, content));
    }
    items
}

async fn page(deadline: Duration, pages: &mut Pages, path: &str) -> Result<String, String> {
    match timeout(deadline, pages.get(path)).await {
        Ok(Ok((_, text))) => Ok(text),
        Ok(Err(unanswered)) => Err(unanswered.text),
        Err(_) => Err(NoAnswer::late(deadline).text),
    }
}

/// A page of an index that can be read as it is.
fn page_of(line: &str) -> Option<(&str, &str)> {
    let (path, about) = line.split_once(' ')?;
    // A folder is for browsers, and shows what the other pages have.
    let is_plain = path.starts_with('/')
        && !path.ends_with('/')
        && !path.contains(['{', '.'])
        && path != "/debug/log";
    is_plain.then_some((path, about.trim()))
}

/// What all hosts say of the way to nodes without a tunnel.
async fn explain_offline(session: &Session, known: &[Node]) -> Vec<Item> {
    let mut offline = Vec::new();
    for node in known.iter().filter(|node| !node.online).take(MAX_NODES) {
        offline.push(node.node.as_str());
    }
    let folders = distinct_folders(offline.iter().copied());
    let mut questions = Vec::new();
    for (node, folder) in offline.into_iter().zip(folders) {
        questions.push(explain(session, node, format!("why/{folder}.json")));
    }
    let answers = stream::iter(questions).buffered(NODES_AT_ONCE);
    answers.collect().await
}

async fn explain(session: &Session, node: &str, path: String) -> Item {
    let request = proto::ExplainRequest {
        destination: node.to_owned(),
        dial: false,
    };
    let ways = hops::ask_all(session, &request).await;
    let about = format!("culvert why {node}: it is offline");
    Item::new(path, &about, json(&ways))
}

/// Pages of agents, through tunnels.
async fn of_agents(session: &Session, hosts: &[Answered<CloudHost>], known: &[Node]) -> Vec<Item> {
    let mut questions = Vec::new();
    for node in known.iter().filter(|node| node.online).take(MAX_NODES) {
        let Ok(name) = node.node.parse::<NodeName>() else {
            continue;
        };
        let Some(host) = host_with_tunnel(session, hosts, &node.node) else {
            continue;
        };
        questions.push(async move {
            let path = format!("nodes/{}/culvert-agent", folder(name.as_str()));
            let asked = Pages::connect_node(host, &name, AGENT_ADMIN_PORT);
            ask_pages(session.timeout, asked, &path).await
        });
    }
    join_all(questions).await.into_iter().flatten().collect()
}

/// Logs of pods and events of the namespace, if a cluster is asked.
async fn of_cluster(session: &Session) -> Vec<Item> {
    let Some(host) = session.hosts.cloud.iter().find(|host| host.is_pod()) else {
        return Vec::new();
    };
    let mut items = Vec::new();
    for (path, about, content) in host.cluster_texts(session.timeout).await {
        let path = format!("cluster/{path}");
        items.push(Item::new(path, &about, content));
    }
    items
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    #[test]
    fn a_page_with_a_parameter_or_without_a_text_is_not_asked_for() {
        assert_eq!(
            page_of("/debug/nodes  the directory"),
            Some(("/debug/nodes", "the directory"))
        );
        for line in [
            "",
            "Pages of culvert-proxy:",
            "/debug/explain/{destination}  why",
            "/debug/log  PUT",
            "/dashboard/  for browsers",
        ] {
            assert_eq!(page_of(line), None, "{line}");
        }
    }

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

    #[tokio::test]
    async fn each_page_after_one_that_fails_has_a_line() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&socket)?;
        let serve = async {
            let (mut connection, _) = listener.accept().await?;
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(connection.read_u8().await?);
            }
            let index = "/debug/a  a\n/debug/b  b\n/debug/c  c\n";
            let length = index.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{index}");
            connection.write_all(answer.as_bytes()).await
        };
        let asked = Pages::connect_socket(&socket);
        let deadline = Duration::from_secs(60);
        let (items, served) = tokio::join!(ask_pages(deadline, asked, "x"), serve);
        served?;
        let mut reasons = Vec::new();
        for item in items {
            reasons.push((item.path, item.content.expect_err("no page")));
        }
        let [(a, _), (b, reason), (c, _)] = reasons.as_slice() else {
            panic!("{reasons:?}");
        };
        assert_eq!(
            [a, b, c],
            ["x/debug/a.txt", "x/debug/b.txt", "x/debug/c.txt"]
        );
        assert!(reason.starts_with("not asked"), "{reason}");
        Ok(())
    }

    #[test]
    fn two_hosts_have_two_folders() {
        let folders = distinct_folders(["cloud-1", "a@b", "cloud-1", "a_b", "cloud-1"]);
        assert_eq!(
            folders,
            ["cloud-1", "a_b", "cloud-1_2", "a_b_2", "cloud-1_3"]
        );
    }

    #[test]
    fn no_name_leads_out_of_its_folder() {
        assert_eq!(folder("root@cloud-1"), "root_cloud-1");
        assert_eq!(folder("../../etc"), ".._.._etc");
        assert_eq!(folder(".."), "_");
    }
}
