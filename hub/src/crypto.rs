//! The cryptography provider of every use of TLS and certificates.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
