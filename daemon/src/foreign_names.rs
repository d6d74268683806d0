//! Which names a request may have for the host that it asks.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Refuses requests with a foreign host name. A web site whose own name leads here (DNS rebinding)
/// could otherwise read the pages with a visitor's browser. Such a name has a dot: node names
/// without one, `localhost` and all addresses are accepted.
pub(crate) async fn refuse_foreign_names(request: Request, next: Next) -> Response {
    if let Some(host) = request.headers().get(header::HOST)
        && !is_ours(host.as_bytes())
    {
        let fix = "ask for this page by address or by a name without a dot\n";
        return (StatusCode::FORBIDDEN, fix).into_response();
    }
    next.run(request).await
}

fn is_ours(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    let host = authority.host();
    !host.contains('.') || host.parse::<IpAddr>().is_ok()
}
