//! The identity of one run of a proxy.

use std::fmt;
use std::sync::Arc;

/// Random for each run of a proxy. Agents and other proxies recognise the proxy by it, whatever
/// address led them to it. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(Arc<str>);

impl Instance {
    /// That of a proxy that starts.
    pub fn random() -> Self {
        format!("{:016x}", rand::random::<u64>()).as_str().into()
    }
}

impl From<&str> for Instance {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
