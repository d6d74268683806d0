//! How many of something, in words.

use std::fmt::Display;

/// `1 node`, `2 nodes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, several: &str) -> String {
    let noun = if count == N::from(1) { one } else { several };
    format!("{count} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_thing_and_none_and_two_are_several() {
        let proxies = [0, 1, 2].map(|count: usize| counted(count, "proxy", "proxies"));
        assert_eq!(proxies, ["0 proxies", "1 proxy", "2 proxies"]);
    }
}
