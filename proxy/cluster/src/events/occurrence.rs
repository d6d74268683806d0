//! An occurrence that operators see with `kubectl describe` and `kubectl get events`, and its form
//! as an Event. Pure.

use culvert_api::NodeName;
use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use super::super::configmap::ConfigMapName;

const REPORTER: &str = "culvert-proxy";
/// The namespace of Events about objects without a namespace, such as Nodes. API servers before
/// 1.21 do not accept `default` here.
const NODES_NAMESPACE: &str = "kube-system";
/// The API server's limit.
const MAX_NOTE_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 253;
/// Proxies notice the same occurrence at different times. A later report than this is another
/// occurrence.
const ONE_OCCURRENCE: SignedDuration = SignedDuration::from_secs(60);

/// The object of an occurrence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    Node(NodeName),
    ConfigMap { which: ConfigMapName, uid: String },
}

/// The kind of an occurrence. The names are an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    EdgeOffline,
    EdgeOnline,
    AddressClaimedTwice,
    ClaimRefused,
    InvalidPorts,
    InvalidForwards,
}

/// An occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub(super) about: About,
    pub(super) reason: Reason,
    /// It is the same at every proxy, so that their Events become one.
    pub(super) note: String,
}

impl Occurrence {
    pub(super) fn offline(node: &NodeName) -> Self {
        let note = format!(
            "{node} has no tunnel to the reporting culvert-proxy, which cannot reach it: \
             `culvert why {node}` there says why"
        );
        Self {
            about: About::Node(node.clone()),
            reason: Reason::EdgeOffline,
            note,
        }
    }

    pub(super) fn online(node: &NodeName) -> Self {
        let note = format!("{node} has a tunnel again");
        Self {
            about: About::Node(node.clone()),
            reason: Reason::EdgeOnline,
            note,
        }
    }

    pub(super) fn claimed_twice(node: &NodeName, owners: &str) -> Self {
        Self {
            about: About::Node(node.clone()),
            reason: Reason::AddressClaimedTwice,
            note: cut(owners, MAX_NOTE_BYTES),
        }
    }

    /// A part of the Node that is left out, with the reason.
    pub(super) fn left_out(node: &NodeName, reason: &str) -> Self {
        let note = cut(reason, MAX_NOTE_BYTES);
        Self {
            about: About::Node(node.clone()),
            reason: Reason::ClaimRefused,
            note,
        }
    }

    /// An invalid ConfigMap of ports, with the problem.
    pub(in super::super) fn invalid_ports(
        which: ConfigMapName,
        uid: String,
        problem: &str,
    ) -> Self {
        let note = format!("{problem}. The last good ports stay in use");
        Self::invalid(which, uid, Reason::InvalidPorts, &note)
    }

    /// An invalid ConfigMap of forwarded ports, with the problem.
    pub(in super::super) fn invalid_forwards(
        which: ConfigMapName,
        uid: String,
        problem: &str,
    ) -> Self {
        let note = format!("{problem}. The last good forwards stay in use");
        Self::invalid(which, uid, Reason::InvalidForwards, &note)
    }

    fn invalid(which: ConfigMapName, uid: String, reason: Reason, note: &str) -> Self {
        Self {
            about: About::ConfigMap { which, uid },
            reason,
            note: cut(note, MAX_NOTE_BYTES),
        }
    }

    /// The namespace of its Event.
    pub(super) fn namespace(&self) -> &str {
        match &self.about {
            About::Node(_) => NODES_NAMESPACE,
            About::ConfigMap { which, .. } => &which.namespace,
        }
    }

    /// The Event as the first proxy creates it. Its name is the same at every proxy, so a second
    /// proxy finds it.
    pub(super) fn event(&self, instance: &str, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            regarding: Some(self.regarding()),
            reason: Some(format!("{:?}", self.reason)),
            action: Some(self.action().to_owned()),
            type_: Some(
                if self.reason == Reason::EdgeOnline {
                    "Normal"
                } else {
                    "Warning"
                }
                .to_owned(),
            ),
            note: Some(self.note.clone()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..Event::default()
        }
    }

    fn action(&self) -> &'static str {
        match self.reason {
            Reason::EdgeOffline | Reason::EdgeOnline => "WatchTunnels",
            Reason::AddressClaimedTwice | Reason::ClaimRefused => "RouteAddress",
            Reason::InvalidPorts => "ReadPorts",
            Reason::InvalidForwards => "ReadForwards",
        }
    }

    fn name(&self) -> String {
        let about = match &self.about {
            About::Node(node) => node.as_str(),
            About::ConfigMap { which, .. } => &which.name,
        };
        let digest = Sha256::digest(format!("{:?}\n{}", self.reason, self.note));
        let suffix = HEXLOWER.encode(&digest[..6]);
        let about = cut(about, MAX_NAME_BYTES - suffix.len() - 1);
        format!("{}.{suffix}", about.trim_end_matches(['.', '-']))
    }

    fn regarding(&self) -> ObjectReference {
        let (kind, namespace, name, uid) = match &self.about {
            // kubectl searches for the value that kubelet uses: in Events, the uid of a Node is its
            // name.
            About::Node(node) => ("Node", None, node.to_string(), node.to_string()),
            About::ConfigMap { which, uid } => (
                "ConfigMap",
                Some(which.namespace.clone()),
                which.name.clone(),
                uid.clone(),
            ),
        };
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name),
            uid: Some(uid),
            ..ObjectReference::default()
        }
    }
}

/// The update of an Event that exists; `None`: another proxy has just reported the same.
pub(super) fn continued(event: &Event, now: Timestamp) -> Option<EventSeries> {
    let mut last = event.event_time.as_ref();
    let mut count = 1;
    if let Some(series) = &event.series {
        last = Some(&series.last_observed_time);
        count = series.count;
    }
    if let Some(last) = last
        && now.duration_since(last.0) < ONE_OCCURRENCE
    {
        return None;
    }
    Some(EventSeries {
        count: count.saturating_add(1),
        last_observed_time: MicroTime(now),
    })
}

fn cut(text: &str, most: usize) -> String {
    let end = text
        .char_indices()
        .map(|(at, char)| at + char.len_utf8())
        .take_while(|end| *end <= most)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn proxies_that_tell_the_same_name_one_event() {
        let now = Timestamp::UNIX_EPOCH;
        let later = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1);
        let one = Occurrence::offline(&node("edge-1"));
        let other = Occurrence::offline(&node("edge-1"));
        let one = one.event("cloud-1", now);
        let other = other.event("cloud-2", later);
        assert_eq!(one.metadata.name, other.metadata.name);
        assert_ne!(
            one.metadata.name,
            Occurrence::offline(&node("edge-2"))
                .event("cloud-1", now)
                .metadata
                .name
        );
        assert_ne!(
            one.metadata.name,
            Occurrence::online(&node("edge-1"))
                .event("cloud-1", now)
                .metadata
                .name
        );
        assert!(
            continued(&one, later).is_none(),
            "the second one has nothing to add"
        );
    }

    #[test]
    fn what_happens_again_counts_on() {
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let mut event = Occurrence::offline(&node("edge-1")).event("cloud-1", at(0));
        event.series = continued(&event, at(60));
        assert_eq!(
            event.series.as_ref().unwrap().count,
            2,
            "a series has two at least"
        );
        assert!(continued(&event, at(119)).is_none());
        assert_eq!(continued(&event, at(120)).unwrap().count, 3);
    }

    #[test]
    fn names_and_notes_fit_whatever_they_are_made_of() {
        let long = node(&["a".repeat(60).as_str(); 4].join("."));
        let occurrence = Occurrence::claimed_twice(&long, &"ä".repeat(1000));
        let event = occurrence.event("cloud-1", Timestamp::UNIX_EPOCH);
        assert!(event.metadata.name.unwrap().len() <= MAX_NAME_BYTES);
        assert_eq!(event.note.unwrap().len(), MAX_NOTE_BYTES);
    }
}
