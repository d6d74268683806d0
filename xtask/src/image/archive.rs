//! An image for some processors, as an archive in the OCI image layout (opencontainers/image-spec
//! v1.1), which `ctr images import`, `podman load`, `docker load` and `skopeo` read.

use anyhow::Result;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::processor::Processor;
use crate::tar::Tar;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Not compressed, because the output of compressors differs between versions.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image: the same program for each processor.
pub(super) struct Image {
    /// The name of the image and of the program in `/usr/bin`.
    pub(super) name: &'static str,
    pub(super) platforms: Vec<Platform>,
}

/// What an image has for one processor: one layer.
pub(super) struct Platform {
    pub(super) processor: Processor,
    pub(super) layer: Vec<u8>,
}

impl Image {
    /// The name that Kubernetes gives the image.
    pub(super) fn reference(&self) -> String {
        format!("{}:{}", self.name, env!("CARGO_PKG_VERSION"))
    }

    /// The digest by which a registry has the image for all processors, and the archive.
    pub(super) fn archive(&self) -> Result<(String, Vec<u8>)> {
        let mut blobs = Vec::new();
        let mut manifests = Vec::new();
        for platform in &self.platforms {
            let layer = Blob::new(LAYER, platform.layer.clone());
            let config = Blob::of_json(CONFIG, &self.config(platform.processor, &layer));
            let manifest = Blob::of_json(
                MANIFEST,
                &json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [layer.descriptor()]}),
            );
            let mut entry = manifest.descriptor();
            entry["platform"] = json!({"architecture": platform.processor.debian(), "os": "linux"});
            manifests.push(entry);
            blobs.extend([layer, config, manifest]);
        }
        let image = Blob::of_json(INDEX, &index(&manifests));
        let mut entry = image.descriptor();
        entry["annotations"] = json!({
            // The name for containerd, and the tag for all others.
            "io.containerd.image.name": format!("docker.io/library/{}", self.reference()),
            "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION"),
        });
        let digest = format!("sha256:{}", image.digest);
        blobs.push(image);
        let mut tar = Tar::default();
        tar.file(
            "oci-layout",
            0o644,
            json!({"imageLayoutVersion": "1.0.0"}).to_string().into(),
        );
        tar.file("index.json", 0o644, index(&[entry]).to_string().into());
        for blob in blobs {
            tar.file(&format!("blobs/sha256/{}", blob.digest), 0o644, blob.bytes);
        }
        Ok((digest, tar.finish()?))
    }

    fn config(&self, processor: Processor, layer: &Blob) -> Value {
        json!({
            "architecture": processor.debian(),
            "os": "linux",
            "config": {
                "Entrypoint": [format!("/usr/bin/{}", self.name)],
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

fn index(manifests: &[Value]) -> Value {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
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
    use std::io::Read;

    use super::*;

    fn image() -> Image {
        let platform = |processor: Processor| {
            let mut layer = Tar::default();
            let program = processor.name().as_bytes().to_vec();
            layer.file("usr/bin/culvert-agent", 0o755, program);
            Platform {
                processor,
                layer: layer.finish().unwrap(),
            }
        };
        Image {
            name: "culvert-agent",
            platforms: [Processor::X86_64, Processor::Aarch64].map(platform).into(),
        }
    }

    /// The files of an archive, by name.
    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let file = |entry: std::io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (path, bytes)
        };
        archive.entries().unwrap().map(file).collect()
    }

    #[test]
    fn the_same_program_gives_the_same_bytes() {
        assert!(image().archive().unwrap() == image().archive().unwrap());
    }

    #[test]
    fn the_index_leads_to_the_layer_by_digests_of_what_is_there() {
        let (digest, archive) = image().archive().unwrap();
        let files = files(&archive);
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
        let index = json(&files["index.json"]);
        assert_eq!(index["manifests"][0]["digest"], digest);
        let image = json(&blob(&index["manifests"][0]));
        let platforms = self::image().platforms;
        assert_eq!(image["manifests"].as_array().unwrap().len(), 2);
        for (nth, platform) in platforms.into_iter().enumerate() {
            let entry = &image["manifests"][nth];
            assert_eq!(
                entry["platform"]["architecture"],
                platform.processor.debian()
            );
            let manifest = json(&blob(entry));
            let config = json(&blob(&manifest["config"]));
            assert_eq!(
                config["rootfs"]["diff_ids"][0],
                manifest["layers"][0]["digest"]
            );
            assert_eq!(config["architecture"], platform.processor.debian());
            assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/culvert-agent");
            assert_eq!(blob(&manifest["layers"][0]), platform.layer);
        }
    }
}
