//! `culvert observe`: connections as they begin and end, or are idle, at all proxies.

mod idle;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::proto::control as proto;
use culvert_site::answered::Answered;
use culvert_site::event::Event;
use culvert_site::units::now_seconds;
use culvert_site::units::time_of_day;
use futures_util::future::join_all;
use tokio::time::timeout;
use tonic::Streaming;

use super::print_error;
use crate::args::{ObserveArgs, Output};
use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::nearest::own_name;
use crate::screen::clean;
use crate::session::Session;

/// How many events are shown if no flag says it.
const USUAL_LAST: usize = 100;

/// A proxy's own name, and its events.
struct Events {
    proxy: String,
    events: Streaming<proto::StreamEvent>,
}

/// Prints the last events, and with `--follow` all that come.
///
/// # Errors
/// No host has answered; with `--follow` none answers any more.
pub(super) async fn run(session: &Session, arguments: &ObserveArgs) -> Result<()> {
    let mut arguments = arguments.clone();
    if let Some(node) = arguments.node.take() {
        arguments.node = Some(own_name(session, node).await);
    }
    let arguments = &arguments;
    if let Some(idle) = arguments.idle {
        return idle::run(session, arguments, idle).await;
    }
    let follow = arguments.follow;
    let request = proto::ObserveRequest {
        follow,
        ..proto::ObserveRequest::default()
    };
    let answers = session.ask(Duration::ZERO, |host| ask(host, request)).await;
    super::report_unanswered(&answers)?;
    if follow {
        follow_all(session, arguments, answers).await
    } else {
        last(session, arguments, answers).await
    }
}

async fn ask(host: &Host, request: proto::ObserveRequest) -> Result<(Control, Events), NoAnswer> {
    let mut control = Control::connect(host).await?;
    let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
    let own = proxies.proxies.into_iter().next().unwrap_or_default();
    let events = control.observe(request).await?;
    let proxy = own.host;
    // The connection lives as long as its control.
    Ok((control, Events { proxy, events }))
}

/// All that the proxies keep, by time.
async fn last(
    session: &Session,
    arguments: &ObserveArgs,
    answers: Vec<Answered<(Control, Events)>>,
) -> Result<()> {
    let mut all = Vec::new();
    for answered in answers {
        let Ok((_control, mut events)) = answered.answer else {
            continue;
        };
        let read = timeout(session.timeout, read_all(&mut events, arguments, &mut all)).await;
        if !matches!(read, Ok(Ok(()))) {
            print_error(&answered.host, &NoAnswer::late(session.timeout));
        }
    }
    all.sort_by_key(|event: &Event| event.unix_millis);
    if let Some(since) = arguments.since {
        drop_before(&mut all, now_seconds().saturating_sub(since.as_secs()));
    }
    let most = arguments.last.unwrap_or(match arguments.since {
        Some(_) => usize::MAX,
        None => USUAL_LAST,
    });
    let skipped = all.len().saturating_sub(most);
    for event in &all[skipped..] {
        print(session, event)?;
    }
    Ok(())
}

/// Leaves those from this second on, and how many are missing.
fn drop_before(events: &mut Vec<Event>, second: u64) {
    let from = second.saturating_mul(1_000);
    events.retain(|event| event.event == "lost" || event.unix_millis >= from);
}

async fn read_all(
    events: &mut Events,
    arguments: &ObserveArgs,
    all: &mut Vec<Event>,
) -> Result<()> {
    while let Some(event) = events.events.message().await? {
        let event = Event::of(&events.proxy, event);
        if is_wanted(&event, arguments) {
            all.push(event);
        }
    }
    Ok(())
}

async fn follow_all(
    session: &Session,
    arguments: &ObserveArgs,
    answers: Vec<Answered<(Control, Events)>>,
) -> Result<()> {
    let mut followed = Vec::new();
    for answered in answers {
        if let Ok(events) = answered.answer {
            followed.push(follow_one(session, arguments, answered.host, events));
        }
    }
    for ended in join_all(followed).await {
        ended?;
    }
    bail!("no proxy sends events any more")
}

/// Follows one proxy until it ends.
async fn follow_one(
    session: &Session,
    arguments: &ObserveArgs,
    host: String,
    (_control, mut events): (Control, Events),
) -> Result<()> {
    loop {
        match events.events.message().await {
            Ok(Some(event)) => {
                let event = Event::of(&events.proxy, event);
                if is_wanted(&event, arguments) {
                    print(session, &event)?;
                }
            }
            Ok(None) => {
                eprintln!("# {}: the proxy has ended", clean(&host));
                return Ok(());
            }
            Err(status) => {
                eprintln!("# {}: {}", clean(&host), clean(status.message()));
                return Ok(());
            }
        }
    }
}

/// Whether the flags let it through. What is lost always is: it may be any.
fn is_wanted(event: &Event, arguments: &ObserveArgs) -> bool {
    if event.event == "lost" {
        return true;
    }
    if let Some(node) = &arguments.node
        && !event.is_of_node(node.as_str())
    {
        return false;
    }
    if let Some(port) = arguments.port
        && !event.destination.ends_with(&format!(":{port}"))
    {
        return false;
    }
    if let Some(client) = arguments.client
        && !has_address(&event.client, client)
    {
        return false;
    }
    match &arguments.outcome {
        Some(outcome) => event.outcome == *outcome,
        None => true,
    }
}

/// Whether a client, `IP:PORT` or a description, has the address.
fn has_address(client: &str, address: IpAddr) -> bool {
    let parsed = client.parse::<std::net::SocketAddr>();
    parsed.is_ok_and(|client| client.ip().to_canonical() == address)
}

fn print(session: &Session, event: &Event) -> Result<()> {
    let line = match session.output {
        Output::Json => serde_json::to_string(event)?,
        Output::Text => text(event),
    };
    session.screen.print(&format!("{line}\n"))
}

fn text(event: &Event) -> String {
    if event.event == "lost" {
        return format!(
            "{}: {} events are missing here",
            clean(&event.proxy),
            event.lost
        );
    }
    let at = time_of_day(event.unix_millis / 1_000);
    let mut line = format!(
        "{at}Z {} {} {} {} -> {}",
        event.proxy, event.stream, event.event, event.client, event.destination
    );
    if !event.node.is_empty() {
        line += &format!(" at {}", event.node);
    }
    match event.event {
        "ended" => line += &format!(" {} after {} ms", event.outcome, event.duration_millis),
        "idle" => line += &format!(" for {} s", event.idle_seconds),
        _ => {}
    }
    if event.event != "begun" {
        line += &format!(
            ", sent {} B, got {} B",
            event.bytes_to_backend, event.bytes_to_client
        );
    }
    if !event.reason.is_empty() {
        line += &format!(": {}", event.reason);
    }
    clean(&line)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command, Question};

    fn event(client: &str, destination: &str, node: &str, outcome: &str) -> Event {
        let event = proto::StreamEvent {
            client: client.into(),
            destination: destination.into(),
            node: node.into(),
            outcome: outcome.into(),
            ..proto::StreamEvent::default()
        };
        Event::of("cloud-1", event)
    }

    fn is_chosen(flags: &[&str], event: &Event) -> bool {
        let line = [&["culvert", "observe"], flags].concat();
        let parsed = Arguments::try_parse_from(line).expect("it parses");
        let Command::Ask(Question::Observe(arguments)) = parsed.command else {
            panic!("{parsed:?}");
        };
        is_wanted(event, &arguments)
    }

    #[test]
    fn each_flag_takes_away_what_is_of_others() {
        let ended = event("10.0.0.2:40000", "198.18.0.2:9100", "edge-1", "finished");
        let begun = event("[::ffff:10.0.0.2]:40000", "edge-1:9100", "", "");
        for event in [&ended, &begun] {
            assert!(is_chosen(&[], event));
            assert!(is_chosen(
                &["--node", "edge-1", "--client", "10.0.0.2"],
                event
            ));
            assert!(is_chosen(&["--port", "9100"], event));
            assert!(!is_chosen(&["--node", "edge-2"], event));
            assert!(!is_chosen(&["--client", "10.0.0.3"], event));
            assert!(!is_chosen(&["--port", "100"], event));
        }
        assert!(is_chosen(&["--outcome", "finished"], &ended));
        assert!(!is_chosen(&["--outcome", "finished"], &begun));
    }

    #[test]
    fn what_was_before_is_left_out() {
        let at = |unix_millis, lost| {
            let event = proto::StreamEvent {
                unix_millis,
                lost,
                ..proto::StreamEvent::default()
            };
            Event::of("cloud-1", event)
        };
        let mut events = vec![at(0, 3), at(4_999, 0), at(5_000, 0)];
        drop_before(&mut events, 5);
        assert_eq!(events, [at(0, 3), at(5_000, 0)]);
    }

    #[test]
    fn what_is_missing_is_said_whatever_is_asked_for() {
        let lost = Event::of(
            "cloud-1",
            proto::StreamEvent {
                lost: 9,
                ..proto::StreamEvent::default()
            },
        );
        assert_eq!(lost.event, "lost");
        assert!(is_chosen(&["--node", "edge-2"], &lost));
        assert!(text(&lost).contains('9'));
    }
}
