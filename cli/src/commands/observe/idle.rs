//! `culvert observe --idle`: connections in which nothing has moved for some time. The proxies list
//! them; an event is made of each one that was not among them before.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::proto::control as proto;
use culvert_site::event::Event;
use culvert_site::units::now_seconds;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::{is_wanted, print};
use crate::args::ObserveArgs;
use crate::commands::{print_error, report_unanswered};
use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::screen::clean;
use crate::session::Session;

/// The pause before a proxy is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// A proxy, and its connections that are known to be idle.
struct IdleStreams {
    control: Control,
    proxy: String,
    request: proto::ListStreamsRequest,
    /// Idle streams of the last answer.
    known: HashSet<IdleStream>,
    /// How many more there were.
    left_out: u64,
}

/// A connection since its last byte: the number of the stream and the bytes until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct IdleStream {
    stream: u64,
    bytes: u64,
}

/// Prints those that are idle now, and with `--follow` all that become it.
///
/// # Errors
/// No host has answered; with `--follow` none answers any more.
pub(super) async fn run(session: &Session, arguments: &ObserveArgs, idle: Duration) -> Result<()> {
    let request = proto::ListStreamsRequest {
        node: arguments
            .node
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        idle_seconds: idle.as_secs(),
    };
    let answers = session
        .ask(Duration::ZERO, |host| IdleStreams::ask(host, &request))
        .await;
    report_unanswered(&answers)?;
    let mut followed = Vec::new();
    for answered in answers {
        let Ok((idle, events)) = answered.answer else {
            continue;
        };
        print_wanted(session, arguments, &events)?;
        if arguments.follow {
            followed.push(follow(session, arguments, answered.host, idle));
        }
    }
    if !arguments.follow {
        return Ok(());
    }
    for ended in join_all(followed).await {
        ended?;
    }
    bail!("no proxy answers any more")
}

/// Follows one proxy until it does not answer.
async fn follow(
    session: &Session,
    arguments: &ObserveArgs,
    host: String,
    mut idle: IdleStreams,
) -> Result<()> {
    loop {
        sleep(PAUSE).await;
        let events = match timeout(session.timeout, idle.new_events()).await {
            Ok(Ok(events)) => events,
            Ok(Err(unanswered)) => {
                print_error(&host, &unanswered);
                return Ok(());
            }
            Err(_) => {
                print_error(&host, &NoAnswer::late(session.timeout));
                return Ok(());
            }
        };
        print_wanted(session, arguments, &events)?;
    }
}

fn print_wanted(session: &Session, arguments: &ObserveArgs, events: &[Event]) -> Result<()> {
    for event in events {
        if is_wanted(event, arguments) {
            print(session, event)?;
        }
    }
    Ok(())
}

impl IdleStreams {
    /// Connects with the proxy of a host, and asks for the first time.
    async fn ask(
        host: &Host,
        request: &proto::ListStreamsRequest,
    ) -> Result<(Self, Vec<Event>), NoAnswer> {
        let mut control = Control::connect(host).await?;
        let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
        let own = proxies.proxies.into_iter().next().unwrap_or_default();
        let mut idle = Self {
            control,
            proxy: own.host,
            request: request.clone(),
            known: HashSet::new(),
            left_out: 0,
        };
        let events = idle.new_events().await?;
        Ok((idle, events))
    }

    /// Events of the streams that have become idle since the last call.
    async fn new_events(&mut self) -> Result<Vec<Event>, NoAnswer> {
        let listed = self.control.list_streams(self.request.clone()).await?;
        if listed.left_out > self.left_out {
            let proxy = clean(&self.proxy);
            eprintln!(
                "# {proxy}: {} more are idle, and not shown",
                listed.left_out
            );
        }
        self.left_out = listed.left_out;
        let known = std::mem::take(&mut self.known);
        let mut events = Vec::new();
        for status in listed.streams {
            let idle = IdleStream::of(&status);
            self.known.insert(idle);
            if !known.contains(&idle) {
                let now = now_seconds().saturating_mul(1_000);
                events.push(Event::idle(&self.proxy, now, status));
            }
        }
        Ok(events)
    }
}

impl IdleStream {
    fn of(status: &proto::StreamStatus) -> Self {
        Self {
            stream: status.stream,
            bytes: status
                .bytes_to_backend
                .saturating_add(status.bytes_to_client),
        }
    }
}
