//! What informers of client-go see through the hub. `xtask/go/informers` is the program; its
//! client-go reads lists as watches (`sendInitialEvents`).

use std::process::Stdio;
use std::sync::atomic::Ordering;

use culvert_lab::go_program::GoProgram;
use culvert_lab::skip;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{DEADLINE, TestCluster};

/// A running informer.
struct Informer {
    lines: Lines<BufReader<ChildStdout>>,
    /// Killed when it is dropped.
    _process: Child,
}

#[derive(Deserialize)]
struct Line {
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    text: String,
}

impl Informer {
    /// `None`: there is no such program here, which is reported.
    fn start(cluster: &TestCluster) -> Option<Self> {
        let Some(program) = GoProgram::Informers.find() else {
            skip::skip("informers of client-go are not compiled: run `cargo xtask setup`");
            return None;
        };
        let [certificate, key] = cluster.kubelet_files();
        let mut process = Command::new(program)
            .arg("-server")
            .arg(&cluster.address)
            .arg("-authority")
            .arg(cluster.state.path().join("local/ca.crt"))
            .arg("-certificate")
            .arg(certificate)
            .arg("-key")
            .arg(key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Some(Self {
            lines: BufReader::new(process.stdout.take()?).lines(),
            _process: process,
        })
    }

    /// The next of what its handlers see: `add a`, `synced`, `error ...`.
    async fn next(&mut self) -> String {
        let line = timeout(DEADLINE, self.lines.next_line()).await.unwrap();
        let line: Line = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
        let words = [line.event, line.name, line.text];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        words.join(" ")
    }

    /// Until it has seen all that exists: handlers run beside each other.
    async fn synced(&mut self, expected: &[&str]) {
        let mut seen = Vec::new();
        while seen.len() <= expected.len() {
            seen.push(self.next().await);
        }
        seen.sort();
        assert_eq!(seen[..expected.len()], *expected);
        assert_eq!(seen[expected.len()], "synced");
    }
}

async fn with_pods() -> TestCluster {
    let cluster = TestCluster::start().await;
    cluster.api.happens("ADDED", "a");
    cluster.api.happens("ADDED", "b");
    cluster.link_is(true).await;
    cluster
}

#[tokio::test]
async fn an_informer_that_streams_its_list_sees_no_cut() {
    let cluster = with_pods().await;
    let Some(mut informer) = Informer::start(&cluster) else {
        return;
    };
    informer.synced(&["add a", "add b"]).await;
    cluster.cut().await;
    cluster.api.happens("DELETED", "b");
    cluster.api.happens("ADDED", "c");
    cluster.reconnect().await;
    assert_eq!(informer.next().await, "delete b");
    assert_eq!(informer.next().await, "add c");
    let shared = &cluster.api.shared;
    assert_eq!(shared.streamed_lists.load(Ordering::Relaxed), 1, "no list");
    assert_eq!(shared.lists.load(Ordering::Relaxed), 0, "no fallback");
}

#[tokio::test]
async fn an_informer_that_starts_without_a_link_has_the_whole_list_and_goes_on_with_the_link() {
    let cluster = with_pods().await;
    let Some(mut first) = Informer::start(&cluster) else {
        return;
    };
    first.synced(&["add a", "add b"]).await;
    drop(first);
    cluster.cut().await;
    let Some(mut informer) = Informer::start(&cluster) else {
        return;
    };
    informer.synced(&["add a", "add b"]).await;
    cluster.api.happens("MODIFIED", "a");
    cluster.reconnect().await;
    assert_eq!(informer.next().await, "update a");
    let streamed = cluster.api.shared.streamed_lists.load(Ordering::Relaxed);
    assert_eq!(streamed, 1, "the second list was local");
}

#[tokio::test]
async fn an_informer_is_told_the_differences_if_the_history_is_forgotten() {
    let cluster = with_pods().await;
    let Some(mut informer) = Informer::start(&cluster) else {
        return;
    };
    informer.synced(&["add a", "add b"]).await;
    cluster.cut().await;
    cluster.api.happens("DELETED", "b");
    cluster.api.happens("ADDED", "c");
    cluster.api.forget_history();
    cluster.reconnect().await;
    assert_eq!(informer.next().await, "delete b");
    assert_eq!(informer.next().await, "add c");
    cluster.api.happens("MODIFIED", "c");
    assert_eq!(informer.next().await, "update c");
}
