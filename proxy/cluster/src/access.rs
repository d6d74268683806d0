//! The facts that `culvert check` collects from the cluster: the proxy's permissions, the API
//! server's clock, and the ConfigMaps of ports.

use std::collections::BTreeSet;

use culvert_api::{agent_config, non_empty};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::MAX_VIP_SHARDS;
use futures_util::future::BoxFuture;
use http::header::DATE;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};

use super::Cluster;
use super::ports::PortsFacts;
use super::request::{RequestError, ask};
use super::vips;

/// The labels by which other tunnels, and earlier versions of this one, identify edge nodes.
const OTHER_LABELS: [&str; 3] = [
    "culvert.dev/edge",
    "openyurt.io/is-edge-worker=true",
    "superedge.io/edge-node=enable",
];
/// The label of cloud nodes in earlier versions of the manifests. Every kubelet may write it.
const FORMER_CLOUD_LABELS: [&str; 1] = ["culvert.dev/cloud"];
/// The most Nodes that are listed for each label.
const MAX_LABELLED: u32 = 500;

/// The facts that a check collects from the cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Permissions that the proxy lacks, in words.
    pub lacking: Vec<String>,
    /// The time of the API server's clock.
    pub time: Option<UnixTime>,
    /// The ConfigMaps of ports.
    pub ports: PortsFacts,
    /// The number of proxy addresses in agents' ConfigMap.
    pub proxies: usize,
    /// Nodes that have an edge label of another tunnel.
    pub other_labels: Vec<String>,
    /// Nodes that have the former label of cloud nodes.
    pub former_clouds: Vec<String>,
}

/// What a proxy serves besides, for which it needs more permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// The view for users of the cluster.
    View,
    /// Nothing.
    NoView,
}

/// The scope of a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Cluster,
    Own,
    Namespace(&'static str),
}

/// Verbs on a resource of an API group, for one name or for all.
struct Right {
    namespace: Scope,
    group: &'static str,
    resource: &'static str,
    name: &'static str,
    verbs: &'static [&'static str],
}

const fn right(
    namespace: Scope,
    group: &'static str,
    resource: &'static str,
    name: &'static str,
    verbs: &'static [&'static str],
) -> Right {
    Right {
        namespace,
        group,
        resource,
        name,
        verbs,
    }
}

/// The permissions that every proxy of a cluster needs. The manifests grant them.
const RIGHTS: [Right; 18] = [
    right(Scope::Cluster, "", "nodes", "", &["list", "watch"]),
    right(
        Scope::Cluster,
        "authentication.k8s.io",
        "tokenreviews",
        "",
        &["create"],
    ),
    right(Scope::Own, "", "pods", "", &["get"]),
    right(
        Scope::Own,
        "",
        "configmaps",
        "culvert-ports",
        &["list", "watch"],
    ),
    right(
        Scope::Own,
        "",
        "configmaps",
        "culvert-forwards",
        &["list", "watch"],
    ),
    right(
        Scope::Own,
        "",
        "configmaps",
        "culvert-agent",
        &["get", "update"],
    ),
    right(
        Scope::Own,
        "",
        "configmaps",
        "culvert-revocations",
        &["list", "watch", "update"],
    ),
    right(
        Scope::Own,
        "coordination.k8s.io",
        "leases",
        "",
        &["get", "list", "watch", "create", "update", "delete"],
    ),
    right(Scope::Own, "", "secrets", "culvert-ca", &["get"]),
    right(Scope::Own, "", "configmaps", "", &["create"]),
    right(Scope::Own, "", "secrets", "", &["create"]),
    right(
        Scope::Own,
        "events.k8s.io",
        "events",
        "",
        &["create", "patch"],
    ),
    right(
        Scope::Namespace("kube-system"),
        "events.k8s.io",
        "events",
        "",
        &["create", "patch"],
    ),
    right(
        Scope::Namespace("kube-system"),
        "",
        "configmaps",
        "yurt-tunnel-server-cfg",
        &["list", "watch"],
    ),
    right(
        Scope::Namespace("kube-system"),
        "",
        "configmaps",
        "kubeadm-config",
        &["get"],
    ),
    right(
        Scope::Cluster,
        "networking.k8s.io",
        "servicecidrs",
        "",
        &["list"],
    ),
    right(
        Scope::Namespace("default"),
        "",
        "endpoints",
        "kubernetes",
        &["get"],
    ),
    right(
        Scope::Namespace("default"),
        "discovery.k8s.io",
        "endpointslices",
        "kubernetes",
        &["get"],
    ),
];

impl Cluster {
    /// Collects all facts, for a proxy that serves this.
    pub fn facts(&self, serves: Serves) -> BoxFuture<'_, Result<ClusterFacts, RequestError>> {
        Box::pin(self.collect_facts(serves))
    }

    async fn collect_facts(&self, serves: Serves) -> Result<ClusterFacts, RequestError> {
        // This is the first request: its error explains best why an API server cannot be reached.
        let time = ask(server_time(&self.client)).await?;
        let mut lacking = Vec::new();
        for attributes in self.needed(serves) {
            if !self.may(&attributes).await? {
                lacking.push(in_words(&attributes));
            }
        }
        let ports = ask(self.ports_facts()).await.unwrap_or_default();
        let proxies = self.published_proxies().await.unwrap_or_default();
        let other_labels = self.labelled(&OTHER_LABELS).await.unwrap_or_default();
        let former_clouds = self.labelled(&FORMER_CLOUD_LABELS).await;
        Ok(ClusterFacts {
            lacking,
            time,
            ports,
            proxies,
            other_labels,
            former_clouds: former_clouds.unwrap_or_default(),
        })
    }

    /// The addresses in ConfigMap culvert-agent.
    async fn published_proxies(&self) -> Result<usize, RequestError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = ask(maps.get_opt(agent_config::NAME)).await?;
        let Some(data) = map.and_then(|map| map.data) else {
            return Ok(0);
        };
        let Some(proxies) = data.get(agent_config::PROXIES) else {
            return Ok(0);
        };
        let mut told = 0;
        for line in proxies.lines() {
            told += usize::from(!line.trim().is_empty());
        }
        Ok(told)
    }

    /// The Nodes with any of these labels.
    async fn labelled(&self, labels: &[&str]) -> Result<Vec<String>, RequestError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut labelled = BTreeSet::new();
        for label in labels {
            let params = ListParams::default().labels(label).limit(MAX_LABELLED);
            let page = ask(nodes.list_metadata(&params)).await?;
            labelled.extend(page.into_iter().filter_map(|node| node.metadata.name));
        }
        Ok(labelled.into_iter().collect())
    }

    fn needed(&self, serves: Serves) -> Vec<ResourceAttributes> {
        let mut needed = Vec::new();
        for Right {
            namespace,
            group,
            resource,
            name,
            verbs,
        } in RIGHTS
        {
            let namespace = match namespace {
                Scope::Cluster => "",
                Scope::Own => self.namespace.as_str(),
                Scope::Namespace(namespace) => namespace,
            };
            for verb in verbs {
                needed.push(attributes(namespace, group, resource, name, verb));
            }
        }
        // All are in one list of names: the last of them shows whether the list is this version's.
        for shard in [0, 1, MAX_VIP_SHARDS - 1] {
            for verb in ["get", "update"] {
                let name = vips::name(shard);
                needed.push(attributes(&self.namespace, "", "configmaps", &name, verb));
            }
        }
        needed.extend(self.needed_by_flags());
        // Whose a token is, every proxy asks.
        if serves == Serves::View {
            let group = "authorization.k8s.io";
            needed.push(attributes("", group, "subjectaccessreviews", "", "create"));
        }
        needed
    }

    fn needed_by_flags(&self) -> Vec<ResourceAttributes> {
        let mut needed = Vec::new();
        if let Some(service) = &self.config.agent_service {
            needed.push(attributes(&self.namespace, "", "services", service, "get"));
            needed.push(attributes(&self.namespace, "", "pods", "", "list"));
            needed.push(attributes("", "", "nodes", "", "get"));
        }
        if let Some(service) = &self.config.name_service {
            for verb in CHANGING {
                needed.push(attributes(&self.namespace, "", "services", service, verb));
            }
        }
        if let Some(place) = &self.config.hosts_configmap {
            let crate::configmap::ConfigMapName { namespace, name } = &place.config_map;
            for verb in CHANGING {
                needed.push(attributes(namespace, "", "configmaps", name, verb));
            }
        }
        needed
    }

    async fn may(&self, attributes: &ResourceAttributes) -> Result<bool, RequestError> {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes.clone()),
            ..Default::default()
        };
        let review = SelfSubjectAccessReview {
            spec,
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = ask(reviews.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// What is done with an object that is kept up to date.
const CHANGING: [&str; 3] = ["list", "watch", "update"];

/// A text such as `update configmaps/culvert-vips in culvert-system`.
fn in_words(attributes: &ResourceAttributes) -> String {
    let mut words = format!(
        "{} {}",
        attributes.verb.as_deref().unwrap_or_default(),
        attributes.resource.as_deref().unwrap_or_default()
    );
    if let Some(group) = &attributes.group {
        words.push_str(&format!(".{group}"));
    }
    if let Some(name) = &attributes.name {
        words.push_str(&format!("/{name}"));
    }
    if let Some(namespace) = &attributes.namespace {
        words.push_str(&format!(" in {namespace}"));
    }
    words
}

/// The time in the Date header of an answer.
async fn server_time(client: &Client) -> Result<Option<UnixTime>, kube::Error> {
    let request = http::Request::get("/version")
        .body(Body::empty())
        .map_err(kube::Error::HttpError)?;
    let answer = client.send(request).await?;
    let Some(date) = answer.headers().get(DATE) else {
        return Ok(None);
    };
    match date.to_str() {
        Ok(date) => Ok(http_date(date)),
        Err(_) => Ok(None),
    }
}

/// Parses the format of RFC 9110, section 5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<UnixTime> {
    let date = DateTimeParser::new().parse_timestamp(text).ok()?;
    date.as_second().try_into().ok().map(UnixTime::from_seconds)
}

fn attributes(
    namespace: &str,
    group: &str,
    resource: &str,
    name: &str,
    verb: &str,
) -> ResourceAttributes {
    ResourceAttributes {
        namespace: non_empty(namespace),
        group: non_empty(group),
        resource: non_empty(resource),
        name: non_empty(name),
        verb: non_empty(verb),
        ..ResourceAttributes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_clock_is_read() {
        assert_eq!(
            http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(UnixTime::from_seconds(784_111_777))
        );
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn a_right_reads_as_in_a_role() {
        let attributes = ResourceAttributes {
            namespace: Some("kube-system".into()),
            group: Some("events.k8s.io".into()),
            resource: Some("events".into()),
            verb: Some("patch".into()),
            ..ResourceAttributes::default()
        };
        assert_eq!(
            in_words(&attributes),
            "patch events.events.k8s.io in kube-system"
        );
    }
}
