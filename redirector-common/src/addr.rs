//! Addresses as the kernel programs see them.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IP address as 16 bytes in network order; IPv4 as `::ffff:a.b.c.d`. All zero means "none"
/// where an address may be absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C, align(4))]
pub struct Addr {
    /// The bytes as on the wire.
    pub bytes: [u8; 16],
}

impl Addr {
    /// No address.
    pub const NONE: Self = Self { bytes: [0; 16] };

    /// Makes an address of four words in network order, as in `user_ip6`.
    #[inline(always)]
    #[must_use]
    pub const fn from_words(words: [u32; 4]) -> Self {
        // SAFETY: as in `as_words`.
        unsafe { core::mem::transmute::<[u32; 4], Self>(words) }
    }

    /// Makes an address of an IPv4 address in network order, as in `user_ip4`.
    #[inline(always)]
    #[must_use]
    pub const fn from_v4_word(word: u32) -> Self {
        Self::from_words([0, 0, 0xffff_u32.to_be(), word])
    }

    /// The address as four words, each in network order.
    #[inline(always)]
    #[must_use]
    pub const fn as_words(&self) -> [u32; 4] {
        // SAFETY: both types are 16 bytes of plain integers. Safe code that assembles the words
        // from bytes would cost the kernel programs four loads and shifts per word.
        unsafe { core::mem::transmute::<Self, [u32; 4]>(*self) }
    }

    /// Whether this is an IPv4 address.
    #[inline(always)]
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        let words = self.as_words();
        words[0] | words[1] | (words[2] ^ 0xffff_u32.to_be()) == 0
    }

    /// Whether this is [`Self::NONE`].
    #[inline(always)]
    #[must_use]
    pub const fn is_none(&self) -> bool {
        let words = self.as_words();
        words[0] | words[1] | words[2] | words[3] == 0
    }

    /// Whether both are the same address. It compares words, because a branch per byte is slow.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, other: &Self) -> bool {
        let a = self.as_words();
        let b = other.as_words();
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }

    /// The same address as the standard library's type.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        Ipv6Addr::from_octets(self.bytes).to_canonical()
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        let v6 = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self { bytes: v6.octets() }
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from(IpAddr::V4(ip))
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

/// An address and a TCP port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Endpoint {
    /// The address.
    pub addr: Addr,
    /// The port in network order.
    pub port: u16,
}

impl Endpoint {
    /// The same endpoint as the standard library's type.
    #[must_use]
    pub const fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.addr.ip(), u16::from_be(self.port))
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self {
            addr: address.ip().into(),
            port: address.port().to_be(),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.socket_addr())
    }
}

/// A range of addresses, in a form that is fast to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Prefix {
    /// The range's first address.
    pub addr: Addr,
    /// Has one bits where an address must equal `addr`.
    pub mask: Addr,
}

impl Prefix {
    /// A range that contains no address: `addr` has one bits where the mask has zero bits.
    pub const NONE: Self = Self {
        addr: Addr { bytes: [0xff; 16] },
        mask: Addr::NONE,
    };

    /// Makes the range `network/length`. `length` counts in the family of `network`; address bits
    /// beyond it are ignored.
    #[must_use]
    pub fn new(network: IpAddr, length: u8) -> Self {
        let length = if network.is_ipv4() {
            96 + u32::from(length)
        } else {
            u32::from(length)
        };
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        let first = u128::from_be_bytes(Addr::from(network).bytes) & mask;
        Self {
            addr: Addr {
                bytes: first.to_be_bytes(),
            },
            mask: Addr {
                bytes: mask.to_be_bytes(),
            },
        }
    }

    /// Whether `addr` is in the range.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, addr: &Addr) -> bool {
        let first = self.addr.as_words();
        let mask = self.mask.as_words();
        let words = addr.as_words();
        let differs = ((words[0] & mask[0]) ^ first[0])
            | ((words[1] & mask[1]) ^ first[1])
            | ((words[2] & mask[2]) ^ first[2])
            | ((words[3] & mask[3]) ^ first[3]);
        differs == 0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self::NONE
    }
}

const _: () = assert!(size_of::<Addr>() == 16 && align_of::<Addr>() == 4);
const _: () = assert!(size_of::<Prefix>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Addr {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn an_ipv4_address_is_kept_mapped_and_shown_plain() {
        let ten = addr("10.0.3.7");
        assert_eq!(
            ten.bytes,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 3, 7]
        );
        assert_eq!(ten.ip(), "10.0.3.7".parse::<IpAddr>().unwrap());
        assert!(ten.is_v4() && !addr("fd00::1").is_v4());
    }

    #[test]
    fn words_are_the_bytes_in_their_order() {
        let six = addr("fd00:1:2:3:4:5:6:7");
        assert_eq!(Addr::from_words(six.as_words()), six);
        assert_eq!(
            Addr::from_v4_word(u32::from_ne_bytes([10, 0, 3, 7])),
            addr("10.0.3.7")
        );
    }

    #[test]
    fn a_prefix_contains_its_own_family_only() {
        let vip4 = Prefix::new("198.18.0.0".parse().unwrap(), 15);
        assert!(vip4.contains(&addr("198.18.0.0")) && vip4.contains(&addr("198.19.255.255")));
        assert!(!vip4.contains(&addr("198.20.0.0")) && !vip4.contains(&addr("::198.18.0.1")));
        let vip6 = Prefix::new("fd12:3456::".parse().unwrap(), 64);
        assert!(vip6.contains(&addr("fd12:3456::9")) && !vip6.contains(&addr("fd12:3456:0:1::9")));
        let all4 = Prefix::new("0.0.0.0".parse().unwrap(), 0);
        assert!(all4.contains(&addr("1.2.3.4")) && !all4.contains(&addr("fd00::1")));
    }

    #[test]
    fn no_prefix_contains_nothing() {
        assert!(
            !Prefix::NONE.contains(&Addr::NONE)
                && !Prefix::NONE.contains(&Addr { bytes: [0xff; 16] })
        );
    }
}
