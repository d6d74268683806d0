//! Who a client says it is, where nothing verifies it.

use std::fmt;
use std::str::FromStr;

/// The header of a CONNECT request on the proxy's socket that has it.
pub const CLAIMED_USER_HEADER: &str = "culvert-user";
/// Longest name in bytes. Names in RBAC have no limit; real ones are shorter.
const MAX_BYTES: usize = 256;

/// The name of a user as a client gives it. It fits into a line of a header or a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedUser(String);

/// A text that cannot be the name of a user.
#[derive(Debug, thiserror::Error)]
#[error(
    "a user's name has 1 to {MAX_BYTES} bytes, no control characters, and no blanks at its ends"
)]
pub struct InvalidClaimedUser;

impl ClaimedUser {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClaimedUser {
    type Err = InvalidClaimedUser;

    fn from_str(name: &str) -> Result<Self, InvalidClaimedUser> {
        let is_name = (1..=MAX_BYTES).contains(&name.len())
            && name.trim() == name
            && !name.contains(char::is_control);
        if is_name {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidClaimedUser)
        }
    }
}

impl fmt::Display for ClaimedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_into_one_line() {
        for name in [
            "ada",
            "ada@example.org",
            "oidc:https://id.example.org#ada",
            "Ada Lovelace",
            "Örn",
            &"a".repeat(MAX_BYTES),
        ] {
            let claimed: ClaimedUser = name.parse().expect(name);
            assert_eq!(claimed.as_str(), name);
        }
        for other in [
            "",
            " ",
            "ada ",
            "a\nb",
            "a\u{7f}",
            "a\u{85}b",
            &"a".repeat(MAX_BYTES + 1),
        ] {
            assert!(other.parse::<ClaimedUser>().is_err(), "{other:?}");
        }
    }
}
