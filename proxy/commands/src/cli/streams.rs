//! `culvert-proxy streams`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_daemon::parse_duration;

use super::Client;
use super::table::table;

/// Which connections to list.
#[derive(Args, Clone, Debug)]
pub struct StreamsCommand {
    /// Only those to this node.
    node: Option<NodeName>,

    /// Only those without a byte in either direction for so long, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    idle: Option<Duration>,
}

impl StreamsCommand {
    /// Asks the proxy that listens on the socket, and prints the answer.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let request = proto::ListStreamsRequest {
            node: self
                .node
                .as_ref()
                .map(NodeName::to_string)
                .unwrap_or_default(),
            idle_seconds: self.idle.unwrap_or_default().as_secs(),
        };
        let mut client = Client::connect(control_socket).await?;
        let listed = client.list_streams(request).await?;
        print!("{}", stream_table(&listed.streams));
        if listed.left_out > 0 {
            eprintln!("# {} more", listed.left_out);
        }
        Ok(())
    }
}

fn stream_table(streams: &[proto::StreamStatus]) -> String {
    let mut rows = Vec::new();
    for stream in streams {
        let mut state = Vec::new();
        if stream.waits {
            state.push("waits for its backend");
        }
        match stream.move_reason.as_str() {
            "" => {}
            "by_peer" => state.push("moved from another proxy"),
            _ => state.push("moved from a shared tunnel"),
        }
        let node = if stream.node.is_empty() {
            "-"
        } else {
            &stream.node
        };
        rows.push(vec![
            stream.stream.to_string(),
            stream.client.clone(),
            stream.destination.clone(),
            node.to_owned(),
            stream.frontend.clone(),
            format!("{} s", stream.age_seconds),
            format!("{} s", stream.idle_seconds),
            stream.bytes_to_backend.to_string(),
            stream.bytes_to_client.to_string(),
            way(stream),
            state.join(", "),
        ]);
    }
    let head = [
        "STREAM",
        "CLIENT",
        "DESTINATION",
        "NODE",
        "BY",
        "AGE",
        "IDLE",
        "SENT",
        "RECEIVED",
        "TUNNEL",
        "",
    ];
    table(&head, &rows)
}

/// The tunnel here that it is in, or the other proxy by way of which it goes.
fn way(stream: &proto::StreamStatus) -> String {
    if stream.tunnel > 0 {
        stream.tunnel.to_string()
    } else if stream.peer.is_empty() {
        "-".to_owned()
    } else {
        format!("at {}", stream.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_shows_its_tunnel_and_why_it_moved_there() {
        let moved = proto::StreamStatus {
            tunnel: 4711,
            move_reason: "shared_tunnel".into(),
            ..proto::StreamStatus::default()
        };
        let by_peer = proto::StreamStatus {
            peer: "cloud-2".into(),
            ..proto::StreamStatus::default()
        };
        let text = stream_table(&[moved, by_peer]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("4711") && lines[1].contains("moved"),
            "{text}"
        );
        assert!(
            lines[2].contains("cloud-2") && !lines[2].contains("moved"),
            "{text}"
        );
    }

    #[test]
    fn a_stream_that_waits_is_marked() {
        let stream = |number, waits| proto::StreamStatus {
            stream: number,
            client: "10.0.0.2:40000".into(),
            destination: "edge-7:10250".into(),
            waits,
            ..proto::StreamStatus::default()
        };
        let text = stream_table(&[stream(7, true), stream(8, false)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].starts_with('7') && lines[1].contains("waits"),
            "{text}"
        );
        assert!(
            lines[2].starts_with('8') && !lines[2].contains("waits"),
            "{text}"
        );
    }
}
