//! The one provider of cryptography.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// For every use of TLS and of certificates.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
