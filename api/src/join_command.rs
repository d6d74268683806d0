//! The command that joins an agent, as it is pasted into a shell.

use crate::PROXY_SERVER_NAME;
use crate::proto::control::CreateTokenResponse;

/// A token without any proxy to dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is of no use without a proxy to dial: see the note above")]
pub struct NoProxy;

/// One line for a shell: `culvert-agent join` with the proxies, the pin of their authority and the
/// token.
///
/// # Errors
/// The proxy knows no address of a proxy.
pub fn join_command(created: &CreateTokenResponse) -> Result<String, NoProxy> {
    if created.proxies.is_empty() {
        return Err(NoProxy);
    }
    let mut words = vec!["culvert-agent".to_owned(), "join".to_owned()];
    for proxy in &created.proxies {
        words.extend(["--proxy".to_owned(), shell_word(proxy)]);
    }
    if created.server_name != PROXY_SERVER_NAME {
        words.extend(["--server-name".to_owned(), shell_word(&created.server_name)]);
    }
    words.extend(["--ca-pin".to_owned(), shell_word(&created.ca_pin)]);
    words.extend(["--token".to_owned(), shell_word(&created.token)]);
    Ok(words.join(" "))
}

/// The text as one word for a shell, quoted where necessary.
#[must_use]
pub fn shell_word(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-' | b'_' | b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(proxies: &[&str], server_name: &str) -> CreateTokenResponse {
        CreateTokenResponse {
            token: "culvert1.aa.bb".into(),
            proxies: proxies.iter().map(|proxy| (*proxy).to_owned()).collect(),
            ca_pin: "sha256:cc".into(),
            server_name: server_name.into(),
            expires: 0,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_join_command_is_one_line_for_a_shell() {
        assert_eq!(
            join_command(&created(
                &["proxy.example:7400", "[fd00::1]:7400"],
                PROXY_SERVER_NAME
            ))
            .unwrap(),
            "culvert-agent join --proxy proxy.example:7400 --proxy '[fd00::1]:7400' --ca-pin \
             sha256:cc --token culvert1.aa.bb"
        );
        let named = join_command(&created(&["10.0.0.1:7400"], "tunnel.example")).unwrap();
        assert!(named.contains(" --server-name tunnel.example "), "{named}");
        assert_eq!(join_command(&created(&[], PROXY_SERVER_NAME)), Err(NoProxy));
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        assert_eq!(shell_word("a'$(b)"), r"'a'\''$(b)'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("/usr/bin/x"), "/usr/bin/x");
    }
}
