//! What happens to a connection from a cloud host: what its kernel and its proxy say, hop by hop, and
//! what to do.

use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_site::answered::Answered;
use culvert_site::fixes;
use culvert_site::host_path::{Hop, HostPath};
use serde::Deserialize;

use crate::control::Control;
use crate::hosts::{Host, NoAnswer, Socket};
use crate::pages::Pages;
use crate::session::Session;

/// A proxy gives its agent 9 s for a dial.
const DIAL: Duration = Duration::from_secs(10);

/// As the redirector's page `/debug/explain` has it.
#[derive(Debug, Deserialize)]
struct Explained {
    destination: String,
    lines: Vec<Line>,
}

impl Explained {
    /// A destination with advice is not steered.
    fn is_steered(&self) -> bool {
        self.lines.iter().all(|line| line.subject != "fix")
    }
}

#[derive(Debug, Deserialize)]
struct Line {
    subject: String,
    text: String,
}

/// Asks all hosts at once.
pub(crate) async fn ask_all(session: &Session, request: &proto::ExplainRequest) -> Vec<HostPath> {
    let longer = if request.dial { DIAL } else { Duration::ZERO };
    let answers = session.ask(longer, |host| ask(host, request)).await;
    answers.into_iter().map(path).collect()
}

/// What the kernel of the host and its proxy say.
struct HostAnswer {
    host: String,
    kernel: Result<Vec<Explained>, NoAnswer>,
    proxy: proto::ExplainResponse,
}

async fn ask(host: &Host, request: &proto::ExplainRequest) -> Result<HostAnswer, NoAnswer> {
    let (kernel, proxy) = tokio::join!(
        ask_kernel(host, &request.destination),
        ask_proxy(host, request)
    );
    let (host, proxy) = proxy?;
    Ok(HostAnswer {
        host,
        kernel,
        proxy,
    })
}

async fn ask_kernel(host: &Host, destination: &str) -> Result<Vec<Explained>, NoAnswer> {
    // Brackets of IPv6 are not allowed in a path.
    let escaped = destination.replace('[', "%5B").replace(']', "%5D");
    let path = format!("/debug/explain/{escaped}");
    let mut pages = Pages::connect(host, Socket::Redirector).await?;
    pages.json(&path).await
}

async fn ask_proxy(
    host: &Host,
    request: &proto::ExplainRequest,
) -> Result<(String, proto::ExplainResponse), NoAnswer> {
    let mut control = Control::connect(host).await?;
    let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
    let own = proxies.proxies.into_iter().next().unwrap_or_default();
    Ok((own.host, control.explain(request.clone()).await?))
}

fn path(answered: Answered<HostAnswer>) -> HostPath {
    let answer = match answered.answer {
        Ok(answer) => answer,
        Err(unanswered) => {
            return HostPath {
                host: answered.host,
                reachable: false,
                hops: vec![hop("proxy", false, unanswered.text)],
                fixes: vec![unanswered.fix.to_owned()],
                no_node: false,
            };
        }
    };
    let mut path = HostPath {
        host: answer.host,
        reachable: answer.proxy.reachable,
        no_node: answer.proxy.no_node,
        ..HostPath::default()
    };
    // The redirector, which has its nodes from a proxy, has no page about an unknown one.
    if !path.no_node || answer.kernel.is_ok() {
        add_kernel(&mut path, answer.kernel);
    }
    path.add_proxy(answer.proxy.lines);
    path
}

fn add_kernel(path: &mut HostPath, kernel: Result<Vec<Explained>, NoAnswer>) {
    match kernel {
        Ok(explained) => {
            // When the first address of a name is refused, a client tries the next one.
            let is_any_steered = explained.iter().any(Explained::is_steered);
            path.reachable &= is_any_steered || explained.is_empty();
            for destination in explained {
                add_destination(path, destination, is_any_steered);
            }
        }
        Err(unanswered) if unanswered.is_absent => {
            let text = "no redirector on this host: clients come by the proxy's own ports";
            path.hops.push(hop("kernel", true, text.to_owned()));
        }
        Err(unanswered) => {
            path.reachable = false;
            path.hops.push(hop("kernel", false, unanswered.text));
            path.fixes.push(fixes::START_REDIRECTOR.to_owned());
        }
    }
}

fn add_destination(path: &mut HostPath, explained: Explained, is_any_steered: bool) {
    let ok = explained.is_steered();
    let mut texts = Vec::new();
    for Line { subject, text } in explained.lines {
        match subject.as_str() {
            "fix" if !is_any_steered => path.fixes.push(text),
            "fix" => {}
            // The proxy says it too, except of what this host does not steer.
            "directory" if ok => {}
            _ => texts.push(format!("{subject}: {text}")),
        }
    }
    let text = format!("{}: {}", explained.destination, texts.join("; "));
    if is_any_steered && !ok {
        path.hops.push(hop("unused", true, text));
    } else {
        path.hops.push(hop("kernel", ok, text));
    }
}

fn hop(name: &str, ok: bool, text: String) -> Hop {
    Hop {
        hop: name.to_owned(),
        ok,
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: &str, broken: bool) -> proto::ExplainLine {
        proto::ExplainLine {
            subject: subject.to_owned(),
            text: format!("text of {subject}"),
            broken,
        }
    }

    fn answer(kernel: Result<Vec<Explained>, NoAnswer>) -> Answered<HostAnswer> {
        let proxy = proto::ExplainResponse {
            lines: vec![
                line("tunnel", false),
                line("dial", true),
                line("fix", false),
            ],
            ..proto::ExplainResponse::default()
        };
        Answered {
            host: "root@cloud-1".to_owned(),
            answer: Ok(HostAnswer {
                host: "cloud-1".to_owned(),
                kernel,
                proxy,
            }),
        }
    }

    #[test]
    fn the_broken_hop_is_marked_and_the_fix_is_no_hop() {
        let from = path(answer(Ok(Vec::new())));
        let broken: Vec<&str> = from
            .hops
            .iter()
            .filter(|hop| !hop.ok)
            .map(|hop| hop.hop.as_str())
            .collect();
        assert_eq!(broken, ["dial"]);
        assert_eq!(from.fixes, ["text of fix"]);
        assert!(!from.reachable);
    }

    #[test]
    fn a_kernel_that_does_not_steer_is_a_broken_hop() {
        let explained = serde_json::from_str(
            r#"[{"destination": "198.18.0.2:9100", "lines": [
                {"subject": "hooks", "text": "not attached"},
                {"subject": "fix", "text": "start culvert-redirector"}]}]"#,
        );
        let from = path(answer(Ok(explained.expect("the page"))));
        assert!(
            !from.hops[0].ok && from.hops[0].text.contains("not attached"),
            "{from:?}"
        );
        assert_eq!(from.fixes[0], "start culvert-redirector");
    }

    #[test]
    fn an_address_in_a_network_of_the_host_is_said_to_be_left_alone_and_why() {
        let explained = serde_json::from_str(
            r#"[{"destination": "10.244.0.77:9100", "lines": [
                {"subject": "directory", "text": "never steered: it is in 10.244.0.0/24"},
                {"subject": "hooks", "text": "passes"},
                {"subject": "fix", "text": "dial edge-2"}]}]"#,
        );
        let from = path(answer(Ok(explained.expect("the page"))));
        let kernel = &from.hops[0];
        assert!(
            !kernel.ok && kernel.text.contains("10.244.0.0/24"),
            "{from:?}"
        );
        assert_eq!(from.fixes[0], "dial edge-2");
    }

    #[test]
    fn an_address_that_is_not_steered_beside_one_that_is_breaks_nothing() {
        let explained = serde_json::from_str(
            r#"[{"destination": "198.18.0.2:9100", "lines": [{"subject": "hooks", "text": "steered"}]},
                {"destination": "[fd00::2]:9100", "lines": [
                {"subject": "hooks", "text": "no IPv6"}, {"subject": "fix", "text": "add IPv6"}]}]"#,
        );
        let mut answered = answer(Ok(explained.expect("the page")));
        if let Ok(answer) = &mut answered.answer {
            answer.proxy.reachable = true;
            answer.proxy.lines.clear();
        }
        let from = path(answered);
        let hops: Vec<&str> = from.hops.iter().map(|hop| hop.hop.as_str()).collect();
        assert_eq!(hops, ["kernel", "unused"]);
        assert!(from.reachable && from.fixes.is_empty(), "{from:?}");
    }

    #[test]
    fn a_redirector_that_knows_no_such_node_either_is_not_to_be_started() {
        let refused = NoAnswer::new("/debug/explain/edge-9: 500: no node of this name".to_owned());
        let mut answered = answer(Err(refused));
        if let Ok(answer) = &mut answered.answer {
            answer.proxy.no_node = true;
        }
        let from = path(answered);
        assert!(from.hops.iter().all(|hop| hop.hop != "kernel"), "{from:?}");
        assert_eq!(from.fixes, ["text of fix"]);
    }

    #[test]
    fn a_host_without_a_redirector_is_not_broken_by_that() {
        let absent = NoAnswer::new("No such file or directory (os error 2)".to_owned());
        let from = path(answer(Err(absent)));
        assert!(from.hops[0].ok, "{from:?}");
        let late = NoAnswer::late(Duration::from_secs(1));
        let from = path(answer(Err(late)));
        assert!(!from.hops[0].ok, "{from:?}");
    }
}
