//! The server name in a TLS ClientHello, which may come in many segments and many records. Pure:
//! the bytes are only read, never answered.

use rustls::server::Acceptor;

use super::head::BadHead;

/// Reads one ClientHello as it arrives.
#[derive(Default)]
pub(crate) struct HelloReader {
    acceptor: Acceptor,
    /// Bytes that the acceptor has taken.
    taken: usize,
}

impl HelloReader {
    /// The server name. `bytes` are all bytes so far; `None`: more are needed.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<String>, BadHead> {
        let mut rest = &bytes[self.taken.min(bytes.len())..];
        while !rest.is_empty() {
            let taken = self
                .acceptor
                .read_tls(&mut rest)
                .map_err(|error| BadHead::Hello(rustls::Error::General(error.to_string())))?;
            if taken == 0 {
                break;
            }
            self.taken += taken;
            if let Some(hello) = self
                .acceptor
                .accept()
                .map_err(|(error, _)| BadHead::Hello(error))?
            {
                let name = hello.client_hello().server_name().map(str::to_owned);
                return name.map(Some).ok_or(BadHead::NoServerName);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// The first flight of a stock client.
    fn hello(server: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(server.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// The same in records of so many bytes.
    fn in_records(hello: &[u8], length: usize) -> Vec<u8> {
        let record = |piece: &[u8]| {
            let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
            [&[0x16, 3, 1][..], &length, piece].concat()
        };
        hello[5..].chunks(length).flat_map(record).collect()
    }

    #[test]
    fn the_name_is_read_however_the_hello_is_cut() {
        let hello = hello("Edge-1.edge.internal");
        for bytes in [hello.clone(), in_records(&hello, 7), in_records(&hello, 1)] {
            let whole = HelloReader::default().read(&bytes).unwrap();
            assert_eq!(whole.as_deref(), Some("edge-1.edge.internal"));
            let mut trickling = HelloReader::default();
            for end in 0..bytes.len() {
                assert!(matches!(trickling.read(&bytes[..end]), Ok(None)), "{end}");
            }
            assert_eq!(trickling.read(&bytes).unwrap(), whole);
        }
    }

    #[test]
    fn bytes_behind_the_hello_do_no_harm() {
        let mut bytes = hello("edge-1");
        bytes.extend([0x17, 3, 3, 0, 1, 0]);
        let name = HelloReader::default().read(&bytes).unwrap();
        assert_eq!(name.as_deref(), Some("edge-1"));
    }

    #[test]
    fn without_a_name_or_without_tls_there_is_a_reason() {
        let nameless = HelloReader::default().read(&hello("192.0.2.1"));
        assert!(matches!(nameless, Err(BadHead::NoServerName)));
        let nonsense = HelloReader::default().read(&[0x16, 3, 1, 0, 4, 2, 0, 0, 0]);
        assert!(matches!(nonsense, Err(BadHead::Hello(_))));
    }
}
