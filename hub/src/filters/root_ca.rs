//! `ca.crt` of pods as kubelet reads it has the certificate of the local authority too, so that
//! they trust the hub: in the config map `kube-root-ca.crt`, which each namespace has, and in the
//! secrets of service accounts, which older clusters mount.

use data_encoding::BASE64;

use crate::wire::Encoding;
use crate::wire::replace::{self, Edited, json, protobuf};
use crate::wire::split::SplitError;

const CONFIG_MAP: &str = "kube-root-ca.crt";
const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const KEY: &str = "ca.crt";

/// `core.v1.ConfigMap`, `core.v1.Secret`, and an entry of their data.
mod field {
    pub(super) const DATA: u64 = 2;
    pub(super) const SECRET_TYPE: u64 = 3;
    pub(super) const KEY: u64 = 1;
    pub(super) const VALUE: u64 = 2;
}

/// Appends the authority, if this is the config map.
pub(super) fn append_to_config_map(encoding: Encoding, object: &[u8], authority: &str) -> Edited {
    if replace::metadata(encoding, object)?.name != CONFIG_MAP {
        return Ok(None);
    }
    match encoding {
        Encoding::Json => in_json(object, |value| {
            let pem: String = serde_json::from_slice(value).map_err(|_| NOT_PEM)?;
            Ok(appended(&pem, authority).map(|pem| json::string(&pem)))
        }),
        Encoding::Protobuf => in_protobuf(object, authority),
    }
}

/// Appends the authority, if this is a secret of a service account.
pub(super) fn append_to_secret(encoding: Encoding, object: &[u8], authority: &str) -> Edited {
    let is_of_service_account = match encoding {
        Encoding::Json => json::text_member(object, "type")?.as_deref() == Some(SECRET_TYPE),
        Encoding::Protobuf => {
            protobuf::bytes(object, field::SECRET_TYPE)? == Some(SECRET_TYPE.as_bytes())
        }
    };
    if !is_of_service_account {
        return Ok(None);
    }
    match encoding {
        Encoding::Json => in_json(object, |value| {
            let base64: String = serde_json::from_slice(value).map_err(|_| NOT_PEM)?;
            let pem = BASE64.decode(base64.as_bytes()).map_err(|_| NOT_PEM)?;
            let pem = String::from_utf8(pem).map_err(|_| NOT_PEM)?;
            let pem = appended(&pem, authority);
            Ok(pem.map(|pem| json::string(&BASE64.encode(pem.as_bytes()))))
        }),
        Encoding::Protobuf => in_protobuf(object, authority),
    }
}

const NOT_PEM: SplitError = SplitError::Json {
    expected: "certificates",
};

fn in_json(object: &[u8], mut edit: impl FnMut(&[u8]) -> Edited) -> Edited {
    json::member(object, "data", |data| json::member(data, KEY, &mut edit))
}

fn in_protobuf(object: &[u8], authority: &str) -> Edited {
    protobuf::messages(object, field::DATA, |entry| {
        if protobuf::bytes(entry, field::KEY)? != Some(KEY.as_bytes()) {
            return Ok(None);
        }
        protobuf::messages(entry, field::VALUE, |value| {
            let pem = std::str::from_utf8(value).map_err(|_| SplitError::Protobuf {
                expected: "certificates",
            })?;
            Ok(appended(pem, authority).map(String::into_bytes))
        })
    })
}

/// `None`: the authority is there already.
fn appended(pem: &str, authority: &str) -> Option<String> {
    let end = if pem.ends_with('\n') || pem.is_empty() {
        ""
    } else {
        "\n"
    };
    (!pem.contains(authority)).then(|| format!("{pem}{end}{authority}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\nhub\n-----END CERTIFICATE-----\n";
    const CONFIG_MAPS: &[u8] = include_bytes!("../wire/tests/recorded/configmaps.pb");
    const SECRETS: &[u8] = include_bytes!("../wire/tests/recorded/secrets.pb");

    type Append = fn(Encoding, &[u8], &str) -> Edited;

    fn appended_to(append: Append, encoding: Encoding, list: &[u8]) -> Option<Vec<u8>> {
        replace::list(encoding, list, &mut |object| {
            append(encoding, object, AUTHORITY)
        })
        .unwrap()
    }

    #[test]
    fn in_json_all_else_stays_as_it_was() {
        let map = r#"{"items":[{"metadata":{"name":"settings"},"data":{"ca.crt":"not this"}},{"metadata":{"name":"kube-root-ca.crt","namespace":"a"},"data":{"ca.crt":"cluster\n","z":"Gr\u00fc\u00dfe"}}]}"#;
        let new = appended_to(append_to_config_map, Encoding::Json, map.as_bytes()).unwrap();
        let authority = AUTHORITY.replace('\n', "\\n");
        let expected = map.replace(r"cluster\n", &format!(r"cluster\n{authority}"));
        assert_eq!(String::from_utf8(new).unwrap(), expected);

        let secret = r#"{"items":[{"metadata":{"name":"p"},"type":"Opaque","data":{"ca.crt":"bm8="}},{"metadata":{"name":"t"},"data":{"ca.crt":"Y2x1c3Rlcg==","token":"dA=="},"type":"kubernetes.io/service-account-token"}]}"#;
        let new = appended_to(append_to_secret, Encoding::Json, secret.as_bytes()).unwrap();
        let value = BASE64.encode(format!("cluster\n{AUTHORITY}").as_bytes());
        let expected = secret.replace("Y2x1c3Rlcg==", &value);
        assert_eq!(String::from_utf8(new).unwrap(), expected);
    }

    #[test]
    fn in_recorded_protobuf_all_else_stays_as_it_was() {
        for (append, list, name) in [
            (append_to_config_map as Append, CONFIG_MAPS, CONFIG_MAP),
            (append_to_secret, SECRETS, "cart-token"),
        ] {
            let new = appended_to(append, Encoding::Protobuf, list).unwrap();
            let items = |body| {
                crate::wire::tests::split_list(Encoding::Protobuf, body)
                    .unwrap()
                    .0
            };
            let old = items(list);
            let new = items(&new);
            assert_eq!(old.len(), 2);
            for (old, new) in old.iter().zip(&new) {
                if old.metadata.name != name {
                    assert_eq!(old, new);
                    continue;
                }
                // Without the authority it is the old object, except for three lengths.
                let text = AUTHORITY.as_bytes();
                let is_authority = |window: &[u8]| window == text;
                let start = new
                    .bytes
                    .windows(text.len())
                    .position(is_authority)
                    .unwrap();
                let end = b"-----END CERTIFICATE-----\n";
                assert!(new.bytes[..start].ends_with(end));
                let rest = &new.bytes[start + text.len()..];
                assert!(old.bytes.ends_with(rest));
                let old_length = old.bytes.len();
                let added = text.len();
                assert!((old_length + added..=old_length + added + 2).contains(&new.bytes.len()));
            }
        }
    }

    #[test]
    fn what_has_the_authority_stays() {
        let once = appended_to(append_to_config_map, Encoding::Protobuf, CONFIG_MAPS).unwrap();
        assert_eq!(
            appended_to(append_to_config_map, Encoding::Protobuf, &once),
            None
        );
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let object = br#"{"metadata":{"name":"kube-root-ca.crt"},"data":{"ca.crt":7}}"#;
        append_to_config_map(Encoding::Json, object, AUTHORITY).unwrap_err();
    }
}
