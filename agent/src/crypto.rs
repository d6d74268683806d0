//! The cryptography provider of every use of TLS and certificates.

use std::sync::Arc;

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

/// A proxy takes the first cipher of the agent. Without instructions for AES, ChaCha20 is several
/// times as fast.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(with_first(has_aes()))
}

fn with_first(aes: bool) -> CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if !aes {
        // The sort is stable: the others keep their order.
        provider
            .cipher_suites
            .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    }
    provider
}

/// Whether the processor has instructions for AES. Nothing tells it on 32-bit ARM, where most have
/// none.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chacha20_is_first_only_without_instructions_for_aes() {
        let suites = |aes| -> Vec<_> {
            let provider = with_first(aes);
            let suites = provider.cipher_suites.iter();
            suites.map(|suite| suite.suite()).collect()
        };
        let with = suites(true);
        let without = suites(false);
        assert_eq!(without[0], CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        assert_ne!(with[0], without[0]);
        assert_eq!(with.len(), without.len());
    }
}
