//! Places for connections whose peers have not shown who they are yet: few in all, and fewer for each address, so that nobody can
//! take them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places in all: each costs a descriptor and a TLS session.
const PLACES: usize = 512;
/// Places for one address; a site's agents may all come from one.
const PLACES_PER_ADDRESS: usize = 64;

/// The places. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A place, given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    strangers: Strangers,
    address: IpAddr,
}

impl Strangers {
    /// A place for a connection from `address`; `None` if there is none left.
    pub(crate) fn place(&self, address: IpAddr) -> Option<Place> {
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let of_address = taken.entry(address).or_default();
        if all >= PLACES || *of_address >= PLACES_PER_ADDRESS {
            taken.retain(|_, places| *places > 0);
            return None;
        }
        *of_address += 1;
        Some(Place { strangers: self.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.strangers.lock();
        if let Some(places) = taken.get_mut(&self.address) {
            *places -= 1;
            if *places == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_can_take_all_places() {
        let strangers = Strangers::default();
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let greedy: Vec<_> = (0..PLACES).filter_map(|_| strangers.place(address(1))).collect();
        assert_eq!(greedy.len(), PLACES_PER_ADDRESS);
        let others: Vec<_> = (2..=255).filter_map(|last| strangers.place(address(last))).collect();
        assert_eq!(others.len(), 254);
        let rest: Vec<_> = (0..=255).filter_map(|last| strangers.place(IpAddr::from([198, 51, 100, last]))).collect();
        assert_eq!(greedy.len() + others.len() + rest.len(), PLACES);
        drop((greedy, others, rest));
        assert!(strangers.lock().is_empty(), "nothing is kept of those who left");
    }
}
