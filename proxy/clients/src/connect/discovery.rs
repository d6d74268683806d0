//! The edge nodes as Prometheus' `http_sd_configs` reads them.

use culvert_api::NodeName;
use culvert_proxy_streams::route::Router;
use serde::Serialize;

/// The most ports of a query.
const PORTS_MAX: usize = 16;

/// A node with its targets, in Prometheus' format.
#[derive(Serialize)]
struct TargetGroup {
    targets: Vec<String>,
    labels: Labels,
}

#[derive(Serialize)]
struct Labels {
    #[serde(rename = "__meta_culvert_node")]
    node: NodeName,
    #[serde(rename = "__meta_culvert_zone")]
    zone: String,
    #[serde(rename = "__meta_culvert_online")]
    online: String,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum BadQuery {
    #[error("name the ports to scrape, as in /sd/prometheus?port=9100&port=10250")]
    NoPort,
    #[error("{0:?} is no port: write port=1 to port=65535")]
    Port(String),
    #[error("{0:?} is not known here: write only port=N")]
    Unknown(String),
    #[error("more than {PORTS_MAX} ports")]
    TooMany,
}

/// All edge nodes with the ports of a query, as JSON.
pub(super) fn targets(router: &Router, query: &str) -> Result<String, BadQuery> {
    let ports = ports(query)?;
    let directory = router.directory();
    let zone = directory.zone().to_string();
    let mut groups = Vec::new();
    for node in directory.nodes() {
        let targets = ports
            .iter()
            .map(|port| format!("{}:{port}", node.name))
            .collect();
        let labels = Labels {
            zone: match &node.zone {
                Some(own) => own.to_string(),
                None => zone.clone(),
            },
            online: node.online.to_string(),
            node: node.name,
        };
        groups.push(TargetGroup { targets, labels });
    }
    Ok(serde_json::json!(groups).to_string())
}

/// The ports of a query such as `port=9100&port=10250`.
fn ports(query: &str) -> Result<Vec<u16>, BadQuery> {
    let mut ports = Vec::new();
    for part in query.split('&') {
        if part.is_empty() {
            continue;
        }
        let Some(("port", port)) = part.split_once('=') else {
            return Err(BadQuery::Unknown(part.to_owned()));
        };
        match port.parse() {
            Ok(port) if port > 0 => ports.push(port),
            Ok(_) | Err(_) => return Err(BadQuery::Port(port.to_owned())),
        }
        if ports.len() > PORTS_MAX {
            break;
        }
    }
    match ports.len() {
        0 => Err(BadQuery::NoPort),
        1..=PORTS_MAX => Ok(ports),
        _ => Err(BadQuery::TooMany),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_ports_and_nothing_else() {
        assert_eq!(ports("port=9100&port=10250"), Ok(vec![9100, 10250]));
        assert_eq!(ports(""), Err(BadQuery::NoPort));
        for bad in ["port=0", "port=65536", "port=a", "port="] {
            assert!(matches!(ports(bad), Err(BadQuery::Port(_))), "{bad}");
        }
        assert!(matches!(ports("ports=1"), Err(BadQuery::Unknown(_))));
        assert_eq!(ports(&"port=1&".repeat(17)), Err(BadQuery::TooMany));
    }
}
