//! What a proxy says about itself and about all proxies: read within bounds, and refused if it is
//! anything but short printable text.

use bytes::Bytes;
use prost::Message;

use crate::proto::tunnel::{DescribeRequest, DialProxyRequest, Proxy, SetProxiesRequest};

/// Longest `SetProxies` message.
pub(super) const PROXIES_MAX_BYTES: usize = 128 << 10;
/// The most proxies in one list.
const PROXIES_MAX: usize = 256;
/// Most addresses of one proxy.
const ADDRESSES_MAX: usize = 16;
/// Longest instance. Proxies use 16 hexadecimal digits.
const INSTANCE_MAX: usize = 64;
/// Longest `host:port`: a DNS name has at most 253 characters.
const ADDRESS_MAX: usize = 260;

/// The agent has enough tunnels to this proxy, or to other proxies: it ends this tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declined;

/// Reads a `DescribeRequest`; `None` if it is none. Its instance may be empty: older proxies have
/// none.
pub(super) fn introduction(message: Bytes) -> Option<DescribeRequest> {
    let request = DescribeRequest::decode(message).ok()?;
    is_text(&request.instance, INSTANCE_MAX).then_some(request)
}

/// Reads a `DialProxyRequest`; `None` if it is none, or names no proxy.
pub(super) fn dial_request(message: Bytes) -> Option<DialProxyRequest> {
    let request = DialProxyRequest::decode(message).ok()?;
    if request.proxy.is_empty() || !is_text(&request.proxy, INSTANCE_MAX) {
        return None;
    }
    Some(request)
}

/// Reads a `SetProxiesRequest`; `None` if it is none, or out of bounds.
pub(super) fn proxies(message: Bytes) -> Option<Vec<Proxy>> {
    let proxies = SetProxiesRequest::decode(message).ok()?.proxies;
    if proxies.len() > PROXIES_MAX || !proxies.iter().all(is_usable) {
        return None;
    }
    Some(proxies)
}

fn is_usable(proxy: &Proxy) -> bool {
    !proxy.instance.is_empty()
        && is_text(&proxy.instance, INSTANCE_MAX)
        && proxy.addresses.len() <= ADDRESSES_MAX
        && proxy
            .addresses
            .iter()
            .all(|text| is_text(text, ADDRESS_MAX))
}

/// Whether a text has no spaces, no control characters and no more than `longest` bytes.
fn is_text(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy() -> Proxy {
        Proxy {
            instance: "0123456789abcdef".to_owned(),
            addresses: vec!["[2001:db8::1]:7400".to_owned()],
            ..Proxy::default()
        }
    }

    fn read(proxies: Vec<Proxy>) -> Option<usize> {
        let message = SetProxiesRequest { proxies }.encode_to_vec();
        super::proxies(message.into()).map(|proxies| proxies.len())
    }

    #[test]
    fn at_most_256_proxies_with_16_addresses_each_are_taken() {
        assert_eq!(read(vec![proxy(); 256]), Some(256));
        assert_eq!(read(vec![proxy(); 257]), None);
        let with = |count| Proxy {
            addresses: vec!["proxy:1".to_owned(); count],
            ..proxy()
        };
        assert_eq!(read(vec![with(16)]), Some(1));
        assert_eq!(read(vec![with(17)]), None);
        assert_eq!(
            read(vec![with(0)]),
            Some(1),
            "only the shared address is known"
        );
    }

    #[test]
    fn text_that_could_command_a_terminal_is_refused() {
        for text in ["a\u{1b}[2J", "a b", "\u{e9}", &"a".repeat(300)] {
            let addresses = vec![text.to_owned()];
            assert_eq!(
                read(vec![Proxy {
                    addresses,
                    ..proxy()
                }]),
                None,
                "{text:?}"
            );
            let instance = text.to_owned();
            assert_eq!(
                read(vec![Proxy {
                    instance,
                    ..proxy()
                }]),
                None,
                "{text:?}"
            );
            let request = DialProxyRequest {
                proxy: text.to_owned(),
                ..DialProxyRequest::default()
            };
            assert_eq!(
                dial_request(request.encode_to_vec().into()),
                None,
                "{text:?}"
            );
            let instance = text.to_owned();
            let request = DescribeRequest {
                instance,
                ..DescribeRequest::default()
            };
            assert_eq!(
                introduction(request.encode_to_vec().into()),
                None,
                "{text:?}"
            );
        }
        assert_eq!(
            read(vec![Proxy {
                instance: String::new(),
                ..proxy()
            }]),
            None
        );
        assert!(
            introduction(Bytes::new()).is_some(),
            "older proxies have no instance"
        );
    }
}
