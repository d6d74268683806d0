//! An image as an archive in the OCI image layout (opencontainers/image-spec v1.1), which `ctr
//! images import`, `podman load`, `docker load` and `skopeo` read.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tar::Tar;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Not compressed, because the output of compressors differs between versions.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image of one layer.
pub(super) struct Image {
    pub(super) name: &'static str,
    pub(super) architecture: &'static str,
    pub(super) entrypoint: String,
    pub(super) layer: Vec<u8>,
}

impl Image {
    /// The name that Kubernetes gives the image.
    pub(super) fn reference(&self) -> String {
        format!("{}:{}", self.name, env!("CARGO_PKG_VERSION"))
    }

    /// The archive.
    pub(super) fn archive(&self) -> Vec<u8> {
        let layer = Blob::new(LAYER, self.layer.clone());
        let config = Blob::of_json(CONFIG, &self.config(&layer));
        let manifest = Blob::of_json(
            MANIFEST,
            &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [layer.descriptor()]}),
        );
        let mut entry = manifest.descriptor();
        entry["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        entry["annotations"] = json!({
            // The name for containerd, and the tag for all others.
            "io.containerd.image.name": format!("docker.io/library/{}", self.reference()),
            "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION"),
        });
        let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]});
        let mut tar = Tar::default();
        tar.file(
            "oci-layout",
            0o644,
            json!({"imageLayoutVersion": "1.0.0"}).to_string().into(),
        );
        tar.file("index.json", 0o644, index.to_string().into());
        for blob in [layer, config, manifest] {
            tar.file(&format!("blobs/sha256/{}", blob.digest), 0o644, blob.bytes);
        }
        tar.finish()
    }

    fn config(&self, layer: &Blob) -> Value {
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Entrypoint": [self.entrypoint],
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": {
                    "org.opencontainers.image.title": self.name,
                    "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
                    "org.opencontainers.image.licenses": "Apache-2.0",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
        })
    }
}

/// A part of the archive, named by its content.
struct Blob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let digest = HEXLOWER.encode(&Sha256::digest(&bytes));
        Self {
            media_type,
            digest,
            bytes,
        }
    }

    fn of_json(media_type: &'static str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into())
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": format!("sha256:{}", self.digest), "size": self.bytes.len()})
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn image() -> Image {
        let mut layer = Tar::default();
        layer.file("usr/bin/culvert-agent", 0o755, b"program".to_vec());
        Image {
            name: "culvert-agent",
            architecture: "amd64",
            entrypoint: "/usr/bin/culvert-agent".to_owned(),
            layer: layer.finish(),
        }
    }

    /// The files of an archive, by name.
    fn files(mut archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let text = |field: &[u8]| {
            String::from_utf8_lossy(field)
                .trim_end_matches('\0')
                .to_owned()
        };
        let mut files = BTreeMap::new();
        while archive[0] != 0 {
            let size = usize::from_str_radix(&text(&archive[124..135]), 8).unwrap();
            files.insert(text(&archive[..100]), archive[512..512 + size].to_vec());
            archive = &archive[512 + size.next_multiple_of(512)..];
        }
        files
    }

    #[test]
    fn the_same_program_gives_the_same_bytes() {
        assert!(image().archive() == image().archive());
    }

    #[test]
    fn the_index_leads_to_the_layer_by_digests_of_what_is_there() {
        let files = files(&image().archive());
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"]
                .as_str()
                .unwrap()
                .strip_prefix("sha256:")
                .unwrap()
                .to_owned();
            let bytes = files[&format!("blobs/sha256/{digest}")].clone();
            assert_eq!(HEXLOWER.encode(&Sha256::digest(&bytes)), digest);
            assert_eq!(descriptor["size"], bytes.len());
            bytes
        };
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let manifest = json(&blob(&json(&files["index.json"])["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            manifest["layers"][0]["digest"]
        );
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/culvert-agent");
        assert_eq!(blob(&manifest["layers"][0]), image().layer);
    }
}
