//! What each cloud host has: pages of its programs, what commands print there, and the last
//! connections of its proxy.

use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_site::event::Event;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::folder::distinct_folders;
use super::pages::ask_pages;
use super::{Item, json};
use crate::control::Control;
use crate::hosts::{Host, NoAnswer, Socket};
use crate::pages::Pages;
use crate::session::Session;

/// Lines of a log.
const LOG_LINES: &str = "5000";
/// Events of connections, of each proxy.
const MAX_EVENTS: u32 = 2_000;
/// A check dials, and asks DNS servers and the cluster.
const CHECK_TIME: Duration = Duration::from_secs(30);
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

/// Collects it from all of them at once.
pub(super) async fn collect(session: &Session) -> Vec<Item> {
    let hosts = &session.hosts.cloud;
    let folders = distinct_folders(hosts.iter().map(Host::name));
    let mut questions = Vec::new();
    for (host, folder) in hosts.iter().zip(folders) {
        questions.push(ask_host(session, host, format!("hosts/{folder}")));
    }
    join_all(questions).await.into_iter().flatten().collect()
}

/// Pages, commands and events of one cloud host.
async fn ask_host(session: &Session, host: &Host, folder: String) -> Vec<Item> {
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
    let deadline = session.timeout.saturating_add(CHECK_TIME);
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
