//! Lets aya move the keys and values between user space and the kernel.

use crate::{Config, DestinationKey, DestinationValue, ReservedPorts, SocketDst, Tuple};

// SAFETY: `repr(C)` of integers only, without implicit padding (sizes are asserted), so any bytes
// are a value.
unsafe impl aya::Pod for Config {}
// SAFETY: as above.
unsafe impl aya::Pod for DestinationKey {}
// SAFETY: as above.
unsafe impl aya::Pod for DestinationValue {}
// SAFETY: as above.
unsafe impl aya::Pod for ReservedPorts {}
// SAFETY: as above.
unsafe impl aya::Pod for SocketDst {}
// SAFETY: as above.
unsafe impl aya::Pod for Tuple {}
