//! What a request asks for and who asks: resources, scopes, identities, verbs. Each has a stable
//! text form, which is its key on disk.

use std::fmt;

use crate::wire::{Encoding, Shape};

/// Separates the fields of a text form. No name and no selector of Kubernetes contains it; a text
/// with more fields than expected is refused, so it can never be read as another scope.
const SEPARATOR: char = '\u{1f}';

/// A resource by its path: `apps`, `v1`, `deployments`. The core group is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

impl Resource {
    /// Leases change every few seconds and are worthless after a restart.
    pub(crate) fn is_lease(&self) -> bool {
        self.group == "coordination.k8s.io" && self.resource == "leases"
    }
}

/// Objects that may share one stored copy: same resource, same encoding, same shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Representation {
    pub(crate) resource: Resource,
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

impl Representation {
    /// The stable text form.
    pub(crate) fn text(&self) -> String {
        let Resource {
            group,
            version,
            resource,
        } = &self.resource;
        let encoding = encoding_text(self.encoding);
        join(&[group, version, resource, encoding, shape_text(self.shape)])
    }

    /// Reads the text form back.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let [group, version, resource, encoding, shape] = split(text)?;
        Some(Self {
            resource: Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
            },
            encoding: parse_encoding(encoding)?,
            shape: parse_shape(shape)?,
        })
    }
}

/// Which objects of a resource are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Selection {
    /// `None`: all namespaces, or a resource without namespaces.
    pub(crate) namespace: Option<String>,
    /// The name in a GET, or in the field selector `metadata.name=` of a list or watch, which is
    /// then not in `field_selector`.
    pub(crate) name: Option<String>,
    /// In canonical form; empty selects all.
    pub(crate) label_selector: String,
    /// In canonical form; empty selects all.
    pub(crate) field_selector: String,
}

impl Selection {
    /// Bytes of its texts.
    pub(super) fn len(&self) -> usize {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        let name = self.name.as_deref().unwrap_or_default();
        let selectors = self.label_selector.len() + self.field_selector.len();
        namespace.len() + name.len() + selectors
    }

    /// Whether an object of this name can be selected at all.
    pub(crate) fn may_contain(&self, object: &ObjectName) -> bool {
        if let Some(namespace) = &self.namespace
            && *namespace != object.namespace
        {
            return false;
        }
        match &self.name {
            Some(name) => *name == object.name,
            None => true,
        }
    }

    /// Whether the name alone decides what is selected. Only then does a whole set without an
    /// object prove that the object does not exist.
    pub(crate) fn is_by_name_only(&self) -> bool {
        self.label_selector.is_empty() && self.field_selector.is_empty()
    }
}

impl fmt::Display for Selection {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, "{namespace}/{name}")?,
            (Some(namespace), None) => write!(f, "all in {namespace}")?,
            (None, Some(name)) => f.write_str(name)?,
            (None, None) => f.write_str("all")?,
        }
        for (what, selector) in [
            ("labels", &self.label_selector),
            ("fields", &self.field_selector),
        ] {
            if !selector.is_empty() {
                write!(f, " with {what} {selector}")?;
            }
        }
        Ok(())
    }
}

/// One list scope: which objects, and how they are written. A GET is a scope with a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) representation: Representation,
    pub(crate) selection: Selection,
}

impl Scope {
    /// The stable text form.
    pub(crate) fn text(&self) -> String {
        let Selection {
            namespace,
            name,
            label_selector,
            field_selector,
        } = &self.selection;
        join(&[
            &self.representation.text(),
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default(),
            label_selector,
            field_selector,
        ])
    }

    /// Reads the text form back.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (at, _) = text.match_indices(SEPARATOR).nth(4)?;
        let [namespace, name, label_selector, field_selector] = split(&text[at + 1..])?;
        Some(Self {
            representation: Representation::parse(&text[..at])?,
            selection: Selection {
                namespace: if_given(namespace),
                name: if_given(name),
                label_selector: label_selector.to_owned(),
                field_selector: field_selector.to_owned(),
            },
        })
    }
}

fn if_given(text: &str) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    Some(text.to_owned())
}

/// An object by its name within one representation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    /// Empty for objects without a namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Who asks, as the API server knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Identity {
    /// Kubelet and the host components of this node.
    Node,
    /// A service account: a pod.
    ServiceAccount { namespace: String, name: String },
    /// Any other user, by its name.
    User(String),
}

impl fmt::Display for Identity {
    /// `node`, `sa:namespace/name`, `user:name`: the stable text form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::ServiceAccount { namespace, name } => write!(f, "sa:{namespace}/{name}"),
            Self::User(name) => write!(f, "user:{name}"),
        }
    }
}

impl Identity {
    /// Reads the text form back.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "node" {
            return Some(Self::Node);
        }
        if let Some(user) = text.strip_prefix("user:") {
            return Some(Self::User(user.to_owned()));
        }
        let (namespace, name) = text.strip_prefix("sa:")?.split_once('/')?;
        Some(Self::ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// An object of whichever version of its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectRef {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) name: ObjectName,
}

impl ObjectRef {
    /// `namespace` is empty for what is in none.
    pub(crate) fn new(group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: ObjectName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectName { namespace, name } = &self.name;
        match &**namespace {
            "" => write!(f, "{} {name}", self.resource),
            namespace => write!(f, "{} {namespace}/{name}", self.resource),
        }
    }
}

/// The verbs that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
}

impl Verb {
    /// The stable text form, which is Kubernetes' word.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
        }
    }

    /// Reads the text form back.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Get, Self::List, Self::Watch]
            .into_iter()
            .find(|verb| verb.text() == text)
    }
}

/// Joins fields into a text that [`split`] takes apart.
pub(crate) fn join(fields: &[&str]) -> String {
    fields.join(SEPARATOR.encode_utf8(&mut [0; 4]))
}

/// Takes a text apart into exactly `N` fields.
pub(crate) fn split<const N: usize>(text: &str) -> Option<[&str; N]> {
    let fields: Vec<&str> = text.split(SEPARATOR).collect();
    fields.try_into().ok()
}

pub(super) fn encoding_text(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "json",
        Encoding::Protobuf => "protobuf",
    }
}

pub(super) fn parse_encoding(text: &str) -> Option<Encoding> {
    [Encoding::Json, Encoding::Protobuf]
        .into_iter()
        .find(|it| encoding_text(*it) == text)
}

fn shape_text(shape: Shape) -> &'static str {
    match shape {
        Shape::Object => "object",
        Shape::Metadata => "metadata",
        Shape::Table => "table",
        Shape::TableOfObjects => "table-of-objects",
    }
}

fn parse_shape(text: &str) -> Option<Shape> {
    [
        Shape::Object,
        Shape::Metadata,
        Shape::Table,
        Shape::TableOfObjects,
    ]
    .into_iter()
    .find(|it| shape_text(*it) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(label_selector: &str) -> Scope {
        Scope {
            representation: Representation {
                resource: Resource {
                    group: String::new(),
                    version: "v1".to_owned(),
                    resource: "pods".to_owned(),
                },
                encoding: Encoding::Protobuf,
                shape: Shape::Metadata,
            },
            selection: Selection {
                namespace: Some("default".to_owned()),
                name: None,
                label_selector: label_selector.to_owned(),
                field_selector: "spec.nodeName=edge-1".to_owned(),
            },
        }
    }

    #[test]
    fn a_scope_survives_its_text_form() {
        let scope = scope("app in (a,b)");
        assert_eq!(Scope::parse(&scope.text()), Some(scope));
    }

    #[test]
    fn a_selector_with_a_separator_is_not_read_as_another_scope() {
        assert_eq!(Scope::parse(&scope("a\u{1f}b").text()), None);
    }

    #[test]
    fn an_identity_survives_its_text_form() {
        let account = Identity::ServiceAccount {
            namespace: "a".to_owned(),
            name: "b".to_owned(),
        };
        for identity in [
            Identity::Node,
            account,
            Identity::User("system:kube-proxy".to_owned()),
        ] {
            assert_eq!(Identity::parse(&identity.to_string()), Some(identity));
        }
    }
}
