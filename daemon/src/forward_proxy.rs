//! The forward proxy that the environment names (`HTTPS_PROXY`), and for which hosts it is not used
//! (`NO_PROXY`).

mod connect;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use culvert_api::{Host, HostPort};
use data_encoding::BASE64;

pub use self::connect::{ConnectAdvice, ConnectFailure, ConnectStatus, connect_through};

/// The port of a forward proxy whose URL has none.
const DEFAULT_PORT: u16 = 80;

/// A forward proxy. Its user and password are in no text but `ForwardProxy::authorization`.
#[derive(Clone, PartialEq, Eq)]
pub struct ForwardProxy {
    /// Where it is.
    pub address: HostPort,
    credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
struct Credentials {
    user: Vec<u8>,
    password: Vec<u8>,
}

/// `HTTPS_PROXY` cannot be used. The text has no part of the value, which has a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "HTTPS_PROXY is not a usable setting: {0}; write http://[USER:PASSWORD@]HOST[:PORT], with @ : / \
     ? # and % of the user and password as %40 %3A %2F %3F %23 %25"
)]
pub struct InvalidForwardProxy(Problem);

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("only proxies that are spoken to in plain HTTP are supported, not https:// or socks")]
    Scheme,
    #[error("a /, ? or # stands before the last @, so the host would begin inside the password")]
    Delimiter,
    #[error("a control character or a blank is in it")]
    Control,
    #[error("after the host and port there is a path")]
    Path,
    #[error("its host is neither a DNS name nor an IP address")]
    Host,
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

impl ForwardProxy {
    /// Reads a URL as curl does, but refuses what curl guesses at.
    ///
    /// # Errors
    /// It is no URL of a proxy that is spoken to in plain HTTP.
    fn parse(text: &str) -> Result<Self, InvalidForwardProxy> {
        parse(text.trim()).map_err(InvalidForwardProxy)
    }

    /// The value of the header `Proxy-Authorization`.
    fn authorization(&self) -> Option<String> {
        let Credentials { user, password } = self.credentials.as_ref()?;
        let both = [user.as_slice(), b":", password].concat();
        Some(format!("Basic {}", BASE64.encode(&both)))
    }

    /// Whether a text from the proxy repeats the user, the password, or both as they are sent.
    fn is_repeated_in(&self, text: &str) -> bool {
        let Some(Credentials { user, password }) = &self.credentials else {
            return false;
        };
        let sent = self.authorization().unwrap_or_default();
        if text.contains(sent.trim_start_matches("Basic ")) {
            return true;
        }
        for secret in [user, password] {
            let secret = String::from_utf8_lossy(secret);
            if !secret.is_empty() && text.contains(secret.as_ref()) {
                return true;
            }
        }
        false
    }
}

impl fmt::Debug for ForwardProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForwardProxy({})", self.address)
    }
}

fn parse(text: &str) -> Result<ForwardProxy, Problem> {
    if text.chars().any(|byte| byte.is_control() || byte == ' ') {
        return Err(Problem::Control);
    }
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some((scheme, _)) if is_scheme(scheme) => return Err(Problem::Scheme),
        Some(_) | None => text,
    };
    let (authority, after) = match rest.find(['/', '?', '#']) {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    if after.contains('@') {
        return Err(Problem::Delimiter);
    }
    // No host has an @ in it, so the last one ends the password.
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    if !["", "/"].contains(&after) {
        return Err(Problem::Path);
    }
    Ok(ForwardProxy {
        address: address(host)?,
        credentials: credentials.map(decode).transpose()?,
    })
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn address(text: &str) -> Result<HostPort, Problem> {
    // The last colon of an IPv6 address is inside its brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let host: Host = host.parse().map_err(|_| Problem::Host)?;
    let port = match port {
        Some(port) => port.parse().map_err(|_| Problem::Port)?,
        None => DEFAULT_PORT,
    };
    if port == 0 {
        return Err(Problem::Port);
    }
    Ok(HostPort { host, port })
}

fn decode(credentials: &str) -> Result<Credentials, Problem> {
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    Ok(Credentials {
        user: percent_decoded(user)?,
        password: percent_decoded(password)?,
    })
}

/// A `%` without two hex digits stays as it is, as in curl.
fn percent_decoded(text: &str) -> Result<Vec<u8>, Problem> {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, length) = match hex(after) {
            Some(byte) if *first == b'%' => (byte, 3),
            Some(_) | None => (*first, 1),
        };
        if byte.is_ascii_control() {
            return Err(Problem::Control);
        }
        decoded.push(byte);
        rest = &rest[length..];
    }
    Ok(decoded)
}

/// The value of two hex digits at the beginning of `text`.
fn hex(text: &[u8]) -> Option<u8> {
    let digits = text.get(..2)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 16).ok()
}

/// The forward proxy of the environment. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ForwardProxies {
    forward: Option<Arc<ForwardProxy>>,
    /// The hosts that are dialled without it.
    exceptions: Arc<NoProxy>,
}

impl ForwardProxies {
    /// Reads `HTTPS_PROXY` and `NO_PROXY`, in lower case too; `variable` looks up an environment
    /// variable.
    ///
    /// # Errors
    /// The forward proxy cannot be used. It is not bypassed then: an operator would not expect
    /// that.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidForwardProxy> {
        let forward = match first_set(&variable, ["HTTPS_PROXY", "https_proxy"]) {
            Some(https) => Some(Arc::new(ForwardProxy::parse(&https)?)),
            None => None,
        };
        let exceptions = first_set(&variable, ["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Ok(Self {
            forward,
            exceptions: Arc::new(NoProxy::parse(&exceptions)),
        })
    }

    /// The forward proxy on the way to a host. `None`: it is dialled directly.
    #[must_use]
    pub fn to(&self, host: &HostPort) -> Option<&Arc<ForwardProxy>> {
        if self.exceptions.excepts(host) {
            return None;
        }
        self.forward.as_ref()
    }
}

/// The value of the first variable that is set and not empty.
fn first_set(variable: impl Fn(&str) -> Option<String>, names: [&str; 2]) -> Option<String> {
    for name in names {
        if let Some(value) = variable(name)
            && !value.is_empty()
        {
            return Some(value);
        }
    }
    None
}

/// The hosts that are dialled without the forward proxy.
#[derive(Clone, Debug, Default)]
struct NoProxy(Vec<Exception>);

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    Range(IpAddr, u32),
    Address(IpAddr, Option<u16>),
    /// A domain: the name itself and those below it.
    Domain(String, Option<u16>),
}

impl NoProxy {
    /// Reads what curl and Go read: `*`, addresses, ranges, and domains with or without a dot or
    /// `*.` before them, with commas or blanks between them. As in Go, a port may follow a host.
    /// An entry that is none of these excepts nothing.
    fn parse(text: &str) -> Self {
        let entries = text.split(|letter: char| letter == ',' || letter.is_whitespace());
        Self(entries.filter_map(exception).collect())
    }

    /// Whether the host is dialled without the forward proxy.
    fn excepts(&self, proxy: &HostPort) -> bool {
        self.0.iter().any(|exception| exception.is_for(proxy))
    }
}

impl Exception {
    fn is_for(&self, proxy: &HostPort) -> bool {
        match (self, &proxy.host) {
            (Self::All, _) => true,
            (Self::Range(first, length), Host::Address(ip)) => is_in(*ip, *first, *length),
            (Self::Address(address, port), Host::Address(ip)) => {
                address == ip && is_same_port(*port, proxy.port)
            }
            (Self::Domain(domain, port), Host::Name(name)) => {
                is_below(name, domain) && is_same_port(*port, proxy.port)
            }
            (Self::Range(..) | Self::Address(..), Host::Name(_))
            | (Self::Domain(..), Host::Address(_)) => false,
        }
    }
}

/// Whether an exception with this port, or for all ports, is for the port that is dialled.
fn is_same_port(excepted: Option<u16>, dialled: u16) -> bool {
    match excepted {
        Some(port) => port == dialled,
        None => true,
    }
}

/// Whether a name is the domain or below it.
fn is_below(name: &str, domain: &str) -> bool {
    match name.strip_suffix(domain) {
        Some(above) => above.is_empty() || above.ends_with('.'),
        None => false,
    }
}

fn exception(entry: &str) -> Option<Exception> {
    if entry == "*" {
        return Some(Exception::All);
    }
    if let Some((first, length)) = entry.split_once('/') {
        let range = Exception::Range(first.parse().ok()?, length.parse().ok()?);
        return Some(range);
    }
    let entry = entry.strip_prefix('*').unwrap_or(entry);
    let entry = entry.strip_prefix('.').unwrap_or(entry);
    let (host, port) = match (entry.parse::<Host>(), entry.parse::<HostPort>()) {
        (Ok(host), _) => (host, None),
        (Err(_), Ok(HostPort { host, port })) => (host, Some(port)),
        (Err(_), Err(_)) => return None,
    };
    Some(match host {
        Host::Address(ip) => Exception::Address(ip, port),
        Host::Name(name) => Exception::Domain(name, port),
    })
}

/// Whether an address has the first `length` bits of another one of its family.
fn is_in(ip: IpAddr, first: IpAddr, length: u32) -> bool {
    let differ = match (ip, first) {
        (IpAddr::V4(ip), IpAddr::V4(first)) => (ip.to_bits() ^ first.to_bits()).leading_zeros(),
        (IpAddr::V6(ip), IpAddr::V6(first)) => (ip.to_bits() ^ first.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    differ >= length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, Option<String>) {
        let proxy = ForwardProxy::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let sent = proxy.authorization().map(|header| {
            let encoded = header.strip_prefix("Basic ").unwrap();
            String::from_utf8(BASE64.decode(encoded.as_bytes()).unwrap()).unwrap()
        });
        (proxy.address.to_string(), sent)
    }

    #[test]
    fn a_forward_proxy_is_read_with_its_user_and_password() {
        for (text, address, sent) in [
            ("http://gate.corp:3128", "gate.corp:3128", None),
            ("HTTP://Gate.Corp:3128/", "gate.corp:3128", None),
            ("gate.corp", "gate.corp:80", None),
            ("http://[2001:db8::1]:3128", "[2001:db8::1]:3128", None),
            ("http://[2001:db8::1]", "[2001:db8::1]:80", None),
            ("http://u:secret@gate:1", "gate:1", Some("u:secret")),
            ("u:secret@gate:1", "gate:1", Some("u:secret")),
            ("http://u@gate:1", "gate:1", Some("u:")),
            ("http://u:p@ss@gate:1", "gate:1", Some("u:p@ss")),
            ("http://u:p:q@gate:1", "gate:1", Some("u:p:q")),
            ("http://u:100%@gate:1", "gate:1", Some("u:100%")),
            ("http://u:%40%3a%2F%5C@gate:1", "gate:1", Some("u:@:/\\")),
            (
                "http://a%40corp:%C3%A4@gate:1",
                "gate:1",
                Some("a@corp:\u{e4}"),
            ),
        ] {
            let expected = (address.to_owned(), sent.map(str::to_owned));
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_byte_of_it_is_told() {
        for text in [
            "https://user:S3cret@gate:443",
            "socks5://user:S3cret@gate:1080",
            "http://user:S3cret#1@gate:3128",
            "http://user:S3cret/1@gate:3128",
            "http://user:S3cret?1@gate:3128",
            "http://user:S3cret@",
            "http://user:S3cret@gate:99999",
            "http://user:S3cret@gate:0",
            "http://user:S3cret",
            "http://user:S3cret@ga te:1",
            "http://user:S3cret%0d%0aX: y@gate:1",
            "http://user:S3cret%0A@gate:1",
            "http://user:S3cret@gate:1/proxy.pac",
            "http:/user:S3cret@gate:1",
            "//user:S3cret@gate:1",
            "\"http://user:S3cret@gate:1\"",
            "http://[::1:S3cret]",
            "http://",
            "",
            "not a url",
        ] {
            let error = ForwardProxy::parse(text).unwrap_err();
            for told in [error.to_string(), format!("{error:?}")] {
                assert!(!told.contains("S3cret"), "{text}: {told}");
                assert!(!told.contains("user:"), "{text}: {told}");
            }
        }
        let proxy = ForwardProxy::parse("http://user:S3cret@gate:1").unwrap();
        assert_eq!(format!("{proxy:?}"), "ForwardProxy(gate:1)");
    }

    #[test]
    fn a_text_that_repeats_a_secret_is_known() {
        let proxy = ForwardProxy::parse("http://user:S3cret@gate:1").unwrap();
        for text in ["no user", "S3cret", "Basic dXNlcjpTM2NyZXQ="] {
            assert!(proxy.is_repeated_in(text), "{text}");
        }
        assert!(!proxy.is_repeated_in("Forbidden"));
        let open = ForwardProxy::parse("http://gate:1").unwrap();
        assert!(!open.is_repeated_in("Forbidden"));
    }

    #[test]
    fn exceptions_are_read_as_curl_and_go_read_them() {
        for (text, host, excepted) in [
            ("*", "far.example:7400", true),
            ("a, *", "far.example:7400", true),
            (".example", "far.example:7400", true),
            ("*.example", "far.example:7400", true),
            ("example.", "far.example:7400", true),
            ("EXAMPLE", "Far.Example.:7400", true),
            ("x far.example", "far.example:7400", true),
            ("far.example:7400", "far.example:7400", true),
            ("far.example:443", "far.example:7400", false),
            ("ar.example", "far.example:7400", false),
            ("near.far.example", "far.example:7400", false),
            ("10.0.0.0/8,2001:db8::/32", "10.1.2.3:7400", true),
            ("10.0.0.0/8,2001:db8::/32", "[2001:db8::1]:7400", true),
            ("10.0.0.0/8", "11.1.2.3:7400", false),
            ("10.1.2.3", "10.1.2.3:7400", true),
            ("10.1.2.3:7400,::1", "[::1]:7400", true),
            ("[::1]:7400", "[::1]:7400", true),
            ("[::1]:1", "[::1]:7400", false),
            ("10.1.2", "10.1.2.3:7400", false),
            ("/8,,?,:", "10.1.2.3:7400", false),
            ("", "far.example:7400", false),
        ] {
            let found = NoProxy::parse(text).excepts(&host.parse().unwrap());
            assert_eq!(found, excepted, "{text:?} {host}");
        }
    }
}
