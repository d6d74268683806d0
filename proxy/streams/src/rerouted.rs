//! Notices that the address or the name that a client dialled leads to another node now. Its
//! connection would go on with the former one, and clients keep connections by what they dialled:
//! what they read would be another machine's.

use std::future::pending;
use std::pin::Pin;

use culvert_proxy_core::directory::{Destination, Directory};

use crate::route::Route;

/// Completes once the route's address or name is another node's. What leads nowhere, or is an address
/// that may be that of two nodes, cuts no connection: a node that claims it could otherwise end those of
/// others. On the heap, because the task of a connection holds it.
pub(crate) fn rerouted<'a>(
    route: &'a Route,
    directory: &'a Directory,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    match route.destination {
        Destination::Address(_) | Destination::Name(..) => Box::pin(moved(route, directory)),
        Destination::Node(..) => Box::pin(pending()),
    }
}

async fn moved(route: &Route, directory: &Directory) {
    let mut changes = directory.changes();
    loop {
        if let Ok(now) = directory.resolve(&route.destination)
            && now.node != route.target.node
        {
            return;
        }
        if changes.changed().await.is_err() {
            return pending().await;
        }
    }
}
