//! Percent encoding of paths and queries, as Go's `net/url` decodes it.

/// The path decoded. `None`: it has a bad escape, or is not UTF-8.
pub(super) fn decode_path(path: &str) -> Option<String> {
    String::from_utf8(decode(path, |byte| byte)?).ok()
}

/// The parameters of a query, decoded. As in Go, pairs with a bad escape or a semicolon are left
/// out, and what is not UTF-8 is kept, here with a replacement character.
pub(crate) fn parameters(query: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for pair in query.split('&') {
        if let (false, Some(pair)) = (pair.is_empty(), pair_of(pair)) {
            found.push(
                pair.map(|text| String::from_utf8_lossy(&text).into())
                    .into(),
            );
        }
    }
    found
}

/// One pair of a query. `None`: it has a bad escape or a semicolon, or is not UTF-8.
pub(super) fn parameter(pair: &str) -> Option<(String, String)> {
    let [key, value] = pair_of(pair)?;
    Some((String::from_utf8(key).ok()?, String::from_utf8(value).ok()?))
}

fn pair_of(pair: &str) -> Option<[Vec<u8>; 2]> {
    if pair.contains(';') {
        return None;
    }
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Some([decode_query(key)?, decode_query(value)?])
}

/// A value as it may stand in a query.
pub(crate) fn encode(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

fn decode_query(text: &str) -> Option<Vec<u8>> {
    decode(text, |byte| if byte == b'+' { b' ' } else { byte })
}

fn decode(text: &str, plain: impl Fn(u8) -> u8) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte => plain(byte),
        });
    }
    Some(decoded)
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_as_in_go() {
        let query = "%77atch=tru%65&a+b=c+d&x=%FF&empty&=&b=%zz&c=1;d=2&watch=again";
        let decoded = parameters(query);
        let expected = [
            ("watch", "true"),
            ("a b", "c d"),
            ("x", "\u{fffd}"),
            ("empty", ""),
            ("", ""),
            ("watch", "again"),
        ];
        assert_eq!(decoded, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn an_encoded_value_is_decoded_to_itself() {
        let path = "/api/v1/pods?labelSelector=a in (b,c)&x=ü%2B+;";
        let query = format!("path={}", encode(path));
        let decoded = parameters(&query);
        assert_eq!(decoded, [("path".to_owned(), path.to_owned())]);
    }
}
