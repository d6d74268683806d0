//! What a proxy's view for users of a cluster and its clients agree on.

/// The header with the user's bearer token: the API server's proxy for pods removes `Authorization`
/// from what it passes on.
pub const TOKEN_HEADER: &str = "culvert-authorization";
/// The protocol that a connection changes to.
pub const PROTOCOL: &str = "culvert-view";
/// Sessions of one user at one proxy. Each `culvert` has three at most.
pub const USER_SESSIONS: usize = 12;
/// Questions of one user that a proxy answers at once.
pub const USER_CALLS: usize = 6;
/// Connections of one user with nodes, at one proxy.
pub const USER_CONNECTIONS: usize = 32;
