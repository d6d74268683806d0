//! `culvert streams`.

use std::time::Duration;

use anyhow::Result;
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::stream::Stream;
use culvert_site::units::span;
use culvert_site::verdict;
use serde::Serialize;

use super::{Unheard, report_unanswered, unheard};
use crate::args::StreamsArgs;
use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::screen::Screen;
use crate::session::Session;
use crate::table::Table;

/// The answer.
#[derive(Debug, Serialize)]
struct Streams {
    streams: Vec<Stream>,
    /// How many more there are.
    left_out: u64,
    unanswered: Vec<Unheard>,
}

/// Lists the connections of all proxies, those that wait for the longest first.
///
/// # Errors
/// No host has answered.
pub(super) async fn run(session: &Session, arguments: &StreamsArgs) -> Result<()> {
    let node = arguments.node.as_ref().map(NodeName::to_string);
    let request = proto::ListStreamsRequest {
        node: node.unwrap_or_default(),
        idle_seconds: arguments.idle.unwrap_or_default().as_secs(),
    };
    let answers = session
        .ask(Duration::ZERO, |host| ask(host, &request))
        .await;
    report_unanswered(&answers)?;
    session.print(&streams(&answers), text)
}

/// The name of the host, and its proxy's connections.
type Listed = (String, proto::ListStreamsResponse);

async fn ask(host: &Host, request: &proto::ListStreamsRequest) -> Result<Listed, NoAnswer> {
    let mut control = Control::connect(host).await?;
    let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
    let own = proxies.proxies.into_iter().next().unwrap_or_default();
    Ok((own.host, control.list_streams(request.clone()).await?))
}

fn streams(answers: &[Answered<Listed>]) -> Streams {
    let mut all = Streams {
        streams: Vec::new(),
        left_out: 0,
        unanswered: unheard(answers),
    };
    for (proxy, listed) in all_ok(answers) {
        all.left_out += listed.left_out;
        for stream in &listed.streams {
            all.streams.push(Stream::of(proxy, stream));
        }
    }
    all.streams.sort_by_key(Stream::urgency);
    all
}

fn text(answer: &Streams, screen: &Screen) -> String {
    let mut table = Table::new(&["PROXY", "AGE", "IDLE", "SENT", "GOT", "CONNECTION"]);
    for stream in &answer.streams {
        table.row(
            verdict::of_wait(stream.waits.then_some(stream.idle_seconds)),
            [
                stream.proxy.clone(),
                span(stream.age_seconds),
                span(stream.idle_seconds),
                stream.bytes_to_backend.to_string(),
                stream.bytes_to_client.to_string(),
                connection(stream),
            ],
        );
    }
    let mut text = table.text(screen);
    if answer.left_out > 0 {
        text += &format!("and {} more\n", answer.left_out);
    }
    text
}

/// From where to where, whether it waits, and by which way. The last column is the one that may be long.
fn connection(stream: &Stream) -> String {
    let mut text = format!("{} -> {}", stream.client, stream.destination);
    if !stream.node.is_empty() {
        text += &format!(" at {}", stream.node);
    }
    if stream.waits {
        text += ", waits for its backend";
    }
    if let Some(way) = stream.way() {
        text += &format!(" ({way})");
    }
    text
}
