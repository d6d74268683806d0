//! What a certificate says besides its node's name: of which Node of a cluster, and after which
//! revocation it was made. It stands in the certificate as a URI, `urn:culvert:node:UID:SECONDS`,
//! and is signed with the rest. So every proxy knows a certificate that is void, also one that was
//! away meanwhile, and a renewal anywhere makes it no better.

use std::fmt;

use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::NodeUid;

const PREFIX: &str = "urn:culvert:node:";
/// Which Node a certificate is for, and its place in the order of the node's revocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// In a cluster.
    pub(crate) uid: Option<NodeUid>,
    /// The node's last revocation that was known when the certificate was made, or when the one was
    /// made that it renews. A later revocation voids it. 1970: there was none.
    pub(crate) revocation: UnixTime,
}

impl Binding {
    /// Reads a URI of a certificate; `None` if it is of another kind or broken.
    pub(crate) fn from_uri(uri: &str) -> Option<Self> {
        let (uid, seconds) = uri.strip_prefix(PREFIX)?.split_once(':')?;
        let uid = if uid.is_empty() {
            None
        } else {
            Some(uid.parse().ok()?)
        };
        let revocation = UnixTime::from_seconds(seconds.parse().ok()?);
        let binding = Self { uid, revocation };
        // One way to write it.
        (binding.to_string() == uri).then_some(binding)
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        if let Some(uid) = &self.uid {
            uid.fmt(f)?;
        }
        write!(f, ":{}", self.revocation.seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_is_read_as_it_is_written_and_not_otherwise() {
        let uid = Some("5d1e8a52-0000-4000-8000-000000000001".parse().unwrap());
        for uid in [None, uid] {
            for seconds in [0, 1_700_000_000, u64::MAX] {
                let binding = Binding {
                    uid: uid.clone(),
                    revocation: UnixTime::from_seconds(seconds),
                };
                assert_eq!(Binding::from_uri(&binding.to_string()), Some(binding));
            }
        }
        for bad in [
            "",
            "urn:culvert:node:",
            "urn:culvert:node:a",
            "urn:culvert:node:a:",
            "urn:culvert:node:a:-1",
            "urn:culvert:node:a:+1",
            "urn:culvert:node:a:01",
            "urn:culvert:node:a:18446744073709551616",
            "urn:culvert:node:a:1:2",
            "urn:culvert:node:a b:1",
            "urn:other:node:a:1",
        ] {
            assert_eq!(Binding::from_uri(bad), None, "{bad}");
        }
    }
}
