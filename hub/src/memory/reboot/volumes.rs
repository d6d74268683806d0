//! What a claim leads to: its volume, and what kubelet reads to attach and mount that. Numbers of
//! fields are those of `generated.proto` in `k8s.io/api/core/v1`.

use std::collections::BTreeSet;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::needs::first;
use crate::cache::ObjectRef;
use crate::wire::path::{Step, visit};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Object};

const SPEC: Step = Step("spec", 2);
/// `PersistentVolumeSource` is inlined.
const CSI: [Step; 3] = [SPEC, Step("", 2), Step("csi", 22)];
const SECRET_REFS: [Step; 3] = [
    Step("nodeStageSecretRef", 7),
    Step("nodePublishSecretRef", 8),
    Step("nodeExpandSecretRef", 10),
];

/// The volume that a claim is bound to.
pub(super) fn of_claim(
    encoding: Encoding,
    claim: &Object,
) -> Result<Option<ObjectRef>, SplitError> {
    let volume = first(encoding, &claim.bytes, &[SPEC, Step("volumeName", 3)])?;
    let volume = volume.filter(|name| !name.is_empty());
    Ok(volume.map(|name| ObjectRef::new("", "persistentvolumes", "", &name)))
}

/// What kubelet reads to attach and mount a volume of a CSI driver on this node.
pub(super) fn of_volume(
    encoding: Encoding,
    volume: &Object,
    node: Option<&str>,
) -> Result<BTreeSet<ObjectRef>, SplitError> {
    let mut used = BTreeSet::new();
    visit(encoding, &volume.bytes, &CSI, &mut |csi| {
        for reference in SECRET_REFS {
            let name = first(encoding, csi, &[reference, Step("name", 1)])?;
            let namespace = first(encoding, csi, &[reference, Step("namespace", 2)])?;
            if let (Some(name), Some(namespace)) = (name, namespace) {
                used.insert(ObjectRef::new("", "secrets", &namespace, &name));
            }
        }
        let driver = first(encoding, csi, &[Step("driver", 1)])?;
        let handle = first(encoding, csi, &[Step("volumeHandle", 2)])?;
        if let (Some(driver), Some(handle), Some(node)) = (driver, handle, node) {
            used.insert(attachment(&driver, &handle, node));
        }
        Ok(())
    })?;
    Ok(used)
}

/// `getAttachmentName` of `pkg/volume/csi/csi_attacher.go`.
fn attachment(driver: &str, handle: &str, node: &str) -> ObjectRef {
    let digest = Sha256::digest(format!("{handle}{driver}{node}"));
    let name = format!("csi-{}", HEXLOWER.encode(&digest));
    ObjectRef::new("storage.k8s.io", "volumeattachments", "", &name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Metadata;

    fn object(json: &str) -> Object {
        Object {
            metadata: Metadata::default(),
            bytes: json.to_owned().into(),
        }
    }

    #[test]
    fn a_claim_leads_to_its_volume_and_that_to_secrets_and_attachment() {
        let claim = object(r#"{"spec":{"volumeName":"pv-1"}}"#);
        let volume = of_claim(Encoding::Json, &claim).unwrap();
        assert_eq!(
            volume,
            Some(ObjectRef::new("", "persistentvolumes", "", "pv-1"))
        );
        let volume = object(
            r#"{"spec":{"csi":{"driver":"csi.test","volumeHandle":"h","nodeStageSecretRef":{"name":"stage","namespace":"kube-system"}}}}"#,
        );
        let used = of_volume(Encoding::Json, &volume, Some("edge-1")).unwrap();
        // sha256 of "hcsi.testedge-1", as `sha256sum` says.
        let attachment = "csi-c802befc998457b14b90bd51d99b3207734f2c6a6d920cc9e883f89c7a32a6a9";
        let expected = [
            ObjectRef::new("", "secrets", "kube-system", "stage"),
            ObjectRef::new("storage.k8s.io", "volumeattachments", "", attachment),
        ];
        assert_eq!(used, BTreeSet::from(expected));
    }
}
