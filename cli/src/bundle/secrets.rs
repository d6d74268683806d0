//! Takes out what looks like a secret. No page and no log of Culvert has any: this is for what others
//! wrote into the same places.

/// In place of what was taken out.
const REMOVED: &str = "[removed]";
/// Words before a secret, in headers and settings.
const BEFORE: [&str; 8] = [
    "bearer ",
    "basic ",
    "token=",
    "token ",
    "\"token\":\"",
    "password=",
    "secret=",
    "cookie: ",
];
/// What is shorter is a word.
const LEAST_SECRET: usize = 12;

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
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(word) = rest.find(is_part) {
        clean += &rest[..word];
        rest = &rest[word..];
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let word = &rest[..end];
        if is_secret(word, &clean) {
            clean += REMOVED;
        } else {
            clean += word;
        }
        rest = &rest[end..];
    }
    clean + rest
}

/// Letters of tokens: base64, hex, and the dots between parts.
fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '+' | '/' | '_' | '-' | '.' | '=')
}

fn is_secret(word: &str, before: &str) -> bool {
    if word.starts_with("eyJ") && word.matches('.').count() >= 2 {
        return true;
    }
    if word.len() < LEAST_SECRET {
        return false;
    }
    let start = before.len().saturating_sub(16);
    let start = (start..before.len()).find(|index| before.is_char_boundary(*index));
    let before = start
        .map_or("", |start| &before[start..])
        .to_ascii_lowercase();
    BEFORE.iter().any(|word| before.ends_with(word))
        || word.split_once('=').is_some_and(|(name, value)| {
            let name = name.to_ascii_lowercase();
            value.len() >= LEAST_SECRET
                && (name.ends_with("token")
                    || name.ends_with("password")
                    || name.ends_with("secret"))
        })
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
    fn a_text_without_secrets_is_the_same() {
        let text = "{\"node\": \"edge-1\", \"vip4\": \"198.18.0.2\"}\nstream ended ü\n";
        assert_eq!(without_secrets(text), text);
    }
}
