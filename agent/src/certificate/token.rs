//! A token that stands for a certificate before there is one.

/// A join token. Never printed.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) String);

impl std::str::FromStr for Token {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.trim().to_owned()))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed() {
        let token: Token = " secret ".parse().expect("any text is a token");
        assert_eq!(
            (format!("{token:?}").as_str(), token.0.as_str()),
            ("Token(..)", "secret")
        );
    }
}
