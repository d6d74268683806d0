//! The addresses of the API servers that the cluster itself names: the endpoints of the Service
//! `default/kubernetes`. They are on disk, and tried when no configured server answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Drain, jittered, write_atomic};
use tokio::time::sleep;

use crate::cache::{ObjectRef, Representation, Resource, Scope, Selection};
use crate::hub::Hub;
use crate::refill::read_again;
use crate::upstream::Credential;
use crate::wire::edit::{self, Path as Field};
use crate::wire::path::{Step, text, visit};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Object, Shape};

/// Between two looks: a cluster hardly ever gets another API server.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// After the start: kube-proxy has read the endpoints by then.
const FIRST_CHECK_AFTER: Duration = Duration::from_secs(20);
const GROUP: &str = "discovery.k8s.io";
const RESOURCE: &str = "endpointslices";
const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// Fields of an `EndpointSlice` (`generated.proto` in `k8s.io/api/discovery/v1`).
const ADDRESSES: [Step; 2] = [Step("endpoints", 2), Step("addresses", 1)];
const PORTS: [Step; 1] = [Step("ports", 3)];
const PORT_NAME: Field = Field {
    json: &["name"],
    protobuf: &[1],
};
const PORT: Field = Field {
    json: &["port"],
    protobuf: &[3],
};

/// Learns addresses until the drain begins. `file` has what an earlier process has learned.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(crate) async fn learn_servers(hub: Arc<Hub>, file: PathBuf, drain: Drain) -> Result<()> {
    let mut known = read(&file);
    hub.upstream.servers.learn(&known);
    let learning = async {
        sleep(FIRST_CHECK_AFTER).await;
        loop {
            if hub.upstream.link.is_up(Credential::Node) {
                // The node may not be allowed to; kube-proxy is.
                read_again(&hub, &scope()).await;
                learn(&hub, &file, &mut known);
            }
            sleep(jittered(CHECK_EVERY)).await;
        }
    };
    tokio::select! {
        () = learning => {}
        () = drain.begun() => {}
    }
    Ok(())
}

fn learn(hub: &Hub, file: &Path, known: &mut Vec<SocketAddr>) {
    let object = ObjectRef::new(GROUP, RESOURCE, NAMESPACE, NAME);
    let versions = hub.memory.lock().cache.versions_of_all(&object);
    let mut addresses = BTreeSet::new();
    for (encoding, slice) in versions {
        addresses.extend(addresses_of(encoding, &slice).unwrap_or_default());
    }
    let addresses: Vec<_> = addresses.into_iter().collect();
    if addresses.is_empty() || addresses == *known {
        return;
    }
    hub.upstream.servers.learn(&addresses);
    let text = serde_json::to_vec(&addresses).unwrap_or_default();
    if let Err(error) = write_atomic(file, &text, 0o600) {
        tracing::warn!(%error, "the addresses of the API servers are not on disk");
    }
    tracing::info!(?addresses, "the cluster names its API servers");
    *known = addresses;
}

fn read(file: &Path) -> Vec<SocketAddr> {
    let text = std::fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn scope() -> Scope {
    Scope {
        representation: Representation {
            resource: Resource {
                group: GROUP.to_owned(),
                version: "v1".to_owned(),
                resource: RESOURCE.to_owned(),
            },
            encoding: Encoding::Json,
            shape: Shape::Object,
        },
        selection: Selection {
            namespace: Some(NAMESPACE.to_owned()),
            name: Some(NAME.to_owned()),
            ..Selection::default()
        },
    }
}

fn addresses_of(encoding: Encoding, slice: &Object) -> Result<Vec<SocketAddr>, SplitError> {
    let mut ports = Vec::new();
    visit(encoding, &slice.bytes, &PORTS, &mut |port| {
        let number = edit::number(encoding, port, PORT)?;
        let name = edit::text(encoding, port, PORT_NAME)?;
        if let Ok(number @ 1..) = u16::try_from(number)
            && matches!(&*name, "https" | "")
        {
            ports.push(number);
        }
        Ok(())
    })?;
    let mut addresses = Vec::new();
    visit(encoding, &slice.bytes, &ADDRESSES, &mut |address| {
        if let Ok(address) = text(encoding, address)?.parse::<IpAddr>() {
            addresses.extend(ports.iter().map(|port| SocketAddr::new(address, *port)));
        }
        Ok(())
    })?;
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Metadata;

    fn slice(bytes: impl Into<bytes::Bytes>) -> Object {
        Object {
            metadata: Metadata::default(),
            bytes: bytes.into(),
        }
    }

    #[test]
    fn both_encodings_name_the_api_servers() {
        let json = r#"{"endpoints":[{"addresses":["10.0.0.1"]},{"addresses":["10.0.0.2"]}],
            "ports":[{"name":"https","port":6443},{"name":"other","port":1}],"addressType":"IPv4"}"#;
        let endpoint = |last: u8| {
            let address = format!("10.0.0.{last}");
            [&[0x12, 10, 0x0a, 8][..], address.as_bytes()].concat()
        };
        // Name, and port 6443 as a varint.
        let port = [&[0x1a, 10, 0x0a, 5][..], b"https", &[0x18, 0xab, 0x32]].concat();
        let protobuf = [endpoint(1), endpoint(2), port].concat();
        let expected = ["10.0.0.1:6443", "10.0.0.2:6443"].map(|it| it.parse().unwrap());
        let of_json = addresses_of(Encoding::Json, &slice(json)).unwrap();
        assert_eq!(of_json, expected);
        let of_protobuf = addresses_of(Encoding::Protobuf, &slice(protobuf)).unwrap();
        assert_eq!(of_protobuf, expected);
    }
}
