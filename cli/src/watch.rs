//! All proxies, asked again and again over connections that are kept. One that is dead or slow costs
//! the others nothing, and is asked again each time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_site::answered::Answered;
use culvert_site::board::SharedBoard;
use culvert_site::event::Event;
use culvert_site::site::{Site, WatchedAnswer};
use culvert_site::units::now_seconds;
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::cloud_host::CloudConnections;
use crate::hosts::{Host, NoAnswer};
use crate::session::Session;

/// Has a board show what all hosts say, again and again.
pub(crate) async fn watch(
    session: Arc<Session>,
    interval: Duration,
    board: &SharedBoard,
    news: &Notify,
) {
    let mut watch = Watch::new(session);
    loop {
        let (site, at) = watch.ask().await;
        board.lock().record(site, at);
        news.notify_one();
        sleep(interval).await;
    }
}

/// Whom to ask again.
struct Watch {
    session: Arc<Session>,
    /// The connections to each host, in the order of the session's hosts.
    connections: Vec<Option<CloudConnections>>,
}

impl Watch {
    fn new(session: Arc<Session>) -> Self {
        let mut connections = Vec::new();
        connections.resize_with(session.hosts.cloud.len(), || None);
        Self {
            session,
            connections,
        }
    }

    /// Asks all of them once.
    async fn ask(&mut self) -> (Site, Instant) {
        let deadline = self.session.timeout;
        let mut questions = Vec::new();
        for (host, kept) in self.session.hosts.cloud.iter().zip(&mut self.connections) {
            questions.push(timeout(deadline, ask(host, kept)));
        }
        let mut answers = Vec::new();
        let answered = join_all(questions).await;
        for (host, answer) in self.session.hosts.cloud.iter().zip(answered) {
            answers.push(Answered {
                host: host.name().to_owned(),
                answer: answer.unwrap_or_else(|_| Err(NoAnswer::late(deadline))),
            });
        }
        (Site::of(answers, now_seconds()), Instant::now())
    }
}

/// Asks over the connections that there are; over new ones if they lead nowhere, because a program
/// ends them after a while. Those of a question that is given up are in use, so they are not kept.
async fn ask(host: &Host, kept: &mut Option<CloudConnections>) -> Result<WatchedAnswer, NoAnswer> {
    if let Some(mut connections) = kept.take()
        && let Ok(answer) = ask_over(host, &mut connections).await
    {
        *kept = Some(connections);
        return Ok(answer);
    }
    let mut connections = CloudConnections::connect(host).await?;
    let answer = ask_over(host, &mut connections).await?;
    *kept = Some(connections);
    Ok(answer)
}

async fn ask_over(
    host: &Host,
    connections: &mut CloudConnections,
) -> Result<WatchedAnswer, NoAnswer> {
    let host = connections.ask(host).await?;
    let mut failures = Vec::new();
    for event in connections.failures().await? {
        failures.push(Event::of(host.name(), event));
    }
    let traffic = connections.traffic().await?;
    Ok(WatchedAnswer {
        host,
        failures,
        traffic,
    })
}
