//! What the kernel programs share with the programs in user space that read their maps: names,
//! keys, values, and the pure decisions.
//!
//! Addresses are always 16 bytes in network order, IPv4 as `::ffff:a.b.c.d`. Ports are in network
//! order too. Layouts belong to the version of the pins ([`names::PIN_ROOT`]): a changed layout
//! needs a new version.
#![no_std]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code, reason = "words of bytes, in one load each")]
mod addr;
mod config;
mod counter;
mod decide;
mod destination;
#[cfg(test)]
#[allow(unsafe_code, reason = "looks at values as bytes")]
mod layout_tests;
mod loopback;
pub mod names;
#[cfg(feature = "user")]
#[allow(unsafe_code, reason = "aya's marker of plain bytes is an unsafe trait")]
mod pod;
mod reserved;
mod socket_dst;

pub use addr::{Addr, Endpoint, Prefix};
pub use config::{Config, MAX_INTERCEPT_PORTS};
pub use counter::Counter;
pub use decide::{Connect, Pass, Reject, Steer, Storage, Verdict, decide, spread};
pub use destination::{DestinationKey, DestinationValue};
pub use loopback::{LOOPBACK, LOOPBACK_CIDR, SocketReach, loopback};
pub use reserved::{Bind, BindVerdict, ReservedPorts};
pub use socket_dst::{Role, SocketDst, Tuple};
