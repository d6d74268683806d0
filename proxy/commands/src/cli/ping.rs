//! `culvert-proxy ping`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_daemon::parse_duration;

use super::Client;
use super::table::table;

/// Whom to ask, and how often.
#[derive(Args, Clone, Debug)]
pub struct PingCommand {
    /// The node's name, as `culvert-proxy node list` shows it.
    node: NodeName,

    /// How many times each tunnel is asked.
    #[arg(long, short = 'c', value_name = "N", default_value = "4")]
    count: NonZeroU32,

    /// The pause between two times.
    #[arg(long, short, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
}

/// The answers in one tunnel.
#[derive(Debug, Default)]
struct Answers {
    agent: String,
    sent: u32,
    times: Vec<Duration>,
}

impl PingCommand {
    /// Asks through the proxy that listens on the socket. Prints each answer, and all at the end.
    ///
    /// # Errors
    ///
    /// No tunnel ends at this proxy, or no agent answers.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let mut client = Client::connect(control_socket).await?;
        let mut all: BTreeMap<u64, Answers> = BTreeMap::new();
        for round in 0..self.count.get() {
            if round > 0 {
                tokio::time::sleep(self.interval).await;
            }
            let answer = match client.ping(&self.node).await {
                Ok(answer) => answer,
                Err(error) if round == 0 => return Err(error),
                Err(error) => {
                    println!("{error:#}");
                    all.values_mut().for_each(|answers| answers.sent += 1);
                    continue;
                }
            };
            if round == 0 {
                for host in &answer.elsewhere {
                    eprintln!(
                        "# {} has tunnels at {host} too: ask the proxy there",
                        self.node
                    );
                }
            }
            for tunnel in &answer.tunnels {
                println!("{}", line(tunnel));
                record(&mut all, tunnel);
            }
        }
        print!("\n{}", summary(&all));
        ensure!(
            all.values().any(|answers| !answers.times.is_empty()),
            "{} does not answer in any tunnel",
            self.node
        );
        Ok(())
    }
}

fn line(tunnel: &proto::TunnelPing) -> String {
    let proto::TunnelPing {
        tunnel,
        agent,
        micros,
        problem,
    } = tunnel;
    if problem.is_empty() {
        let time = Duration::from_micros(*micros);
        format!("tunnel {tunnel} from {agent}: {time:.1?}")
    } else {
        format!("tunnel {tunnel} from {agent}: {problem}")
    }
}

fn record(all: &mut BTreeMap<u64, Answers>, tunnel: &proto::TunnelPing) {
    let answers = all.entry(tunnel.tunnel).or_default();
    answers.agent.clone_from(&tunnel.agent);
    answers.sent += 1;
    if tunnel.problem.is_empty() {
        answers.times.push(Duration::from_micros(tunnel.micros));
    }
}

/// A line for each tunnel.
fn summary(all: &BTreeMap<u64, Answers>) -> String {
    let mut rows = Vec::new();
    for (tunnel, answers) in all {
        let Answers { agent, sent, times } = answers;
        let answered = u32::try_from(times.len()).unwrap_or(*sent);
        let lost = 100.0 * f64::from(sent - answered) / f64::from(*sent);
        let total: Duration = times.iter().sum();
        rows.push(vec![
            tunnel.to_string(),
            agent.clone(),
            sent.to_string(),
            format!("{lost:.0}%"),
            rounded(times.iter().min().copied()),
            rounded(total.checked_div(answered)),
            rounded(times.iter().max().copied()),
        ]);
    }
    let head = ["TUNNEL", "AGENT", "ASKED", "LOST", "MIN", "MEAN", "MAX"];
    table(&head, &rows)
}

fn rounded(time: Option<Duration>) -> String {
    match time {
        Some(time) => format!("{time:.1?}"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_what_was_lost() {
        let ping = |tunnel, micros, problem: &str| proto::TunnelPing {
            tunnel,
            agent: "192.0.2.1:4000".into(),
            micros,
            problem: problem.into(),
        };
        let mut all = BTreeMap::new();
        for ping in [
            ping(3, 1500, ""),
            ping(3, 0, "no answer within 5 s"),
            ping(3, 2500, ""),
            ping(3, 0, "no answer within 5 s"),
            ping(12, 0, "no answer within 5 s"),
        ] {
            record(&mut all, &ping);
        }
        assert_eq!(
            summary(&all),
            "TUNNEL  AGENT           ASKED  LOST  MIN    MEAN   MAX\n\
             3       192.0.2.1:4000  4      50%   1.5ms  2.0ms  2.5ms\n\
             12      192.0.2.1:4000  1      100%  -      -      -\n"
        );
        assert_eq!(
            line(&ping(3, 1500, "")),
            "tunnel 3 from 192.0.2.1:4000: 1.5ms"
        );
    }
}
