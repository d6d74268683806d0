//! Tests the bytes of every key and value: pinned maps outlive the program that created them.

use core::mem::offset_of;
use std::net::SocketAddr;
use std::vec::Vec;

use crate::{Config, DestinationKey, DestinationValue, Endpoint, ReservedPorts, SocketDst, Tuple};

/// The bytes that the kernel compares and stores.
fn bytes<T: Copy>(value: T) -> Vec<u8> {
    // SAFETY: the values have no padding (sizes are asserted beside them), so all their bytes are
    // initialised.
    unsafe { core::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

fn endpoint(text: &str) -> Endpoint {
    text.parse::<SocketAddr>().unwrap().into()
}

const TEN: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 3, 7];

#[test]
fn a_destination_is_address_port_and_zero() {
    let mut expected = TEN.to_vec();
    expected.extend([0x28, 0x0a, 0, 0]);
    assert_eq!(
        bytes(DestinationKey::exact(endpoint("10.0.3.7:10250"))),
        expected
    );
    assert_eq!(bytes(DestinationValue::OFFLINE_VALUE), 1_u32.to_ne_bytes());
}

#[test]
fn a_socket_keeps_address_port_role_and_version() {
    let mut expected = TEN.to_vec();
    expected.extend([0x23, 0x8c, 2, 1]);
    assert_eq!(
        bytes(SocketDst::client(endpoint("10.0.3.7:9100")).accepted()),
        expected
    );
}

#[test]
fn a_tuple_is_source_destination_their_ports_and_the_sequence_number() {
    let src = endpoint("10.0.3.7:4660");
    let dst = endpoint("[fd00::1]:7410");
    let mut expected = TEN.to_vec();
    expected.extend([
        0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x12, 0x34, 0x1c, 0xf2,
    ]);
    expected.extend(0x0102_0304_u32.to_ne_bytes());
    assert_eq!(
        bytes(Tuple {
            src: src.addr,
            dst: dst.addr,
            src_port: src.port,
            dst_port: dst.port,
            isn: 0x0102_0304,
        }),
        expected
    );
}

#[test]
fn the_configuration_keeps_its_offsets() {
    assert_eq!(offset_of!(Config, offline_lease_ns), 0);
    assert_eq!(offset_of!(Config, version), 8);
    assert_eq!(offset_of!(Config, mark), 12);
    assert_eq!(offset_of!(Config, mark_mask), 16);
    assert_eq!(offset_of!(Config, port_count), 20);
    assert_eq!(offset_of!(Config, nftables), 22);
    assert_eq!(offset_of!(Config, ports), 24);
    assert_eq!(offset_of!(Config, intercept4), 40);
    assert_eq!(offset_of!(Config, intercept6), 56);
    assert_eq!(offset_of!(Config, vip4), 72);
    assert_eq!(offset_of!(Config, vip6), 104);
}

#[test]
fn reserved_ports_are_their_owner_and_the_ports() {
    let mut reserved = ReservedPorts {
        owner: 0x0102_0304,
        ..ReservedPorts::default()
    };
    reserved.ports[0] = 7410_u16.to_be();
    let mut expected = 0x0102_0304_u32.to_ne_bytes().to_vec();
    expected.extend([0x1c, 0xf2]);
    expected.extend([0; 14]);
    assert_eq!(bytes(reserved), expected);
}
