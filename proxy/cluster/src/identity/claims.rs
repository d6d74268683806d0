//! The unverified claims of a service-account token. Any client can write them. They only spare the
//! API server the tokens that it would certainly refuse. Pure.

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{AUDIENCE, AccountError};

/// Real tokens have about 1 KiB.
const MAX_TOKEN_BYTES: usize = 8 << 10;

/// A token that can be an agent's. It is never printed.
#[derive(Clone)]
pub struct AccountToken(String);

impl AccountToken {
    /// The token, for the API server.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// Reads a token that claims to belong to the user `account`.
    pub(super) fn read(text: &str, account: &str) -> Result<Self, AccountError> {
        let claims = claims::<Claims>(text).ok_or(AccountError::Malformed)?;
        if claims.sub != account {
            return Err(AccountError::Account {
                found: short(&claims.sub),
                wanted: account.to_owned(),
            });
        }
        let audiences = claims.aud.into_vec();
        if !audiences.iter().any(|audience| audience == AUDIENCE) {
            return Err(AccountError::Audience {
                found: short(&audiences.join(", ")),
            });
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for AccountToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccountToken(..)")
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    aud: Audiences,
}

/// RFC 7519: one text or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl Audiences {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(audience) => vec![audience],
            Self::Many(audiences) => audiences,
        }
    }
}

#[derive(Deserialize)]
struct Expiry {
    exp: f64,
}

/// Whether a token says that it is for this audience.
pub(crate) fn has_audience(text: &str, audience: &str) -> bool {
    let Some(claims) = claims::<Claims>(text) else {
        return false;
    };
    claims.aud.into_vec().iter().any(|found| found == audience)
}

/// Whether a token says that it expires before this second since 1970.
pub(crate) fn expires_before(text: &str, second: u64) -> bool {
    #[allow(
        clippy::cast_precision_loss,
        reason = "seconds since 1970 are below 2^53"
    )]
    let second = second as f64;
    claims::<Expiry>(text).is_some_and(|expiry| expiry.exp < second)
}

/// The claims of a JWT with a header, claims and a signature.
fn claims<T: DeserializeOwned>(text: &str) -> Option<T> {
    if text.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let parts: Vec<&str> = text.split('.').collect();
    let [header, claims, signature] = parts.as_slice() else {
        return None;
    };
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&part(header)?).ok()?;
    part(signature)?;
    serde_json::from_slice(&part(claims)?).ok()
}

/// The bytes of a part, of which there is at least one.
fn part(text: &str) -> Option<Vec<u8>> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    if bytes.is_empty() { None } else { Some(bytes) }
}

/// A stranger's text, shortened for an error.
fn short(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:culvert-system:culvert-agent";

    fn token(claims: &str) -> String {
        let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
        format!(
            "{}.{}.{}",
            part(r#"{"alg":"RS256"}"#),
            part(claims),
            part("signature")
        )
    }

    fn reason(text: &str) -> &'static str {
        AccountToken::read(text, ACCOUNT).map_or_else(|error| error.reason(), |_| "taken")
    }

    #[test]
    fn an_agents_token_is_worth_a_question_with_one_audience_or_several() {
        for aud in [r#""culvert""#, r#"["culvert"]"#, r#"["other","culvert"]"#] {
            assert_eq!(
                reason(&token(&format!(
                    r#"{{"sub":"{ACCOUNT}","aud":{aud},"exp":1}}"#
                ))),
                "taken",
                "{aud}"
            );
        }
    }

    #[test]
    fn a_token_expires_when_it_says_so_and_not_if_it_does_not() {
        let dated = token(r#"{"exp":100}"#);
        assert!(expires_before(&dated, 101));
        assert!(!expires_before(&dated, 100));
        for other in ["opaque", &token("{}"), &token(r#"{"exp":"100"}"#)] {
            assert!(!expires_before(other, u64::MAX), "{other}");
        }
    }

    #[test]
    fn others_are_refused_without_asking_anybody() {
        let of = |sub: &str, aud: &str| token(&format!(r#"{{"sub":"{sub}","aud":["{aud}"]}}"#));
        assert_eq!(
            reason(&of(
                "system:serviceaccount:culvert-system:default",
                "culvert"
            )),
            "wrong_account"
        );
        assert_eq!(
            reason(&of("system:serviceaccount:other:culvert-agent", "culvert")),
            "wrong_account"
        );
        assert_eq!(
            reason(&of(ACCOUNT, "https://kubernetes.default.svc")),
            "wrong_audience"
        );
        assert_eq!(
            reason(&token(&format!(r#"{{"sub":"{ACCOUNT}","aud":[]}}"#))),
            "wrong_audience"
        );
    }

    #[test]
    fn what_is_no_jwt_is_malformed() {
        let good = token(&format!(r#"{{"sub":"{ACCOUNT}","aud":"culvert"}}"#));
        let huge = format!("{good}{}", "A".repeat(MAX_TOKEN_BYTES));
        let unsigned = format!("{}.", &good[..good.rfind('.').unwrap()]);
        for bad in [
            "",
            "a.b",
            "..",
            "a.b.c",
            "culvert.x.y",
            "é.é.é",
            &huge,
            &unsigned,
            &format!("{good}.x"),
        ] {
            assert_eq!(reason(bad), "malformed_token", "{bad}");
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        let text = token(&format!(r#"{{"sub":"{ACCOUNT}","aud":"culvert"}}"#));
        assert_eq!(
            format!("{:?}", AccountToken::read(&text, ACCOUNT).unwrap()),
            "AccountToken(..)"
        );
    }
}
