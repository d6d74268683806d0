//! `explain`: who answers a request now and without a link, from which set, and under which grant.

use std::collections::BTreeMap;

use culvert_daemon::counted;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

use crate::answers::{documents, local};
use crate::cache::{Identity, ObjectName, SetStatus, Verb, Verdict};
use crate::hub::Hub;
use crate::reads::{Plan, Read, may_be_kept};
use crate::request::percent::parameters;
use crate::upstream::Credential;
use crate::wire::Encoding;

/// The request to explain.
#[derive(Debug)]
pub(crate) struct Question {
    method: Method,
    uri: Uri,
    identity: Identity,
}

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuestionError {
    #[error("{0:?} is not a method of HTTP")]
    Method(String),
    #[error("{0:?} is not a path such as /api/v1/nodes")]
    Path(String),
    #[error("{0:?} is not an identity: node, sa:NAMESPACE/NAME or user:NAME")]
    Identity(String),
}

impl Question {
    /// Reads `method`, `path` and `as` of a query.
    pub(crate) fn from_query(query: &str) -> Result<Self, QuestionError> {
        let mut given: BTreeMap<_, _> = BTreeMap::new();
        for (name, value) in parameters(query) {
            given.entry(name).or_insert(value);
        }
        let method = given.remove("method").unwrap_or_default();
        let path = given.remove("path").unwrap_or_default();
        let identity = given.remove("as").unwrap_or_default();
        // Spaces of a selector are as people type them.
        let uri = path.replace(' ', "%20").parse().ok();
        Ok(Self {
            method: method
                .to_ascii_uppercase()
                .parse()
                .map_err(|_| QuestionError::Method(method))?,
            uri: uri
                .filter(|_| path.starts_with('/'))
                .ok_or(QuestionError::Path(path))?,
            identity: Identity::parse(&identity).ok_or(QuestionError::Identity(identity))?,
        })
    }
}

/// Explains, in lines for people.
pub(crate) fn explain(hub: &Hub, question: &Question) -> Vec<String> {
    let Question {
        method,
        uri,
        identity,
    } = question;
    let (credential, shown) = match identity {
        Identity::Node => (Credential::Node, "the node's certificate"),
        Identity::ServiceAccount { .. } | Identity::User(_) => {
            (Credential::Bearer, "its own token")
        }
    };
    let link = hub.upstream.link.status(credential);
    let now = if link.is_up() {
        format!("the API server answers, asked with {shown}")
    } else {
        format!("there is no link ({}): as below", link.reason)
    };
    let mut lines = vec![
        format!("{method} {uri} as {identity}"),
        format!("now: {now}"),
    ];
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut headers = HeaderMap::new();
        let accepted = HeaderValue::from_static(encoding.content_type());
        headers.insert(header::ACCEPT, accepted);
        match Plan::new(method, uri, &headers) {
            Plan::Read(read) => lines.extend(of_read(hub, identity, &read)),
            Plan::Document(read) => {
                let known = match documents::remembered(hub, identity, &read) {
                    Some(answer) => format!("{}: from memory", answer.status().as_u16()),
                    None => "503: it is not known, or not for this identity".to_owned(),
                };
                lines.push(format!("without a link: {known}"));
                break;
            }
            plan @ (Plan::Upgrade | Plan::Write(_) | Plan::Pass) => {
                lines.push(format!("without a link: {}", without_read(&plan)));
                break;
            }
        }
    }
    lines
}

fn without_read(plan: &Plan) -> &'static str {
    match plan {
        Plan::Write(_) => "a write: 503, but for what kubelet sends again by itself (docs/hub.md)",
        Plan::Upgrade | Plan::Read(_) | Plan::Document(_) | Plan::Pass => {
            "503: answers to this are not remembered"
        }
    }
}

fn of_read(hub: &Hub, identity: &Identity, read: &Read) -> Vec<String> {
    let encoding = match read.encoding() {
        Encoding::Json => "JSON",
        Encoding::Protobuf => "protobuf",
    };
    let mut lines = vec![format!(
        "without a link, in {encoding}: {}",
        answer(hub, identity, read)
    )];
    let now = hub.memory.now();
    let kept = hub.memory.lock();
    let verdicts = kept.cache.verdicts_for(identity, read.verb, &read.scope);
    if verdicts.is_empty() {
        lines.push("  grant: none; the API server has not answered this to it".to_owned());
    }
    for (verb, selection, verdict, at) in verdicts {
        let verdict = match verdict {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
        };
        let age = now.wall.duration_since(at).unwrap_or_default().as_secs();
        lines.push(format!(
            "  grant: {} {selection}: {verdict} {age} s ago",
            verb.text()
        ));
    }
    let sets = kept.cache.statuses(now);
    let mut sets = sets.iter().filter(|set| concerns(set, read)).peekable();
    if sets.peek().is_none() {
        lines.push("  set: none".to_owned());
    }
    lines.extend(sets.map(|set| {
        format!(
            "  set: {}: version {}, {}, {} s old{}",
            set.scope.selection,
            set.resource_version,
            counted(set.members, "object", "objects"),
            set.age.as_secs(),
            if set.behind { ", behind" } else { "" }
        )
    }));
    lines
}

fn answer(hub: &Hub, identity: &Identity, read: &Read) -> String {
    if !may_be_kept(identity, read) {
        return "503: lists of secrets are remembered for the node only".to_owned();
    }
    let status = match read.verb {
        Verb::Watch => match local::snapshot(&hub.memory, identity, read) {
            Some(_) => StatusCode::OK,
            None => StatusCode::SERVICE_UNAVAILABLE,
        },
        Verb::Get | Verb::List => local::answer(&hub.memory, identity, read, "").status(),
    };
    let source = match status {
        StatusCode::SERVICE_UNAVAILABLE => "it is not known, or not for this identity",
        _ => "from memory",
    };
    format!("{}: {source}", status.as_u16())
}

/// Whether this set may answer the read.
fn concerns(set: &SetStatus, read: &Read) -> bool {
    let of = &set.scope;
    let asked = &read.scope;
    if of.representation != asked.representation {
        return false;
    }
    match (read.verb, &asked.selection.name) {
        (Verb::Get, Some(name)) => of.selection.may_contain(&ObjectName {
            namespace: asked.selection.namespace.clone().unwrap_or_default(),
            name: name.clone(),
        }),
        (Verb::Get | Verb::List | Verb::Watch, _) => of.selection == asked.selection,
    }
}
