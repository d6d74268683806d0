//! Issues agents' certificates.

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use parking_lot::MutexGuard;

use super::authority::ProvenKey;
use super::identity::{Binding, Credential};
use super::{Trust, TrustError};

/// An agent's certificate, and what the agent needs to trust proxies.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, and what it needs for its verification.
    pub chain_pem: String,
    /// The authority's.
    pub ca_pem: String,
}

impl Trust {
    /// Held while an agent is admitted or a node is removed, so that no certificate is issued on
    /// outdated facts.
    pub fn admission(&self) -> MutexGuard<'_, ()> {
        self.0.admission.lock()
    }

    /// Issues a certificate for the node, which showed `shown` for it. The new one is void when
    /// `shown` is.
    pub fn issue(
        &self,
        node: &NodeName,
        key: &ProvenKey,
        shown: Option<&Credential>,
    ) -> Result<Issued, TrustError> {
        let now = UnixTime::now();
        let binding = self.binding(node, shown)?;
        let lifetime = self.0.config.certificate_lifetime;
        let (made, ca_pem) = {
            let material = self.material();
            let authority = material.authority().ok_or(TrustError::NoAuthority)?;
            (
                authority.node_certificate((node, &binding), key, lifetime, now)?,
                authority.pem().to_owned(),
            )
        };
        let serial = made.serial;
        let not_after = made.expires;
        let credential = Credential {
            node: node.clone(),
            serial,
            not_before: now,
            not_after,
            binding: Some(binding),
        };
        if self.needs_record(&credential) {
            self.ledger_mut().record(&credential, self.grace(), now);
        }
        Ok(Issued {
            chain_pem: made.pem,
            ca_pem,
        })
    }

    fn binding(&self, node: &NodeName, shown: Option<&Credential>) -> Result<Binding, TrustError> {
        let mut revocation = UnixTime::default();
        if let Some(shown) = shown
            && let Some(binding) = &shown.binding
        {
            revocation = binding.revocation;
        }
        let Some(shares) = &self.0.cluster else {
            let known = self.ledger().revocation(node);
            return Ok(Binding {
                uid: None,
                revocation: revocation.max(known),
            });
        };
        let Some(uid) = self.0.directory.uid(node) else {
            return Err(TrustError::NoUid { node: node.clone() });
        };
        let known = shares.known.borrow().last(&uid);
        Ok(Binding {
            uid: Some(uid),
            revocation: revocation.max(known),
        })
    }
}
