//! Which node a client certificate stands for, and whether it still does.

use culvert_proxy_core::clock::UnixTime;
use rustls::pki_types::CertificateDer;

use super::identity::{Binding, Credential, IdentityError, Leaf, Purpose};
use super::ledger::CertificateStatus;
use super::revocation_sync::PeerSync;
use super::{Shares, Trust};

impl Trust {
    /// The node that a verified chain belongs to, and what is kept of its certificate.
    pub fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
    ) -> Result<Credential, IdentityError> {
        let credential =
            Leaf::read(chain.first().ok_or(IdentityError::NoCertificate)?)?.credential()?;
        let now = UnixTime::now();
        match self.judge(&credential, purpose, now)? {
            CertificateStatus::New if self.needs_record(&credential) => {
                self.record(credential, now)
            }
            CertificateStatus::New | CertificateStatus::Known | CertificateStatus::Revoked => {
                Ok(credential)
            }
        }
    }

    /// Whether a tunnel that uses the certificate may continue.
    pub fn check(&self, credential: &Credential, now: UnixTime) -> Result<(), IdentityError> {
        match self.judge(credential, Purpose::Tunnel, now) {
            // The certificate was admitted with more knowledge than there is now.
            Ok(_) | Err(IdentityError::Undecided { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn judge(
        &self,
        credential: &Credential,
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<CertificateStatus, IdentityError> {
        let status = match &self.0.cluster {
            Some(shares) => self.status_in_cluster(shares, credential)?,
            None => self.status_alone(credential)?,
        };
        if status == CertificateStatus::Revoked {
            return Err(IdentityError::Revoked {
                node: credential.node.clone(),
            });
        }
        if !self.0.directory.contains(&credential.node) {
            return Err(IdentityError::UnknownNode {
                node: credential.node.clone(),
            });
        }
        credential.timely(purpose, self.grace(), now)?;
        Ok(status)
    }

    /// Judges a certificate outside of a cluster. A certificate of a node that was never seen here
    /// has to wait until another proxy has reported its revocations.
    fn status_alone(&self, credential: &Credential) -> Result<CertificateStatus, IdentityError> {
        let ledger = self.ledger();
        let status = ledger.status(credential);
        // The certificate itself says which revocation it follows, so one recorded certificate of
        // the node is enough to know the node.
        let is_seen = credential.binding.is_some() && ledger.has_any(&credential.node);
        if status == CertificateStatus::New
            && !is_seen
            && *self.0.peer_sync.borrow() == PeerSync::Pending
        {
            let node = credential.node.clone();
            return Err(IdentityError::Undecided { node });
        }
        Ok(status)
    }

    /// Judges a Node's certificate: it must belong to the present Node and be issued after the
    /// Node's last revocation. A certificate that was never seen before has to wait until the
    /// revocations are known.
    fn status_in_cluster(
        &self,
        shares: &Shares,
        credential: &Credential,
    ) -> Result<CertificateStatus, IdentityError> {
        let node = credential.node.clone();
        let status = match &credential.binding {
            Some(Binding {
                uid: Some(uid),
                revocation,
            }) => match self.0.directory.uid(&credential.node) {
                Some(present) if present != *uid => {
                    return Err(IdentityError::EarlierNode { node });
                }
                None => return Err(IdentityError::UnknownNode { node }),
                Some(_) if *revocation < shares.known.borrow().last(uid) => {
                    CertificateStatus::Revoked
                }
                Some(_) if self.ledger().has(credential) => CertificateStatus::Known,
                Some(_) => CertificateStatus::New,
            },
            Some(_) | None if self.material().authority().is_some() => {
                return Err(IdentityError::Unbound { node });
            }
            // An operator issues all certificates here.
            Some(_) | None => self.ledger().status(credential),
        };
        if status == CertificateStatus::New && shares.agreed.borrow().is_none() {
            return Err(IdentityError::Undecided { node });
        }
        Ok(status)
    }

    /// Whether the certificate has to be in the ledger. Outside of a cluster it contains the
    /// revocation that it follows, so one row for each node is enough. All others need a row each.
    pub(super) fn needs_record(&self, credential: &Credential) -> bool {
        self.0.cluster.is_some()
            || credential.binding.is_none()
            || !self.ledger().has_any(&credential.node)
    }

    /// Records a certificate that another proxy issued. It counts at once for the removal of its
    /// node. It is written to disk a moment later, together with others: thousands may come at the
    /// same time, and they are seen again if this process ends before the write.
    fn record(&self, credential: Credential, now: UnixTime) -> Result<Credential, IdentityError> {
        let mut ledger = self.ledger_mut();
        // The node may have been removed since the caller looked.
        if self.0.cluster.is_none() && ledger.status(&credential) == CertificateStatus::Revoked {
            return Err(IdentityError::Revoked {
                node: credential.node,
            });
        }
        ledger.record(&credential, self.grace(), now);
        Ok(credential)
    }
}
