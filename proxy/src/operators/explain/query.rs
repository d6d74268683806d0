//! What an operator may ask about: anything that a client could dial, with or without a port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::directory::{Destination, ResolveError};

/// Stands for any port; nobody can dial it.
const ANY_PORT: u16 = 0;

/// A destination, perhaps without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query(Destination);

impl Query {
    /// The destination; its port means nothing if [`Self::port`] is `None`.
    pub(crate) fn destination(&self) -> &Destination {
        &self.0
    }

    /// The port that was asked about.
    pub(crate) fn port(&self) -> Option<u16> {
        let port = match &self.0 {
            Destination::Address(address) => address.port(),
            Destination::Name(_, port) => *port,
        };
        (port != ANY_PORT).then_some(port)
    }

    /// The address that was asked about; `None` for a name.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.0 {
            Destination::Address(address) => Some(address.ip()),
            Destination::Name(..) => None,
        }
    }
}

impl FromStr for Query {
    type Err = ResolveError;

    fn from_str(text: &str) -> Result<Self, ResolveError> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        let canonical = |ip: IpAddr, port| {
            Self(Destination::Address(SocketAddr::new(
                ip.to_canonical(),
                port,
            )))
        };
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(canonical(ip, ANY_PORT));
        }
        if text.contains(':') {
            return Ok(match text.parse()? {
                Destination::Address(address) => canonical(address.ip(), address.port()),
                name @ Destination::Name(..) => Self(name),
            });
        }
        // Read with some port, so that a name is judged as everywhere.
        match format!("{text}:1").parse()? {
            Destination::Name(name, _) => Ok(Self(Destination::Name(name, ANY_PORT))),
            Destination::Address(address) => Ok(canonical(address.ip(), ANY_PORT)),
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.port()) {
            (destination, Some(_)) => destination.fmt(f),
            (Destination::Address(address), None) => write!(f, "{}, any port", address.ip()),
            (Destination::Name(name, _), None) => write!(f, "{name}, any port"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_left_out() {
        for (text, shown, port) in [
            ("10.0.3.7:9100", "10.0.3.7:9100", Some(9100)),
            ("10.0.3.7", "10.0.3.7, any port", None),
            ("::ffff:10.0.3.7", "10.0.3.7, any port", None),
            ("[fd00::7]:80", "[fd00::7]:80", Some(80)),
            ("[fd00::7]", "fd00::7, any port", None),
            ("fd00::7", "fd00::7, any port", None),
            (
                "edge-1.edge.internal.",
                "edge-1.edge.internal., any port",
                None,
            ),
            ("edge-1:22", "edge-1:22", Some(22)),
        ] {
            let query: Query = text.parse().unwrap();
            assert_eq!(
                (query.to_string().as_str(), query.port()),
                (shown, port),
                "{text}"
            );
        }
        for bad in ["", "edge-1:", "edge-1:0", "a b", "10.0.3.7:99999"] {
            assert!(bad.parse::<Query>().is_err(), "{bad:?}");
        }
    }
}
