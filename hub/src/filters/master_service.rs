//! The service `default/kubernetes` as kubelet reads it has the address of a pod port, so that
//! `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` of new pods lead there. What is behind
//! the service's own address stays.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::wire::Encoding;
use crate::wire::replace::{self, Edit, Edited, json, protobuf};
use crate::wire::split::SplitError;

const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// `core.v1.Service`, its `ServiceSpec`, and the `ServicePort` in it.
mod field {
    pub(super) const SPEC: u64 = 2;
    pub(super) const PORTS: u64 = 1;
    pub(super) const CLUSTER_IP: u64 = 3;
    pub(super) const CLUSTER_IPS: u64 = 18;
    pub(super) const PORT: u64 = 3;
}

/// Puts the pod port of the same address family into the service, if this is it and the host has
/// the address: pods would be led nowhere otherwise.
pub(super) fn lead_to(
    encoding: Encoding,
    object: &[u8],
    pods: &[SocketAddr],
    is_of_host: impl Fn(IpAddr) -> bool,
) -> Edited {
    let metadata = replace::metadata(encoding, object)?;
    if (&*metadata.namespace, &*metadata.name) != (NAMESPACE, NAME) {
        return Ok(None);
    }
    let Some(cluster_ip) = cluster_ip(encoding, object)? else {
        return Ok(None);
    };
    let is_ipv4 = cluster_ip.is_ipv4();
    let Some(pods) = pods.iter().find(|pods| pods.is_ipv4() == is_ipv4) else {
        return Ok(None);
    };
    if !is_of_host(pods.ip()) {
        tracing::warn!(pods.addr = %pods, "pods are not led to the hub: the host has not its address");
        return Ok(None);
    }
    match encoding {
        Encoding::Json => json::member(object, "spec", |spec| in_json(spec, cluster_ip, *pods)),
        Encoding::Protobuf => protobuf::messages(object, field::SPEC, |spec| {
            in_protobuf(spec, cluster_ip, *pods)
        }),
    }
}

/// `None`: the service has no address.
fn cluster_ip(encoding: Encoding, object: &[u8]) -> Result<Option<IpAddr>, SplitError> {
    let mut found = None;
    match encoding {
        Encoding::Json => json::member(object, "spec", |spec| {
            if let Some(text) = json::text_member(spec, "clusterIP")? {
                found = text.parse().ok();
            }
            Ok(None)
        })?,
        Encoding::Protobuf => protobuf::messages(object, field::SPEC, |spec| {
            if let Some(text) = protobuf::bytes(spec, field::CLUSTER_IP)? {
                found = address_in_bytes(text);
            }
            Ok(None)
        })?,
    };
    Ok(found)
}

fn address_in_bytes(bytes: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn in_json(spec: &[u8], cluster_ip: IpAddr, pods: SocketAddr) -> Edited {
    let address = json::string(&pods.ip().to_string());
    let port = pods.port().to_string().into_bytes();
    let old = json::string(&cluster_ip.to_string());
    chain(
        spec,
        &mut [
            &mut |spec| json::member(spec, "clusterIP", |_| Ok(Some(address.clone()))),
            &mut |spec| {
                json::member(spec, "clusterIPs", |all| {
                    json::elements(all, |_, one| Ok((one == old).then(|| address.clone())))
                })
            },
            &mut |spec| {
                json::member(spec, "ports", |ports| {
                    json::elements(ports, |place, one| {
                        if place > 0 {
                            return Ok(None);
                        }
                        json::member(one, "port", |_| Ok(Some(port.clone())))
                    })
                })
            },
        ],
    )
}

fn in_protobuf(spec: &[u8], cluster_ip: IpAddr, pods: SocketAddr) -> Edited {
    let address = pods.ip().to_string().into_bytes();
    let mut first = true;
    chain(
        spec,
        &mut [
            &mut |spec| protobuf::messages(spec, field::CLUSTER_IP, |_| Ok(Some(address.clone()))),
            &mut |spec| {
                protobuf::messages(spec, field::CLUSTER_IPS, |one| {
                    let is_old = address_in_bytes(one) == Some(cluster_ip);
                    Ok(is_old.then(|| address.clone()))
                })
            },
            &mut |spec| {
                protobuf::messages(spec, field::PORTS, |one| {
                    if !std::mem::take(&mut first) {
                        return Ok(None);
                    }
                    protobuf::set_number(one, field::PORT, pods.port().into())
                })
            },
        ],
    )
}

/// Edits one after another.
fn chain(value: &[u8], edits: &mut [&mut Edit<'_>]) -> Edited {
    let mut present = None;
    for edit in edits {
        if let Some(edited) = edit(present.as_deref().unwrap_or(value))? {
            present = Some(edited);
        }
    }
    Ok(present)
}

/// Whether packets to this address end here. Nothing is sent.
pub(crate) fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As an API server (1.20) writes them.
    const JSON: &str = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"2300"},"items":[{"metadata":{"name":"kubernetes","namespace":"shop","uid":"u","resourceVersion":"9"},"spec":{"ports":[{"name":"https","port":443}],"clusterIP":"10.96.0.1"}},{"metadata":{"name":"kubernetes","namespace":"default","uid":"b2e943d7","resourceVersion":"1968","labels":{"component":"apiserver","provider":"kubernetes"},"annotations":{"note":"\"clusterIP\":\"10.96.0.1\""},"managedFields":[{"manager":"kube-apiserver","fieldsV1":{"f:spec":{"f:clusterIP":{},"f:ports":{".":{},"k:{\"port\":443,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}}]},"spec":{"ports":[{"name":"https","protocol":"TCP","port":443,"targetPort":6443},{"name":"other","port":443}],"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00::1"],"type":"ClusterIP","sessionAffinity":"None"},"status":{"loadBalancer":{}}},{"metadata":{"name":"headless","namespace":"default","resourceVersion":"9"},"spec":{"clusterIP":"None"}}]}
"#;
    const PROTOBUF: &[u8] = include_bytes!("../wire/tests/recorded/services.pb");
    const OF_CLUSTER: &str = "10.96.0.1:443";

    fn led(encoding: Encoding, list: &[u8], pods: &str) -> Option<Vec<u8>> {
        let pods = [pods.parse().unwrap()];
        let mut edit = |object: &[u8]| lead_to(encoding, object, &pods, |_| true);
        replace::list(encoding, list, &mut edit).unwrap()
    }

    #[test]
    fn only_the_address_and_the_first_port_of_the_api_servers_service_change() {
        let led = led(Encoding::Json, JSON.as_bytes(), "169.254.74.40:7440").unwrap();
        let (before, after) = JSON.split_once(r#""targetPort":6443"#).unwrap();
        let port = before.rfind("443").unwrap();
        let expected = format!(
            r#"{}7440,"targetPort":6443{}"#,
            &before[..port],
            after
                .replacen(
                    r#""clusterIP":"10.96.0.1""#,
                    r#""clusterIP":"169.254.74.40""#,
                    1
                )
                .replacen(r#"["10.96.0.1","#, r#"["169.254.74.40","#, 1)
        );
        assert_eq!(String::from_utf8(led).unwrap(), expected);
    }

    #[test]
    fn a_recorded_list_in_protobuf_differs_in_that_service_only() {
        let led = led(Encoding::Protobuf, PROTOBUF, "169.254.74.40:7440").unwrap();
        let items = |body| {
            crate::wire::tests::split_list(Encoding::Protobuf, body)
                .unwrap()
                .0
        };
        let old = items(PROTOBUF);
        let new = items(&led);
        assert_eq!(old.len(), 3);
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(old.metadata, new.metadata);
            let is_it = (&*old.metadata.namespace, &*old.metadata.name) == (NAMESPACE, NAME);
            assert_eq!(old.bytes != new.bytes, is_it);
        }
        let address = |items: &[crate::wire::Object]| {
            cluster_ip(Encoding::Protobuf, &items[0].bytes)
                .unwrap()
                .unwrap()
        };
        assert_eq!(address(&old).to_string(), "10.96.0.1");
        assert_eq!(address(&new).to_string(), "169.254.74.40");
    }

    #[test]
    fn pods_are_not_led_where_the_host_has_no_address_or_the_family_differs() {
        let object = r#"{"metadata":{"name":"kubernetes","namespace":"default"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":443}]}}"#;
        let led = |pods: &str, is_of_host: bool| {
            let pods = [pods.parse().unwrap()];
            lead_to(Encoding::Json, object.as_bytes(), &pods, |_| is_of_host).unwrap()
        };
        assert!(led("169.254.74.40:7440", true).is_some());
        assert!(led("169.254.74.40:7440", false).is_none());
        assert!(led("[fd00:c7:74::40]:7440", true).is_none());
    }

    #[test]
    fn only_addresses_of_this_host_are() {
        assert!(is_of_this_host("127.0.0.1".parse().unwrap()));
        // TEST-NET-1 of RFC 5737
        assert!(!is_of_this_host("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        /// Nothing else is lost or changed: with the old values it is the old list, byte for byte.
        #[test]
        fn a_list_that_is_led_back_is_what_it_was(address: [u8; 4], port in 1_u16..) {
            let there = SocketAddr::from((address, port)).to_string();
            for (encoding, list) in [(Encoding::Json, JSON.as_bytes()), (Encoding::Protobuf, PROTOBUF)] {
                let led_there = led(encoding, list, &there).unwrap();
                prop_assert_eq!(led(encoding, &led_there, OF_CLUSTER).unwrap(), list);
            }
        }
    }
}
