//! The node that a certificate names, and whether the certificate is still valid. Pure.

mod binding;

use std::fmt;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

pub use binding::Binding;

/// The time after its end for which a certificate still gets its node a new one, outside a cluster:
/// an edge site may be off for a season.
pub(crate) const RENEWAL_GRACE: Duration = Duration::from_secs(90 * 24 * 3600);
/// The largest difference between two hosts' clocks that is tolerated at a certificate's end. It is
/// a twentieth of the validity if that is less.
const CLOCK_SLACK: Duration = Duration::from_secs(60);
/// The URI in a proxy's certificate that makes it a proxy's for other proxies. No certificate of
/// an agent has it: the names there come from the proxy.
pub(crate) const PROXY_ROLE: &str = "urn:culvert:proxy";
/// RFC 5280: at most 20 octets.
const MAX_SERIAL_BYTES: usize = 20;

/// The purpose of showing a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To act as the node: the certificate must not have expired.
    Tunnel,
    /// To get a new certificate: it may have expired some time ago.
    Renew,
}

/// The reason why a certificate does not identify its owner as a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The client showed no certificate.
    #[error("no client certificate: join first, with a token from `culvert token create`")]
    NoCertificate,
    /// The certificate does not parse.
    #[error("the client certificate cannot be read: {0}")]
    Unreadable(String),
    /// It has not one name, or not that of a node.
    #[error(
        "the client certificate names {0:?}: a node's certificate has exactly one DNS name, the \
         node's"
    )]
    Names(Vec<String>),
    /// The directory does not have its node.
    #[error(
        "the directory has no node {node}: add it (`culvert token create {node}`; in a \
         cluster the edge label of its Node) and join again"
    )]
    UnknownNode {
        /// The node.
        node: NodeName,
    },
    /// It was issued before its node was revoked.
    #[error(
        "the certificate of {node} was revoked when the node was removed: join again with a new \
         token"
    )]
    Revoked {
        /// The node.
        node: NodeName,
    },
    /// It is of a Node of the same name that is deleted.
    #[error(
        "the certificate is of an earlier Node {node} that was deleted: the agent on the present \
         one enrols with the token of its pod"
    )]
    EarlierNode {
        /// The node.
        node: NodeName,
    },
    /// It says of no Node that it belongs to it.
    #[error(
        "the certificate does not say which Node {node} of the cluster it is for, because it was \
         made outside of it: the agent enrols with the token of its pod"
    )]
    Unbound {
        /// The node.
        node: NodeName,
    },
    /// Whether it was revoked is not known yet.
    #[error(
        "this proxy has not seen a certificate of {node} before, and does not know yet whether \
         this one was revoked: first another proxy of --peer or --follow has to say so, or in a \
         cluster the ConfigMap culvert-revocations, and this proxy tries; if the other proxies are \
         gone for good, start it without these flags"
    )]
    Undecided {
        /// The node.
        node: NodeName,
    },
    /// It has ended.
    #[error(
        "the certificate of {node} expired at {expired}: renew it, or join again with a new token"
    )]
    Expired {
        /// The node.
        node: NodeName,
        /// When it ended.
        expired: UnixTime,
    },
    /// It ended too long ago to be renewed.
    #[error(
        "the certificate of {node} expired at {expired}, too long ago to be renewed: join again \
         with a new token"
    )]
    TooOld {
        /// The node.
        node: NodeName,
        /// When it ended.
        expired: UnixTime,
    },
    /// It has not begun.
    #[error(
        "the certificate of {node} begins at {begins}: is the clock of one of the hosts wrong?"
    )]
    NotYet {
        /// The node.
        node: NodeName,
        /// When it begins.
        begins: UnixTime,
    },
}

impl IdentityError {
    /// The node that a certificate of our authority names.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::NoCertificate | Self::Unreadable(_) | Self::Names(_) => None,
            Self::UnknownNode { node }
            | Self::Revoked { node }
            | Self::EarlierNode { node }
            | Self::Unbound { node }
            | Self::Undecided { node }
            | Self::Expired { node, .. }
            | Self::TooOld { node, .. }
            | Self::NotYet { node, .. } => Some(node),
        }
    }

    /// Label for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Unreadable(_) | Self::Names(_) => "bad_certificate",
            Self::UnknownNode { .. } => "unknown_node",
            Self::Revoked { .. } | Self::EarlierNode { .. } => "revoked",
            Self::Unbound { .. } => "unbound",
            Self::Undecided { .. } => "undecided",
            Self::Expired { .. } | Self::TooOld { .. } => "expired",
            Self::NotYet { .. } => "not_yet_valid",
        }
    }
}

/// A certificate's serial number without leading zeros.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Serial(Vec<u8>);

impl Serial {
    /// 126 random bits: unpredictable, positive, and never with a leading zero.
    pub fn random() -> Self {
        let mut bytes: [u8; 16] = rand::random();
        bytes[0] = bytes[0] & 0x7f | 0x40;
        Self(bytes.to_vec())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<String> for Serial {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match HEXLOWER_PERMISSIVE.decode(text.as_bytes()) {
            Ok(bytes) if bytes.len() <= MAX_SERIAL_BYTES => Ok(Self(bytes)),
            _ => Err(format!(
                "{text:?} is not a serial number in hexadecimal digits"
            )),
        }
    }
}

impl From<Serial> for String {
    fn from(serial: Serial) -> Self {
        HEXLOWER.encode(&serial.0)
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// The parts of a certificate that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// All subject alternative names except the binding. Those that are not DNS names are in their
    /// debug form.
    pub names: Vec<String>,
    /// `None`: an operator issued the certificate.
    pub(crate) binding: Option<Binding>,
    /// Whether it has the [`PROXY_ROLE`].
    pub(crate) is_proxy: bool,
    /// The serial number.
    pub serial: Serial,
    /// When it begins.
    pub not_before: UnixTime,
    /// When it ends.
    pub not_after: UnixTime,
    pub(crate) may_sign: bool,
    pub(crate) public_key: Vec<u8>,
}

impl Leaf {
    /// Reads a certificate.
    ///
    /// # Errors
    ///
    /// It does not parse, or does not say one name.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(unreadable)?;
        let alternative = certificate.subject_alternative_name().map_err(unreadable)?;
        let constraints = certificate.basic_constraints().map_err(unreadable)?;
        let raw_serial = certificate.raw_serial();
        let zeros = raw_serial.iter().take_while(|byte| **byte == 0).count();
        let mut names = Vec::new();
        let mut bound = None;
        let mut is_proxy = false;
        for general in alternative
            .iter()
            .flat_map(|extension| &extension.value.general_names)
        {
            is_proxy |= matches!(general, GeneralName::URI(uri) if *uri == PROXY_ROLE);
            match binding(general) {
                // Two bindings count as none.
                Some(binding) if bound.is_none() => bound = Some(binding),
                Some(_) | None => names.push(name(general)),
            }
        }
        Ok(Self {
            names,
            binding: bound,
            is_proxy,
            serial: Serial(raw_serial[zeros..].to_vec()),
            not_before: time(certificate.validity().not_before.timestamp()),
            not_after: time(certificate.validity().not_after.timestamp()),
            may_sign: constraints.is_some_and(|extension| extension.value.ca),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        })
    }

    /// The one node that the certificate names.
    pub(crate) fn node(&self) -> Result<NodeName, IdentityError> {
        let [name] = self.names.as_slice() else {
            return Err(IdentityError::Names(self.names.clone()));
        };
        name.parse()
            .map_err(|_| IdentityError::Names(self.names.clone()))
    }

    /// What is kept of the certificate while its tunnel is up.
    pub(crate) fn credential(self) -> Result<Credential, IdentityError> {
        let node = self.node()?;
        let Self {
            serial,
            not_before,
            not_after,
            binding,
            ..
        } = self;
        Ok(Credential {
            node,
            serial,
            not_before,
            not_after,
            binding,
        })
    }
}

/// A certificate that identifies its owner as a node, with its dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The node.
    pub node: NodeName,
    /// The serial number.
    pub serial: Serial,
    /// When it begins.
    pub not_before: UnixTime,
    /// When it ends.
    pub not_after: UnixTime,
    /// The Node that it is bound to.
    pub binding: Option<Binding>,
}

impl Credential {
    /// The last moment at which a tunnel may use it.
    pub(crate) fn ends(&self) -> UnixTime {
        self.not_after + CLOCK_SLACK.min(self.not_after.since(self.not_before) / 20)
    }

    /// Whether the certificate may serve the purpose at this time. `grace` is the time after its
    /// end for which it can be renewed.
    pub(crate) fn timely(
        &self,
        purpose: Purpose,
        grace: Duration,
        now: UnixTime,
    ) -> Result<(), IdentityError> {
        let node = self.node.clone();
        let expired = self.not_after;
        if now < self.not_before {
            return Err(IdentityError::NotYet {
                node,
                begins: self.not_before,
            });
        }
        match purpose {
            _ if now <= self.ends() => Ok(()),
            Purpose::Renew if now.since(expired) <= grace => Ok(()),
            Purpose::Renew => Err(IdentityError::TooOld { node, expired }),
            Purpose::Tunnel => Err(IdentityError::Expired { node, expired }),
        }
    }
}

fn name(name: &GeneralName<'_>) -> String {
    if let GeneralName::DNSName(name) = name {
        (*name).to_owned()
    } else {
        format!("{name:?}")
    }
}

fn binding(name: &GeneralName<'_>) -> Option<Binding> {
    if let GeneralName::URI(uri) = name {
        Binding::from_uri(uri)
    } else {
        None
    }
}

fn unreadable(error: impl fmt::Display) -> IdentityError {
    IdentityError::Unreadable(error.to_string())
}

/// Times before 1970 are 1970.
fn time(timestamp: i64) -> UnixTime {
    UnixTime::from_seconds(u64::try_from(timestamp).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn leaf(names: &[&str], not_after: UnixTime) -> Leaf {
        Leaf {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            is_proxy: false,
            binding: None,
            serial: Serial::random(),
            not_before: UnixTime::from_seconds(1_600_000_000),
            not_after,
            may_sign: false,
            public_key: Vec::new(),
        }
    }

    #[test]
    fn a_certificate_names_one_node_or_none() {
        assert_eq!(leaf(&["edge-1"], NOW).node().unwrap().as_str(), "edge-1");
        for bad in [
            &[][..],
            &["edge-1", "edge-2"],
            &["*.edge"],
            &["Edge-1"],
            &["IPAddress([10, 0, 3, 7])"],
        ] {
            assert!(
                matches!(leaf(bad, NOW).node(), Err(IdentityError::Names(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn an_expired_certificate_renews_within_the_grace_but_opens_no_tunnel() {
        let credential = |expired: UnixTime| leaf(&["edge-1"], expired).credential().unwrap();
        let judge =
            |expired: UnixTime, purpose| credential(expired).timely(purpose, RENEWAL_GRACE, NOW);
        assert_eq!(judge(NOW, Purpose::Tunnel), Ok(()));
        assert_eq!(
            judge(NOW.before(CLOCK_SLACK), Purpose::Tunnel),
            Ok(()),
            "clocks differ"
        );
        let past = NOW.before(CLOCK_SLACK + SECOND);
        assert!(matches!(
            judge(past, Purpose::Tunnel),
            Err(IdentityError::Expired { .. })
        ));
        assert_eq!(judge(NOW.before(RENEWAL_GRACE), Purpose::Renew), Ok(()));
        assert!(matches!(
            judge(NOW.before(RENEWAL_GRACE + SECOND), Purpose::Renew),
            Err(IdentityError::TooOld { .. })
        ));
        let in_a_cluster = credential(past).timely(Purpose::Renew, Duration::ZERO, NOW);
        assert!(matches!(in_a_cluster, Err(IdentityError::TooOld { .. })));
        let early =
            credential(NOW).timely(Purpose::Renew, RENEWAL_GRACE, UnixTime::from_seconds(1));
        assert!(matches!(early, Err(IdentityError::NotYet { .. })));
    }

    #[test]
    fn a_short_certificate_has_little_slack() {
        let mut short = leaf(&["edge-1"], NOW).credential().unwrap();
        short.not_before = NOW.before(Duration::from_secs(60));
        assert_eq!(short.ends(), NOW + Duration::from_secs(3));
    }

    #[test]
    fn serials_survive_their_text_form() {
        let serial = Serial::random();
        assert_eq!(Serial::try_from(String::from(serial.clone())), Ok(serial));
        for bad in ["1", "xy", "+1", "é1", &"00".repeat(21)] {
            assert!(Serial::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
