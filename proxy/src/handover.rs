//! How a proxy takes the place of another one on its host without refusing a client, and how a
//! proxy ends.
//!
//! A new proxy asks the one that runs for its sockets ([`Takeover`]), which gives them
//! ([`Giver`]). A proxy that must end before the next one starts leaves the sockets of its clients
//! with the redirector ([`Departure`]).

mod departure;
mod give;
mod take;

pub(crate) use departure::{Departure, LastCall};
pub(crate) use give::Giver;
pub(crate) use take::Takeover;
