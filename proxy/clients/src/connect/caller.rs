//! What a client of the mutual TLS port may ask for, over HTTP/1.1 and HTTP/2 alike.

use std::net::SocketAddr;

use culvert_proxy_core::directory::Destination;
use http::{Method, Request, Response, StatusCode, Uri};

use super::request::BadRequest;
use super::{Connect, discovery};
use crate::http::opened::Opened;
use crate::http::response::{Refusal, text};
use crate::http::{Body, without_user};

/// The page for Prometheus' `http_sd_configs`.
const DISCOVERY: &str = "/sd/prometheus";

/// A client that has shown its certificate.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) connect: Connect,
    pub(super) address: SocketAddr,
}

/// What a request asks for.
pub(super) enum Requested {
    /// A connection.
    Tunnel(Destination),
    /// A page.
    Page(Page),
}

/// A page of an HTTP server.
pub(super) enum Page {
    /// What the HTTP server there answers.
    Of(Destination),
    /// The nodes, as targets with the ports of this query.
    Targets(String),
}

impl Caller {
    /// What a request asks for, or the answer to a bad one.
    pub(super) fn requested<B>(
        &self,
        request: &Request<B>,
    ) -> Result<Requested, Box<Response<Body>>> {
        requested(request).map_err(|bad| {
            self.connect.report_refusal(&self.address, &bad);
            Box::new(Refusal::from(&bad).response())
        })
    }

    /// Opens a connection. Dropping the future cancels the dial.
    pub(super) async fn open(&self, destination: Destination) -> Result<Opened, Refusal> {
        let client = self.address.to_string();
        let opened = self.connect.open(destination, client).await;
        opened.map_err(|unopened| Refusal::from(&unopened))
    }

    /// The nodes, as targets with the ports of a query.
    pub(super) fn targets(&self, query: &str) -> Response<Body> {
        match discovery::targets(&self.connect.router, query) {
            Ok(json) => text(StatusCode::OK, "application/json", json),
            Err(bad) => text(StatusCode::BAD_REQUEST, "text/plain", format!("{bad}\n")),
        }
    }
}

fn requested<B>(request: &Request<B>) -> Result<Requested, BadRequest> {
    let uri = request.uri();
    if request.method() == Method::CONNECT {
        let authority = uri.authority().map(|authority| authority.as_str());
        let destination = authority.unwrap_or_default().parse();
        return destination
            .map(Requested::Tunnel)
            .map_err(BadRequest::Target);
    }
    match uri.scheme_str() {
        Some("http") => destination(uri).map(|to| Requested::Page(Page::Of(to))),
        // Over HTTP/2 a request for this port's own page has this port's scheme.
        None | Some("https") if request.method() == Method::GET && uri.path() == DISCOVERY => {
            let query = uri.query().unwrap_or_default();
            Ok(Requested::Page(Page::Targets(query.to_owned())))
        }
        _ => Err(BadRequest::NotServed(summary(request))),
    }
}

/// What was asked for, without what may be secret: a password, and the query.
fn summary<B>(request: &Request<B>) -> String {
    let uri = request.uri();
    let mut asked = format!("{} ", request.method());
    if let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) {
        asked += &format!("{scheme}://{}", without_user(authority.as_str()));
    }
    asked += uri.path();
    asked.chars().take(100).collect()
}

/// The server that a URI such as `http://edge-1:9100/metrics` names.
fn destination(uri: &Uri) -> Result<Destination, BadRequest> {
    let authority = uri.authority().map(|authority| authority.as_str());
    let authority = without_user(authority.unwrap_or_default());
    let named = if uri.port().is_some() {
        authority.parse()
    } else {
        format!("{authority}:80").parse()
    };
    named.map_err(BadRequest::Target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_without_a_port_means_port_80() {
        let named =
            |uri: &'static str| destination(&Uri::from_static(uri)).map(|to| to.to_string());
        assert_eq!(named("http://edge-1/metrics").unwrap(), "edge-1:80");
        assert_eq!(named("http://[fd00::1]:9100/").unwrap(), "[fd00::1]:9100");
        assert_eq!(named("http://[fd00::1]/").unwrap(), "[fd00::1]:80");
        let with_a_user = "http://user:secret@edge-1:9100/";
        assert_eq!(named(with_a_user).unwrap(), "edge-1:9100");
    }

    #[test]
    fn what_is_not_served_is_told_without_a_password_and_a_query() {
        for (url, told) in [
            (
                "https://user:secret@edge-1/a?key=secret",
                "GET https://edge-1/a",
            ),
            ("/pods?key=secret", "GET /pods"),
        ] {
            let request = Request::get(url).body(()).unwrap();
            let Err(bad) = super::requested(&request) else {
                panic!("{url} is served");
            };
            let bad = bad.to_string();
            assert!(bad.contains(told) && !bad.contains("secret"), "{bad}");
        }
    }
}
