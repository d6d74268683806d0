//! What a request to the view asks for. Pure.

use culvert_api::NodeName;
use culvert_proxy_cluster::ViewRight;
use culvert_proxy_core::directory::Directory;

use super::pages::Program;

/// What the connection is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ViewTarget {
    /// That of the control socket.
    Control,
    /// That of an admin socket.
    Pages(Program),
    /// One with a port of a node.
    Node(NodeName, u16),
}

impl ViewTarget {
    /// What a path asks for. Nodes are those of `directory`; the name of an unknown one stays.
    pub(super) fn of(path: &str, directory: &Directory) -> Option<Self> {
        match path.strip_prefix("/view/")? {
            "control" => Some(Self::Control),
            "proxy" => Some(Self::Pages(Program::Proxy)),
            "redirector" => Some(Self::Pages(Program::Redirector)),
            other => {
                let (name, port) = other.strip_prefix("connect/")?.rsplit_once(':')?;
                let node = match directory.named(name) {
                    Some(node) => node,
                    None => name.parse().ok()?,
                };
                match port.parse() {
                    Ok(port @ 1..) => Some(Self::Node(node, port)),
                    Ok(0) | Err(_) => None,
                }
            }
        }
    }

    /// What its user has to be allowed.
    pub(super) fn right(&self) -> ViewRight {
        match self {
            Self::Control | Self::Pages(_) => ViewRight::Read,
            Self::Node(node, _) => ViewRight::Connect(node.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_for_by_its_own_name_whichever_way_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let node: NodeName = "edge-1".parse().expect("a name");
        let directory = Directory::for_tests(folder.path(), std::slice::from_ref(&node));
        let target = |path: &str| ViewTarget::of(path, &directory);
        for name in ["edge-1", "edge-1.edge.internal", "EDGE-1.edge.internal"] {
            let target = target(&format!("/view/connect/{name}:22"));
            assert_eq!(target, Some(ViewTarget::Node(node.clone(), 22)), "{name}");
            let right = target.map(|target| target.right());
            assert_eq!(right, Some(ViewRight::Connect(node.clone())), "{name}");
        }
        let unknown = target("/view/connect/edge-9:22").map(|target| target.right());
        let edge_9 = "edge-9".parse().expect("a name");
        assert_eq!(unknown, Some(ViewRight::Connect(edge_9)));
        for path in [
            "/view/connect",
            "/view/connect/edge-1",
            "/view/connect/edge-1:0",
            "/view/connect/edge-1:65536",
            "/view/connect/../control:22",
            "/view/connect/10.0.3.7:22/x",
            "/control",
        ] {
            assert_eq!(target(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_read_needs_the_right_to_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::for_tests(folder.path(), &[]);
        for path in ["/view/control", "/view/proxy", "/view/redirector"] {
            let target = ViewTarget::of(path, &directory).expect(path);
            assert_eq!(target.right(), ViewRight::Read, "{path}");
        }
    }
}
