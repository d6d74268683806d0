//! The addresses and ranges that the cluster itself uses. Only administrators and the API server
//! can write these objects; kubelets cannot.
//!
//! The API server's addresses are those that this proxy dials, the endpoints of the Service
//! `kubernetes`, and kubeadm's endpoint of the control plane, which can be a load balancer. Ranges
//! of Services are in ServiceCIDR objects (Kubernetes 1.31 and later). Like the ranges of pods,
//! they are also in the ConfigMap of kubeadm.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use culvert_proxy_core::directory::ClusterOwn;
use ipnet::IpNet;
use serde_json::Value;

use crate::Cluster;
use crate::request::{RequestError, ask};

/// The endpoints of the API server. Every version has one of these objects, most have both.
const ENDPOINTS: [&str; 2] = [
    "/api/v1/namespaces/default/endpoints/kubernetes",
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
];
/// It exists since Kubernetes 1.33 and, as a beta version, since 1.31.
const SERVICE_CIDRS: [&str; 2] = [
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/networking.k8s.io/v1beta1/servicecidrs",
];
const KUBEADM: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
/// The time limit for the lookup of the API server's name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

impl Cluster {
    /// Asks for all of it. Objects that the API server does not have, or that the proxy has no
    /// permission for, count as unknown.
    pub(super) async fn cluster_own(&self) -> Result<ClusterOwn, RequestError> {
        let mut own = ClusterOwn::default();
        for path in ENDPOINTS {
            if let Some(found) = self.read(path).await? {
                own.api_servers.extend(endpoint_addresses(&found));
            }
        }
        for path in SERVICE_CIDRS {
            if let Some(found) = self.read(path).await? {
                own.service_ranges.extend(service_ranges(&found));
                break;
            }
        }
        if let Some(found) = self.read(KUBEADM).await? {
            let text = found["data"]["ClusterConfiguration"]
                .as_str()
                .unwrap_or_default();
            own.service_ranges.extend(subnets(text, "serviceSubnet"));
            own.pod_ranges.extend(subnets(text, "podSubnet"));
            if let Some(host) = control_plane_host(text) {
                own.api_servers.extend(addresses_of(host).await);
            }
        }
        Ok(own)
    }

    /// The object at this path; `None` if it does not exist or the permission is missing.
    async fn read(&self, path: &str) -> Result<Option<Value>, RequestError> {
        let answered = ask(async {
            let request = http::Request::get(path)
                .body(Vec::new())
                .map_err(kube::Error::HttpError)?;
            self.client.request::<Value>(request).await
        });
        match answered.await {
            Ok(found) => Ok(Some(found)),
            Err(RequestError::Answer { code: 404, .. }) => Ok(None),
            Err(RequestError::Answer { code: 403, message }) => {
                tracing::debug!(
                    path,
                    reason = message,
                    "the proxy's roles are older than the proxy"
                );
                Ok(None)
            }
            Err(
                error @ (RequestError::Answer { .. }
                | RequestError::TimedOut
                | RequestError::Failed(_)),
            ) => Err(error),
        }
    }

    /// The addresses at which this proxy reaches the API server; none if the lookup of its name
    /// fails.
    pub async fn api_addresses(&self) -> BTreeSet<IpAddr> {
        // Pods dial this address, even if the proxy has a kubeconfig.
        let own = addresses_of(self.server.host().unwrap_or_default()).await;
        let mut addresses = BTreeSet::from_iter(own);
        if let Ok(of_pods) = std::env::var("KUBERNETES_SERVICE_HOST") {
            addresses.extend(address(&of_pods));
        }
        addresses
    }
}

fn address(text: &str) -> Option<IpAddr> {
    text.trim_matches(['[', ']'])
        .parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical())
}

/// The addresses of a host, which is an address or a name.
async fn addresses_of(host: &str) -> Vec<IpAddr> {
    match address(host) {
        Some(address) => vec![address],
        None => looked_up(host).await,
    }
}

async fn looked_up(host: &str) -> Vec<IpAddr> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, 0))).await {
        Ok(Ok(found)) => found.map(|address| address.ip().to_canonical()).collect(),
        Ok(Err(error)) => {
            tracing::debug!(host, %error, "the API server's name was not looked up");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// The addresses in Endpoints or in an EndpointSlice.
fn endpoint_addresses(object: &Value) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for subset in items(&object["subsets"]) {
        for key in ["addresses", "notReadyAddresses"] {
            for address in items(&subset[key]) {
                addresses.extend(ip(&address["ip"]));
            }
        }
    }
    for endpoint in items(&object["endpoints"]) {
        for address in items(&endpoint["addresses"]) {
            addresses.extend(ip(address));
        }
    }
    addresses
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn ip(text: &Value) -> Option<IpAddr> {
    let ip: IpAddr = text.as_str()?.parse().ok()?;
    Some(ip.to_canonical())
}

fn range(text: &str) -> Option<IpNet> {
    let range: IpNet = text.trim().parse().ok()?;
    Some(range.trunc())
}

/// The ranges in a list of ServiceCIDRs.
fn service_ranges(list: &Value) -> BTreeSet<IpNet> {
    let mut ranges = BTreeSet::new();
    for item in items(&list["items"]) {
        for text in items(&item["spec"]["cidrs"]) {
            ranges.extend(range(text.as_str().unwrap_or_default()));
        }
    }
    ranges
}

/// The ranges under `networking` in kubeadm's ClusterConfiguration, in the YAML that kubeadm
/// writes.
fn subnets(configuration: &str, key: &str) -> BTreeSet<IpNet> {
    let mut ranges = BTreeSet::new();
    for line in configuration.lines() {
        let Some(rest) = line.trim().strip_prefix(key) else {
            continue;
        };
        let Some(value) = rest.trim_start().strip_prefix(':') else {
            continue;
        };
        for text in value.trim().trim_matches(['"', '\'']).split(',') {
            ranges.extend(range(text));
        }
    }
    ranges
}

/// The host of `controlPlaneEndpoint: HOST:PORT`, or of `HOST`.
fn control_plane_host(configuration: &str) -> Option<&str> {
    let value = configuration
        .lines()
        .find_map(|line| line.strip_prefix("controlPlaneEndpoint:"))?;
    let endpoint = value.trim().trim_matches(['"', '\'']);
    let host = match endpoint.rsplit_once(':') {
        Some((host, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.ends_with(':') =>
        {
            host
        }
        Some(_) | None => endpoint,
    };
    if host.is_empty() { None } else { Some(host) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts<T: ToString>(set: &BTreeSet<T>) -> Vec<String> {
        set.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn endpoints_and_slices_name_the_api_servers() {
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "192.0.2.5"}, {"ip": "192.0.2.6"}], "ports": [{"port": 6443}]},
            {"notReadyAddresses": [{"ip": "fd00::5"}]}]});
        assert_eq!(
            texts(&endpoint_addresses(&endpoints)),
            ["192.0.2.5", "192.0.2.6", "fd00::5"]
        );
        let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}, {"addresses": ["no"]}]});
        assert_eq!(texts(&endpoint_addresses(&slice)), ["192.0.2.7"]);
        assert!(endpoint_addresses(&json!({"subsets": null})).is_empty());
    }

    #[test]
    fn the_control_planes_endpoint_is_read_with_and_without_a_port() {
        for (written, host) in [
            ("\"192.0.2.9:6443\"", Some("192.0.2.9")),
            ("api.example.org:6443", Some("api.example.org")),
            ("api.example.org", Some("api.example.org")),
            ("'[fd00::9]:6443'", Some("[fd00::9]")),
            ("\"\"", None),
        ] {
            let written = format!(
                "apiServer: {{}}\ncontrolPlaneEndpoint: {written}\nkind: ClusterConfiguration\n"
            );
            assert_eq!(control_plane_host(&written), host, "{written}");
        }
        assert_eq!(control_plane_host("kind: ClusterConfiguration\n"), None);
        assert_eq!(address("[fd00::9]"), Some("fd00::9".parse().unwrap()));
    }

    #[test]
    fn ranges_of_services_are_those_of_all_service_cidrs() {
        let list = json!({"items": [
            {"spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/108"]}}, {"spec": {"cidrs": ["10.200.0.0/16"]}}, {}]});
        assert_eq!(
            texts(&service_ranges(&list)),
            ["10.96.0.0/12", "10.200.0.0/16", "fd00:96::/108"]
        );
    }

    #[test]
    fn kubeadms_ranges_are_read_however_they_are_written() {
        let written = "apiServer: {}\nkind: ClusterConfiguration\nnetworking:\n  dnsDomain: \
            cluster.local\n  \
            podSubnet: 10.244.0.0/16,fd00:244::/56\n  serviceSubnet: \"10.96.0.1/12\"\nscheduler: \
            {}\n";
        assert_eq!(
            texts(&subnets(written, "podSubnet")),
            ["10.244.0.0/16", "fd00:244::/56"]
        );
        assert_eq!(texts(&subnets(written, "serviceSubnet")), ["10.96.0.0/12"]);
        assert!(subnets("networking:\n  podSubnet: \"\"\n", "podSubnet").is_empty());
    }
}
