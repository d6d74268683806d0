//! What the cluster of a proxy's pod has.

use super::Item;
use crate::session::Session;

/// Logs of pods and events of the namespace, if a cluster is asked.
pub(super) async fn collect(session: &Session) -> Vec<Item> {
    let Some(host) = session.hosts.cloud.iter().find(|host| host.is_pod()) else {
        return Vec::new();
    };
    let mut items = Vec::new();
    for (path, about, content) in host.cluster_texts(session.timeout).await {
        let path = format!("cluster/{path}");
        items.push(Item::new(path, &about, content));
    }
    items
}
