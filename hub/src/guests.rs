//! Connections without the node's certificate: any process of the host can open them to the kubelet
//! port, and any pod to a pod port. Their number is limited. When it is reached, a new connection
//! displaces the oldest one of the address that has most, so that kubelet and every pod always find
//! their port open.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Connections that have not begun TLS. A client begins at once, so few are enough, and one that says
/// nothing cannot displace one that does.
pub(crate) const MAX_SILENT: usize = 16;
/// Connections that have begun TLS, and have not shown a valid token yet.
pub(crate) const MAX_UNKNOWN: usize = 40;
/// Connections that have shown a token that the API server accepts. A client over HTTP/2 has one, and
/// another one for its leader election: two for each of 110 pods, and some for programs of the host.
pub(crate) const MAX_KNOWN: usize = 256;
/// Connections that carry an upgrade, such as exec and port-forward, which may be silent for hours.
pub(crate) const MAX_UPGRADED: usize = 16;

/// The places, of all ports together. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests(Arc<Mutex<Places>>);

/// Connections by number, the oldest first.
type Connections = BTreeMap<u64, Placed>;

#[derive(Debug, Default)]
struct Places {
    next: u64,
    silent: Connections,
    unknown: Connections,
    known: Connections,
    upgraded: Connections,
}

#[derive(Debug)]
struct Placed {
    address: IpAddr,
    end: CancellationToken,
}

/// A connection, with its place. Dropping it frees that.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Guests,
    number: u64,
    end: CancellationToken,
}

impl Guests {
    /// Adds a connection that has shown nothing yet.
    pub(super) fn enter(&self, address: IpAddr) -> Guest {
        let end = CancellationToken::new();
        let mut places = self.0.lock();
        places.next += 1;
        let number = places.next;
        let placed = Placed {
            address,
            end: end.clone(),
        };
        insert(&mut places.silent, number, placed, MAX_SILENT);
        drop(places);
        Guest {
            guests: self.clone(),
            number,
            end,
        }
    }
}

impl Guest {
    /// Its client has begun TLS.
    pub(super) fn has_begun(&self) {
        let mut places = self.guests.0.lock();
        if let Some(placed) = places.silent.remove(&self.number) {
            insert(&mut places.unknown, self.number, placed, MAX_UNKNOWN);
        }
    }

    /// The API server has accepted its token.
    pub(crate) fn is_known(&self) {
        let mut places = self.guests.0.lock();
        if let Some(placed) = places.unknown.remove(&self.number) {
            insert(&mut places.known, self.number, placed, MAX_KNOWN);
        }
    }

    /// It carries an upgrade from now on.
    pub(crate) fn is_upgraded(&self) {
        let mut places = self.guests.0.lock();
        let mut placed = places.unknown.remove(&self.number);
        if placed.is_none() {
            placed = places.known.remove(&self.number);
        }
        if let Some(placed) = placed {
            insert(&mut places.upgraded, self.number, placed, MAX_UPGRADED);
        }
    }

    /// It has shown the node's certificate, and needs no place.
    pub(super) fn is_node(&self) {
        let mut places = self.guests.0.lock();
        places.silent.remove(&self.number);
        places.unknown.remove(&self.number);
        places.known.remove(&self.number);
        places.upgraded.remove(&self.number);
    }

    /// Waits until another connection has displaced it.
    pub(crate) async fn displaced(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_node();
    }
}

fn insert(places: &mut Connections, number: u64, placed: Placed, most: usize) {
    places.insert(number, placed);
    if places.len() > most
        && let Some(number) = oldest_of_most(places)
        && let Some(displaced) = places.remove(&number)
    {
        displaced.end.cancel();
    }
}

/// The oldest connection of the address that has most of them.
fn oldest_of_most(places: &Connections) -> Option<u64> {
    let mut by_address = BTreeMap::<IpAddr, (usize, u64)>::new();
    for (number, placed) in places {
        let (count, _oldest) = by_address.entry(placed.address).or_insert((0, *number));
        *count += 1;
    }
    let (_, oldest) = by_address.into_values().max_by_key(|(count, _)| *count)?;
    Some(oldest)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A connection that has begun TLS.
    fn begun(guests: &Guests, address: IpAddr) -> Guest {
        let guest = guests.enter(address);
        guest.has_begun();
        guest
    }

    #[test]
    fn silent_connections_displace_silent_ones_only() {
        let guests = Guests::default();
        let kubelet = begun(&guests, HOST);
        let mut silent = Vec::new();
        for _ in 0..=MAX_SILENT {
            silent.push(guests.enter(HOST));
        }
        assert!(silent[0].end.is_cancelled() && !silent[1].end.is_cancelled());
        assert!(!kubelet.end.is_cancelled());
    }

    #[test]
    fn the_address_with_most_places_gives_way() {
        let guests = Guests::default();
        let pod = |last| IpAddr::V4(Ipv4Addr::new(10, 244, 0, last));
        let quiet = begun(&guests, pod(1));
        let mut flood = Vec::new();
        for number in 0..2 * MAX_UNKNOWN {
            flood.push(begun(&guests, pod(2 + u8::try_from(number % 16).unwrap())));
        }
        assert!(!quiet.end.is_cancelled());
        let ended = flood.iter().filter(|guest| guest.end.is_cancelled());
        assert_eq!(ended.count(), MAX_UNKNOWN + 1);
        assert!(!flood[2 * MAX_UNKNOWN - 1].end.is_cancelled());
    }

    #[test]
    fn a_node_full_of_pods_with_two_connections_each_ends_none() {
        let guests = Guests::default();
        let mut placed = Vec::new();
        for number in 0..220 {
            let guest = begun(&guests, IpAddr::V4(Ipv4Addr::new(10, 244, 0, number / 2)));
            guest.is_known();
            placed.push(guest);
        }
        for _ in 0..20 {
            placed.push(begun(&guests, HOST));
            placed[placed.len() - 1].is_known();
        }
        assert!(placed.iter().all(|guest| !guest.end.is_cancelled()));
    }

    #[test]
    fn beyond_their_number_the_oldest_connection_with_a_token_gives_way() {
        let guests = Guests::default();
        let mut placed = Vec::new();
        for _ in 0..=MAX_KNOWN {
            placed.push(begun(&guests, HOST));
            placed[placed.len() - 1].is_known();
        }
        let ended: Vec<_> = placed.iter().map(|it| it.end.is_cancelled()).collect();
        assert!(ended[0] && !ended[1..].contains(&true));
    }

    #[test]
    fn an_upgrade_of_the_address_with_most_of_them_gives_way_and_no_other_connection() {
        let guests = Guests::default();
        let pod = |last| IpAddr::V4(Ipv4Addr::new(10, 244, 0, last));
        let known = begun(&guests, pod(1));
        known.is_known();
        let quiet = begun(&guests, pod(2));
        quiet.is_upgraded();
        let mut greedy = Vec::new();
        for _ in 0..MAX_UPGRADED {
            greedy.push(begun(&guests, pod(1)));
            greedy[greedy.len() - 1].is_upgraded();
        }
        assert!(greedy[0].end.is_cancelled() && !greedy[1].end.is_cancelled());
        assert!(!quiet.end.is_cancelled() && !known.end.is_cancelled());
        drop((known, quiet, greedy));
        assert!(guests.0.lock().upgraded.is_empty());
    }

    #[test]
    fn the_oldest_stranger_goes_and_neither_the_node_nor_a_known_client() {
        let guests = Guests::default();
        let node = begun(&guests, HOST);
        let known = begun(&guests, HOST);
        let oldest = begun(&guests, HOST);
        node.is_node();
        known.is_known();
        let mut strangers = Vec::new();
        for _ in 0..MAX_UNKNOWN {
            strangers.push(begun(&guests, HOST));
        }
        assert!(oldest.end.is_cancelled());
        assert!(!strangers[0].end.is_cancelled());
        assert!(!node.end.is_cancelled() && !known.end.is_cancelled());
        drop((node, known, oldest, strangers));
        let places = guests.0.lock();
        assert!(places.unknown.is_empty() && places.known.is_empty());
    }
}
