//! Why an intercept port cannot be bound, and what to do about it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;

/// Tables of sockets, as proc_pid_net(5) has them. Listeners come first.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// Lines of each table that are read.
const MAX_LINES: usize = 4096;
/// Ports below need a capability.
const UNPRIVILEGED: u16 = 1024;

/// What an operator needs to know. `directory_socket` is the flag's path.
pub(super) fn explain(error: &anyhow::Error, port: u16, directory_socket: &Path) -> String {
    let Some(error) = error.root_cause().downcast_ref::<io::Error>() else {
        return "--intercept-listen".to_owned();
    };
    if error.kind() == ErrorKind::AddrInUse {
        let holder = match TABLES.iter().find_map(|table| listening_user(table, port)) {
            Some(user) => format!("a program of user {user} listens on port {port}"),
            None => format!("another program has port {port}"),
        };
        return format!(
            "--intercept-listen: {holder}; `ss -tanp 'sport = :{port}'` names it: end it, or give \
             other ports here and by --intercept-port of the redirector"
        );
    }
    if error.kind() == ErrorKind::PermissionDenied && port >= UNPRIVILEGED {
        return format!(
            "--intercept-listen: the redirector reserves port {port} for root and for the owner of \
             the folder of {}: run the proxy as one of them. A new owner may listen some \
             seconds later",
            directory_socket.display()
        );
    }
    "--intercept-listen".to_owned()
}

/// The user of a listener on this port.
fn listening_user(table: &str, port: u16) -> Option<u32> {
    let lines = BufReader::new(File::open(table).ok()?).lines();
    for line in lines.take(MAX_LINES) {
        if let Some(user) = user_if_listening(&line.ok()?, port) {
            return Some(user);
        }
    }
    None
}

/// Columns: the second is `ADDRESS:PORT` in hexadecimal, the fourth the state, the eighth the user.
fn user_if_listening(line: &str, port: u16) -> Option<u32> {
    const LISTEN: &str = "0A";
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (_, local_port) = columns.get(1)?.rsplit_once(':')?;
    if columns.get(3) != Some(&LISTEN) || u16::from_str_radix(local_port, 16) != Ok(port) {
        return None;
    }
    columns.get(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt;

    use anyhow::Context;

    use super::*;

    const SOCKET: &str = "/run/culvert/directory.sock";

    #[test]
    fn a_taken_port_is_explained_by_the_user_who_has_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = TcpListener::bind(address)
            .context("listen on it")
            .unwrap_err();
        let text = explain(&error, address.port(), Path::new(SOCKET));
        let user = std::fs::metadata("/proc/self").unwrap().uid();
        assert!(text.contains(&format!("user {user} listens")), "{text}");
        assert!(text.contains("ss -tanp"), "{text}");
    }

    #[test]
    fn a_reserved_port_is_explained_by_who_may_have_it() {
        let refused = io::Error::from(ErrorKind::PermissionDenied);
        let text = explain(&refused.into(), 7410, Path::new(SOCKET));
        assert!(text.contains("7410") && text.contains(SOCKET), "{text}");
    }

    #[test]
    fn only_listeners_of_the_port_count() {
        let line = |port: &str, state: &str| {
            format!(
                "   0: 00000000:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 \
                 65534        0 4711 1 0000000000000000 100 0 0 10 0"
            )
        };
        assert_eq!(user_if_listening(&line("1CF2", "0A"), 7410), Some(65_534));
        assert_eq!(user_if_listening(&line("1CF2", "01"), 7410), None);
        assert_eq!(user_if_listening(&line("1CF3", "0A"), 7410), None);
        let header =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        assert_eq!(user_if_listening(header, 7410), None);
    }
}
