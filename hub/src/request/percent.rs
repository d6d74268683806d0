//! Percent encoding of paths and queries, as Go's `net/url` decodes it.

/// The path decoded. `None`: it has a bad escape, or is not UTF-8.
pub(super) fn decode_path(path: &str) -> Option<String> {
    decode(path, |byte| byte)
}

/// The parameters of a query, decoded. Pairs that cannot be decoded are left out.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .filter_map(parameter)
}

/// One pair of a query. `None`: it has a bad escape or a semicolon, or is not UTF-8. Go leaves the
/// first two out and keeps the last one.
pub(super) fn parameter(pair: &str) -> Option<(String, String)> {
    if pair.contains(';') {
        return None;
    }
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Some((decode_query(key)?, decode_query(value)?))
}

/// A value as it may stand in a query.
pub(crate) fn encode(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

fn decode_query(text: &str) -> Option<String> {
    decode(text, |byte| if byte == b'+' { b' ' } else { byte })
}

fn decode(text: &str, plain: impl Fn(u8) -> u8) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte => plain(byte),
        });
    }
    String::from_utf8(decoded).ok()
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_value_is_decoded_to_itself() {
        let path = "/api/v1/pods?labelSelector=a in (b,c)&x=ü%2B+;";
        let query = format!("path={}", encode(path));
        let decoded: Vec<_> = parameters(&query).collect();
        assert_eq!(decoded, [("path".to_owned(), path.to_owned())]);
    }
}
