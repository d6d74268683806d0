//! Takes out what looks like a secret. No page and no log of Culvert has any: this is for what others
//! wrote into the same places.

use std::ops::Range;

/// In place of what was taken out.
pub(super) const REMOVED: &str = "[removed]";
/// Headers whose whole value is one.
const HEADERS: [&str; 2] = ["authorization", "cookie"];
/// Ends of names whose value may be short.
const PASSWORDS: [&str; 3] = ["password", "passwd", "passphrase"];
/// Ends of other names.
const OTHERS: [&str; 5] = ["token", "secret", "apikey", "api_key", "api-key"];
/// Schemes of the header `authorization`, wherever they are.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// After a colon or a scheme, what is shorter is a word of a sentence.
const MIN_AFTER_COLON: usize = 8;
/// The same after a blank.
const MIN_AFTER_BLANK: usize = 12;

/// The text without keys, tokens and passwords.
pub(super) fn without_secrets(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut is_in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            is_in_key = true;
            clean += REMOVED;
            clean.push('\n');
        }
        if !is_in_key {
            clean += &of_line(line);
        }
        if line.contains("-----END") {
            is_in_key = false;
        }
    }
    clean
}

fn of_line(line: &str) -> String {
    let line = without_userinfo(line);
    let mut clean = String::with_capacity(line.len());
    let mut rest = line.as_str();
    while let Some(start) = rest.find(is_part) {
        clean += &rest[..start];
        rest = &rest[start..];
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        if is_json_web_token(word) {
            clean += REMOVED;
            continue;
        }
        clean += word;
        if let Some(value) = secret_after(word, rest) {
            clean += &rest[..value.start];
            clean += REMOVED;
            rest = &rest[value.end..];
        }
    }
    clean + rest
}

/// Without the user and password of URLs. A user alone stays, if it is not as long as a token.
fn without_userinfo(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(scheme) = rest.find("://") {
        let start = scheme + "://".len();
        clean += &rest[..start];
        rest = &rest[start..];
        let end = rest.find(ends_authority).unwrap_or(rest.len());
        if let Some(at) = rest[..end].rfind('@')
            && (rest[..at].contains(':') || at >= MIN_AFTER_BLANK)
        {
            clean += REMOVED;
            rest = &rest[at..];
        }
    }
    clean + rest
}

fn ends_authority(letter: char) -> bool {
    letter.is_whitespace() || "/?#\"'<>\\".contains(letter)
}

/// Letters of names, and of tokens with dots between their parts.
fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.')
}

fn is_json_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.matches('.').count() >= 2
}

/// Where in the text after a word the secret is that it names.
fn secret_after(word: &str, text: &str) -> Option<Range<usize>> {
    let name = word.to_ascii_lowercase();
    let ends_with = |names: &[&str]| names.iter().any(|end| name.ends_with(end));
    let is_header = ends_with(&HEADERS);
    let is_password = ends_with(&PASSWORDS);
    let is_scheme = SCHEMES.contains(&name.as_str());
    if !(is_header || is_password || is_scheme || ends_with(&OTHERS)) {
        return None;
    }
    let separator = Separator::of(text)?;
    let value = &text[separator.bytes..];
    let end = match separator.quote {
        Some(quote) => closing(value, quote),
        None if value.starts_with(['{', '[']) => return None,
        None if is_header => value.find(['"', '\'', '\r', '\n', '\\']),
        None => {
            value.find(|letter: char| letter.is_whitespace() || "\"'\\&,;<>{}".contains(letter))
        }
    };
    let value = &value[..end.unwrap_or(value.len())];
    let least = match separator.sign {
        Some('=') => 1,
        Some(_) if is_header || is_password => 1,
        _ if separator.quote.is_some() => 1,
        Some(_) => MIN_AFTER_COLON,
        None if name.starts_with('-') => 1,
        None if is_scheme => MIN_AFTER_COLON,
        None => MIN_AFTER_BLANK,
    };
    let is_literal = separator.quote.is_none() && ["null", "true", "false"].contains(&value);
    if value.len() < least || is_literal {
        return None;
    }
    Some(separator.bytes..separator.bytes + value.len())
}

/// What is between a name and its value.
pub(super) struct Separator {
    pub(super) bytes: usize,
    /// `:` or `=`; `None`: blanks alone.
    pub(super) sign: Option<char>,
    /// The quote that opens the value.
    pub(super) quote: Option<&'static str>,
}

impl Separator {
    pub(super) fn of(text: &str) -> Option<Self> {
        let (_, rest) = without_quote(text);
        let mut rest = rest.trim_start_matches([' ', '\t']);
        let mut sign = None;
        for letter in [':', '='] {
            if let Some(after) = rest.strip_prefix(letter) {
                rest = after;
                sign = Some(letter);
                break;
            }
        }
        let (quote, rest) = without_quote(rest.trim_start_matches([' ', '\t']));
        let bytes = text.len() - rest.len();
        (bytes > 0).then_some(Self { bytes, sign, quote })
    }
}

/// A quote, perhaps one within a string of JSON, and what follows it.
fn without_quote(text: &str) -> (Option<&'static str>, &str) {
    for quote in ["\\\"", "\"", "'"] {
        if let Some(rest) = text.strip_prefix(quote) {
            return (Some(quote), rest);
        }
    }
    (None, text)
}

/// Where the quote is closed.
pub(super) fn closing(value: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (index, letter) in value.char_indices() {
        if !is_escaped && value[index..].starts_with(quote) {
            return Some(index);
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_go_and_the_rest_stays() {
        let text = "first\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n\
            authorization: Bearer abcdefghijklmnop\n\
            join --token v1.0123456789abcdef0123456789.AbCdEfGh next\n\
            jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2lnbmF0dXJl\n\
            ACCESS_TOKEN=abcdefghijklmnop\n\
            token 12 of 30, sha256:0123456789abcdef0123456789abcdef\nlast\n";
        let clean = without_secrets(text);
        for secret in ["MHcCAQEE", "abcdefghijklmnop", "AbCdEfGh", "c2lnbmF0dXJl"] {
            assert!(!clean.contains(secret), "{secret}: {clean}");
        }
        for word in ["first", "last", " next", "token 12 of 30", "sha256:0123"] {
            assert!(clean.contains(word), "{word}: {clean}");
        }
    }

    #[test]
    fn a_secret_goes_however_it_is_written() {
        for text in [
            "proxy http://user:hunter2@10.0.0.1:3128/ x",
            "\"url\": \"postgres://user:hunter2@db/x\"",
            "https://hunter2hunter2@git.example/x",
            "password=hunter2",
            "password = hunter2",
            "password: hunter2",
            "Password : 'hunter2'",
            "DB_PASSWORD=\"hunter2 hunter2\"",
            "--password hunter2 --user u",
            "--admin-token=hunter2",
            "{\"token\": \"hunter2\", \"user\": \"u\"}",
            "{\"token\":\"x\\\"hunter2\"}",
            "{\"message\": \"{\\\"password\\\": \\\"hunter2\\\"}\"}",
            "client_secret='hunter2'",
            "api-key: hunter2hunter2",
            "Authorization: Basic aHVudGVyMg== hunter2",
            "authorization: hunter2",
            "curl -H \"Cookie: a=hunter2; b=hunter2\" x",
            "?access_token=hunter2&user=u",
            "bearer hunter2hunter2",
        ] {
            let clean = without_secrets(text);
            assert!(!clean.contains("hunter2"), "{text}: {clean}");
            assert!(clean.contains(REMOVED), "{text}: {clean}");
        }
    }

    #[test]
    fn what_is_beside_a_secret_stays() {
        for (text, clean) in [
            ("http://u:p@h:1/x y", "http://[removed]@h:1/x y"),
            (
                "{\"token\": \"x\", \"user\": \"u\"}",
                "{\"token\": \"[removed]\", \"user\": \"u\"}",
            ),
            ("--password x --user u", "--password [removed] --user u"),
            ("?token=x&user=u", "?token=[removed]&user=u"),
        ] {
            assert_eq!(without_secrets(text), clean);
        }
    }

    #[test]
    fn a_text_without_secrets_is_the_same() {
        let text = "{\"node\": \"edge-1\", \"vip4\": \"198.18.0.2\"}\nstream ended ü\n\
            ssh://root@cloud-1:22 http://10.0.0.1:80/x@y \"automountServiceAccountToken\": false,\n\
            \"secret\": {\"secretName\": \"x\"} \"password\":\"\",\"user\":\"u\" token: expired\n\
            token\n\"tokens\": 3, tokens=4 the token is used\n";
        assert_eq!(without_secrets(text), text);
    }
}
