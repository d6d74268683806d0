//! The server name in a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3), which may come in many
//! segments and many records. It is read as a router reads it: nothing but the server name has to
//! make sense, since the node's own server answers. Pure: the bytes are only read.

use std::net::IpAddr;

use super::bad_head::{BadHead, InvalidHello};

/// Type of a TLS record, and of a handshake message in it.
const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;
/// The same in all versions of TLS.
const MAJOR_VERSION: u8 = 3;
/// Type, version and length of a record.
const RECORD_HEAD: usize = 5;
/// Longest content of a record, with what encryption may add to it.
const MAX_RECORD: usize = (16 << 10) + 2048;
/// Type and length of a handshake message.
const MESSAGE_HEAD: usize = 4;
/// The version and the random bytes at the beginning of a ClientHello.
const FIXED: usize = 2 + 32;
/// Type of the extension server_name, and of a host name in it.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Reads one ClientHello as it arrives. Each byte is looked at a fixed number of times.
#[derive(Default)]
pub(crate) struct HelloReader {
    /// Bytes of whole records that are in `message` already.
    taken: usize,
    /// The content of the records so far.
    message: Vec<u8>,
}

impl HelloReader {
    /// The server name in lower case. `bytes` are all bytes so far; `None`: more are needed.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<String>, BadHead> {
        while let Some((content, length)) = record(bytes.get(self.taken..).unwrap_or_default())? {
            self.taken += length;
            self.message.extend_from_slice(content);
            if let Some(body) = client_hello(&self.message)? {
                return server_name(body)?.map(Some).ok_or(BadHead::NoServerName);
            }
        }
        Ok(None)
    }
}

/// The content of the first record and the length of the record, once it is whole.
fn record(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, InvalidHello> {
    let mut head = bytes.iter();
    let is_handshake = head.next().is_none_or(|kind| *kind == HANDSHAKE)
        && head.next().is_none_or(|major| *major == MAJOR_VERSION);
    if !is_handshake {
        return Err(InvalidHello::Record);
    }
    let Some(&[_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEAD>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length == 0 || length > MAX_RECORD {
        return Err(InvalidHello::Length);
    }
    let end = RECORD_HEAD + length;
    let content = bytes.get(RECORD_HEAD..end);
    Ok(content.map(|content| (content, end)))
}

/// The body of the ClientHello at the start of `message`, once it is whole.
fn client_hello(message: &[u8]) -> Result<Option<&[u8]>, InvalidHello> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(InvalidHello::Message);
    }
    let Some(&[_, high, middle, low]) = message.first_chunk::<MESSAGE_HEAD>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    Ok(message.get(MESSAGE_HEAD..MESSAGE_HEAD + length))
}

/// The first host name of the first extension server_name. Extensions that are there twice, or
/// that say nothing, are the server's business.
fn server_name(body: &[u8]) -> Result<Option<String>, InvalidHello> {
    let mut hello = Parts(body);
    hello.bytes(FIXED)?;
    let _session = hello.with_length::<1>()?;
    let _cipher_suites = hello.with_length::<2>()?;
    let _compression = hello.with_length::<1>()?;
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = Parts(hello.with_length::<2>()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number::<2>()?;
        let content = extensions.with_length::<2>()?;
        if kind == usize::from(SERVER_NAME) {
            return host_name(content);
        }
    }
    Ok(None)
}

fn host_name(extension: &[u8]) -> Result<Option<String>, InvalidHello> {
    let mut list = Parts(Parts(extension).with_length::<2>()?);
    while !list.0.is_empty() {
        let kind = list.number::<1>()?;
        let name = list.with_length::<2>()?;
        if kind != usize::from(HOST_NAME) {
            continue;
        }
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err(InvalidHello::Name);
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        // An address is no server name (RFC 6066), and names no node.
        if name.parse::<IpAddr>().is_ok() {
            return Ok(None);
        }
        return Ok(Some(name));
    }
    Ok(None)
}

/// What is left of a message.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], InvalidHello> {
        let (bytes, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(InvalidHello::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number of `N` bytes.
    fn number<const N: usize>(&mut self) -> Result<usize, InvalidHello> {
        let mut number = 0;
        for byte in self.bytes(N)? {
            number = (number << 8) | usize::from(*byte);
        }
        Ok(number)
    }

    /// Bytes after their length, a number of `N` bytes.
    fn with_length<const N: usize>(&mut self) -> Result<&'a [u8], InvalidHello> {
        let length = self.number::<N>()?;
        self.bytes(length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::{EchGreaseConfig, EchMode};
    use rustls::crypto::aws_lc_rs::{default_provider, hpke, kx_group};
    use rustls::crypto::hpke::Hpke;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// The first flight of a stock client.
    fn hello(server: &str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        first_flight(config, server)
    }

    /// That of a client as browsers are: with a place for an encrypted hello (ECH) that has none,
    /// and key shares of two kinds.
    fn greased_hello(server: &str) -> Vec<u8> {
        let mut provider = default_provider();
        provider.kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519];
        let suite = hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
        let (key, _) = suite.generate_key_pair().unwrap();
        let ech = EchMode::Grease(EchGreaseConfig::new(suite, key));
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_ech(ech)
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        first_flight(config, server)
    }

    fn first_flight(config: ClientConfig, server: &str) -> Vec<u8> {
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
        let name = "Edge-1.edge.internal";
        let short = hello(name);
        let long = greased_hello(name);
        // More than one segment, with ECH.
        assert!(long.len() > 1_600 && long.windows(2).any(|kind| kind == [0xfe, 0x0d]));
        for bytes in [
            in_records(&short, 7),
            in_records(&short, 1),
            in_records(&long, 100),
            short,
            long,
        ] {
            let whole = HelloReader::default().read(&bytes).unwrap();
            assert_eq!(whole.as_deref(), Some("edge-1.edge.internal"));
            let mut trickling = HelloReader::default();
            for end in 0..bytes.len() {
                assert!(matches!(trickling.read(&bytes[..end]), Ok(None)), "{end}");
            }
            assert_eq!(trickling.read(&bytes).unwrap(), whole);
        }
    }

    /// A ClientHello with these extensions and nothing that a server would need.
    fn bare_hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut content = Vec::new();
        for (kind, extension) in extensions {
            let length = u16::try_from(extension.len()).unwrap();
            content.extend(kind.to_be_bytes());
            content.extend(length.to_be_bytes());
            content.extend(extension);
        }
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        let body = [
            &[3, 2][..],
            &[7; 32],
            &[0, 0, 2, 0, 0x2f, 1, 0],
            &length,
            &content,
        ]
        .concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1][..], &length[1..], &body].concat();
        let length = u16::try_from(message.len()).unwrap().to_be_bytes();
        [&[0x16, 3, 1][..], &length, &message].concat()
    }

    fn names(names: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
        let mut list = Vec::new();
        for (kind, name) in names {
            list.push(*kind);
            list.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
            list.extend(*name);
        }
        let length = u16::try_from(list.len()).unwrap().to_be_bytes();
        (0, [&length[..], &list].concat())
    }

    fn read(hello: &[u8]) -> Result<Option<String>, BadHead> {
        HelloReader::default().read(hello)
    }

    #[test]
    fn only_the_server_name_has_to_make_sense() {
        let edge_1 = || names(&[(0, b"edge-1")]);
        for hello in [
            // TLS 1.1: without signature_algorithms.
            bare_hello(&[edge_1()]),
            bare_hello(&[(10, vec![9]), (10, vec![9]), edge_1()]),
            bare_hello(&[edge_1(), names(&[(0, b"edge-2")])]),
            // GREASE, as Chromium sends it: first and last.
            bare_hello(&[
                (0x3a3a, vec![]),
                (0xfe0d, vec![0; 250]),
                edge_1(),
                (0xcaca, vec![0]),
            ]),
            bare_hello(&[(0x0a0a, vec![]), edge_1(), (43, vec![255; 40])]),
            bare_hello(&[names(&[(7, b"?"), (0, b"edge-1"), (0, b"edge-2")])]),
        ] {
            assert_eq!(read(&hello).unwrap().as_deref(), Some("edge-1"));
        }
    }

    #[test]
    fn a_hello_without_a_usable_name_is_refused() {
        for nameless in [
            bare_hello(&[]),
            bare_hello(&[(43, vec![1])]),
            bare_hello(&[names(&[])]),
            bare_hello(&[names(&[(0, b"192.0.2.1")])]),
        ] {
            assert!(matches!(read(&nameless), Err(BadHead::NoServerName)));
        }
        for bad in [
            bare_hello(&[(0, vec![0, 9, 0, 0, 1, b'a'])]),
            bare_hello(&[(0, vec![])]),
            bare_hello(&[names(&[(0, b"")])]),
            bare_hello(&[names(&[(0, b"edge\n1")])]),
            vec![0x17, 3, 1, 0, 1, 1],
            vec![0x16, 3, 1, 0, 0],
        ] {
            assert!(matches!(read(&bad), Err(BadHead::Hello(_))), "{bad:?}");
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
