//! Callers of the CONNECT port: owners of certificates from the authorities in the operator's file,
//! as the file is now. A certificate from an authority of the agents is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use culvert_proxy_core::state::read_bounded;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

use super::TrustError;
use super::handshake::{self, ServerIdentity};
use crate::authority::{AuthorityError, Pem, certificates_in};
use crate::identity::Leaf;

/// The TLS settings for callers, replaced while connections continue. Clones share them.
#[derive(Clone, Debug)]
pub struct Callers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client_ca: PathBuf,
    /// `None`: every caller is refused, because only the agents' authority is left.
    config: ArcSwapOption<ServerConfig>,
    /// The inputs of these settings.
    made_of: Mutex<MadeOf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MadeOf {
    text: String,
    agents: Vec<Vec<u8>>,
}

impl Callers {
    pub(super) fn open(
        client_ca: &Path,
        identity: &ServerIdentity,
        agents: &[CertificateDer<'_>],
    ) -> Result<Self, TrustError> {
        let config = ArcSwapOption::empty();
        let made_of = Mutex::default();
        let callers = Self(Arc::new(Shared {
            client_ca: client_ca.to_owned(),
            config,
            made_of,
        }));
        callers.refresh(identity, agents)?;
        Ok(callers)
    }

    /// Call this for each connection: the settings change with the file. `None`: every caller is
    /// refused now.
    pub fn server_config(&self) -> Option<Arc<ServerConfig>> {
        self.0.config.load_full()
    }

    /// Reloads the file and the agents' authorities if they have changed. If the file is invalid,
    /// the last valid one stays in use. If the file has an authority of the agents, every caller is
    /// refused: that authority could issue a certificate in any client's name.
    pub(super) fn refresh(
        &self,
        identity: &ServerIdentity,
        agents: &[CertificateDer<'_>],
    ) -> Result<(), TrustError> {
        let Shared {
            client_ca,
            config,
            made_of,
        } = &*self.0;
        let mut made_of = made_of.lock();
        let (text, problem) = match read(client_ca) {
            Ok(text) => (text, None),
            Err(problem) if made_of.text.is_empty() => return Err(problem.into()),
            // The agents' authorities count even while the file is invalid.
            Err(problem) => (made_of.text.clone(), Some(problem)),
        };
        let now = MadeOf {
            text,
            agents: public_keys(agents),
        };
        if *made_of != now {
            let authorities = certificates_in(Pem {
                origin: client_ca,
                text: &now.text,
            })?;
            let shared = public_keys(&authorities)
                .iter()
                .any(|key| now.agents.contains(key));
            let made = if shared {
                None
            } else {
                let made = handshake::caller_config(identity, &authorities, now.agents.clone())
                    .map_err(|source| TrustError::Verifier {
                        what: client_ca.display().to_string(),
                        source,
                    })?;
                Some(Arc::new(made))
            };
            if config.swap(made).is_some() {
                tracing::info!(
                    file = %client_ca.display(),
                    "the authorities of CONNECT's clients have changed"
                );
            }
            *made_of = now;
        }
        match problem {
            Some(problem) => Err(problem.into()),
            None if config.load().is_none() => Err(self.shared()),
            None => Ok(()),
        }
    }

    fn shared(&self) -> TrustError {
        TrustError::SharedAuthority {
            file: self.0.client_ca.display().to_string(),
        }
    }
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    let text = read_bounded(path).map_err(|source| AuthorityError::Read {
        path: path.to_owned(),
        source,
    })?;
    certificates_in(Pem {
        origin: path,
        text: &text,
    })
    .map(|_| text)
}

fn public_keys(certificates: &[CertificateDer<'_>]) -> Vec<Vec<u8>> {
    certificates
        .iter()
        .filter_map(|der| Leaf::read(der).ok())
        .map(|certificate| certificate.public_key)
        .collect()
}
