//! What RBAC has to allow: verbs on resources of the group `culvert.dev`, in the proxy's namespace. No
//! such resources exist. Pure.

use std::fmt;

use culvert_api::NodeName;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};

use super::User;

const GROUP: &str = "culvert.dev";

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ViewRight {
    /// To read what proxies show: to `get` `proxies`.
    Read,
    /// To connect with ports of this node: to `create` `connections` of its name.
    Connect(NodeName),
}

impl ViewRight {
    /// The Role of the manifests that has it.
    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::Read => "culvert-view",
            Self::Connect(_) => "culvert-connect",
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Read => "get",
            Self::Connect(_) => "create",
        }
    }

    fn resource(&self) -> &'static str {
        match self {
            Self::Read => "proxies",
            Self::Connect(_) => "connections",
        }
    }

    fn name(&self) -> Option<&NodeName> {
        match self {
            Self::Read => None,
            Self::Connect(node) => Some(node),
        }
    }

    /// The question whether the user has it, where proxies are in this namespace.
    pub(super) fn question(&self, user: &User, namespace: &str) -> SubjectAccessReviewSpec {
        SubjectAccessReviewSpec {
            user: user.0.username.clone(),
            uid: user.0.uid.clone(),
            groups: user.0.groups.clone(),
            extra: user.0.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some(self.resource().to_owned()),
                verb: Some(self.verb().to_owned()),
                name: self.name().map(NodeName::to_string),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        }
    }
}

/// As `kubectl auth can-i` takes it.
impl fmt::Display for ViewRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{GROUP}", self.verb(), self.resource())?;
        match self.name() {
            Some(name) => write!(f, "/{name}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    #[test]
    fn rbac_is_asked_about_the_whole_user() {
        let user = User(UserInfo {
            username: Some("ada".to_owned()),
            groups: Some(vec!["sre".to_owned()]),
            ..UserInfo::default()
        });
        let spec = ViewRight::Read.question(&user, "culvert-system");
        assert_eq!(spec.user.as_deref(), Some("ada"));
        assert_eq!(spec.groups, Some(vec!["sre".to_owned()]));
        let asked = spec.resource_attributes.expect("a resource");
        assert_eq!(asked.namespace.as_deref(), Some("culvert-system"));
        assert_eq!(asked.verb.as_deref(), Some("get"));
        assert_eq!(asked.name, None);
    }

    #[test]
    fn the_right_to_connect_is_one_to_a_node_of_this_name() {
        let right = ViewRight::Connect("edge-1".parse().expect("a name"));
        let user = User(UserInfo::default());
        let asked = right.question(&user, "culvert-system").resource_attributes;
        let asked = asked.expect("a resource");
        assert_eq!(asked.resource.as_deref(), Some("connections"));
        assert_eq!(asked.verb.as_deref(), Some("create"));
        assert_eq!(asked.name.as_deref(), Some("edge-1"));
        assert_eq!(right.to_string(), "create connections.culvert.dev/edge-1");
    }
}
