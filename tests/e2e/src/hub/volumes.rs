//! Pods with volumes of all kinds that need no driver, each with what it must see in them. Each has a
//! ConfigMap and a Secret of its own, so that kubelet watches two objects for each.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::NODE;
use super::containers::Container;
use super::pods::{MAIN, object};
use crate::world::{SHOP, World};

/// Where the pods have their volumes.
const MOUNTS: &str = "/etc/app";
/// The first version whose kubelet reads variables from files of volumes by itself.
const ENV_FILES: u32 = 35;

/// A pod, and what it needs.
pub(super) struct Claimant {
    pub(super) name: String,
    pub(super) objects: Vec<Value>,
    sees: Vec<Sight>,
}

/// What its container must see.
enum Sight {
    File(String, String),
    Variable(&'static str, String),
    /// A file with a token.
    Token(String),
}

impl Claimant {
    /// The pod with this number. Its kind of volumes follows from that.
    pub(super) fn make(world: &World, number: usize) -> Result<Self> {
        let mut made = Self::with_own_objects(&format!("hub-volumes-{number}"));
        let minor = world.cluster.minor_version()?;
        match number % 9 {
            0 => made.add_one_key_and_variables("ConfigMap"),
            1 => made.add_one_key_and_variables("Secret"),
            2 => made.add_projection(),
            3 => made.add_downward(),
            4 => made.add_empty(),
            5 => made.add_host_path(&host_folder(world, number)?),
            6 => made.add_claim(&host_folder(world, number)?, "local"),
            7 => made.add_claim(&host_folder(world, number)?, "hostPath"),
            _ if minor >= ENV_FILES => made.add_variable_of_file(),
            _ => made.add_token("vault"),
        }
        Ok(made)
    }

    fn with_own_objects(name: &str) -> Self {
        let mut config = object("ConfigMap", name);
        config["data"] = json!({"word": name});
        let mut secret = object("Secret", name);
        secret["stringData"] = json!({"word": name});
        let mut made = Self {
            name: name.to_owned(),
            objects: vec![sleeping_pod(name), config, secret],
            sees: Vec::new(),
        };
        made.mount("config", json!({"configMap": {"name": name}}));
        made.mount("secret", json!({"secret": {"secretName": name}}));
        for volume in ["config", "secret"] {
            made.sees(volume, "word", name);
        }
        made
    }

    fn pod(&mut self) -> &mut Value {
        &mut self.objects[0]
    }

    fn container(&mut self) -> &mut Value {
        &mut self.pod()["spec"]["containers"][0]
    }

    fn mount(&mut self, name: &str, mut volume: Value) {
        volume["name"] = name.into();
        push(&mut self.pod()["spec"]["volumes"], volume);
        let mount = json!({"name": name, "mountPath": format!("{MOUNTS}/{name}")});
        push(&mut self.container()["volumeMounts"], mount);
    }

    fn sees(&mut self, volume: &str, file: &str, text: &str) {
        let path = format!("{MOUNTS}/{volume}/{file}");
        self.sees.push(Sight::File(path, text.to_owned()));
    }

    /// Kubelet reads what cannot change once, and variables once.
    fn add_one_key_and_variables(&mut self, kind: &str) {
        let own = self.name.clone();
        let name = format!("{own}-once");
        let mut once = object(kind, &name);
        once["immutable"] = true.into();
        let contents = if kind == "Secret" {
            "stringData"
        } else {
            "data"
        };
        once[contents] = json!({"HUB_WORD": name});
        self.objects.push(once);
        let reference = if kind == "Secret" {
            json!({"secretRef": {"name": name}})
        } else {
            json!({"configMapRef": {"name": name}})
        };
        self.container()["envFrom"] = json!([reference]);
        self.sees.push(Sight::Variable("HUB_WORD", name));
        self.add_one_key();
        self.pod()["spec"]["imagePullSecrets"] = json!([{"name": own}]);
    }

    fn add_one_key(&mut self) {
        let path = format!("{MOUNTS}/one");
        let mount = json!({"name": "config", "mountPath": path, "subPath": "word"});
        push(&mut self.container()["volumeMounts"], mount);
        self.sees.push(Sight::File(path, self.name.clone()));
    }

    fn add_projection(&mut self) {
        let name = self.name.clone();
        let item = json!([{"key": "word", "path": "config"}]);
        let sources = json!([
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": name, "items": item}},
            {"secret": {"name": name, "items": [{"key": "word", "path": "secret"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}
        ]);
        self.mount("all", json!({"projected": {"sources": sources}}));
        for file in ["config", "secret", "name"] {
            self.sees("all", file, &name);
        }
        self.sees.push(Sight::Token(format!("{MOUNTS}/all/token")));
    }

    fn add_downward(&mut self) {
        let name = self.name.clone();
        let items = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]);
        self.mount("downward", json!({"downwardAPI": {"items": items}}));
        self.sees("downward", "name", &name);
        let node =
            json!({"name": "HUB_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
        self.container()["env"] = json!([node]);
        self.sees.push(Sight::Variable("HUB_NODE", NODE.to_owned()));
    }

    fn add_empty(&mut self) {
        self.mount("disk", json!({"emptyDir": {}}));
        self.mount("memory", json!({"emptyDir": {"medium": "Memory"}}));
        let script = format!(
            "echo made | tee {MOUNTS}/disk/made > {MOUNTS}/memory/made; exec sleep 1000000"
        );
        self.container()["command"] = json!(["sh", "-c", script]);
        for volume in ["disk", "memory"] {
            self.sees(volume, "made", "made\n");
        }
    }

    fn add_host_path(&mut self, folder: &str) {
        self.mount(
            "host",
            json!({"hostPath": {"path": folder, "type": "Directory"}}),
        );
        self.sees("host", "kept", folder);
    }

    /// A volume that exists already: no provisioner is needed.
    fn add_claim(&mut self, folder: &str, plugin: &str) {
        let name = self.name.clone();
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Mi"}}
        });
        let mut claim = object("PersistentVolumeClaim", &name);
        claim["spec"] = spec;
        self.objects
            .extend([existing_volume(&name, folder, plugin), claim]);
        self.mount(
            "claimed",
            json!({"persistentVolumeClaim": {"claimName": name}}),
        );
        self.sees("claimed", "kept", folder);
    }

    fn add_variable_of_file(&mut self) {
        let name = self.name.clone();
        let volume = json!({"name": "variables", "emptyDir": {}});
        push(&mut self.pod()["spec"]["volumes"], volume);
        let mount = json!([{"name": "variables", "mountPath": "/variables"}]);
        let script = format!("echo \"HUB_WORD='{name}'\" > /variables/env");
        let first = json!({
            "name": "first", "image": "local/busybox:1", "imagePullPolicy": "Never",
            "command": ["sh", "-c", script], "volumeMounts": mount
        });
        self.pod()["spec"]["initContainers"] = json!([first]);
        let reference = json!({"volumeName": "variables", "path": "env", "key": "HUB_WORD"});
        self.container()["env"] =
            json!([{"name": "HUB_WORD", "valueFrom": {"fileKeyRef": reference}}]);
        self.sees.push(Sight::Variable("HUB_WORD", name));
    }

    fn add_token(&mut self, audience: &str) {
        let token = json!({"path": "token", "expirationSeconds": 3600, "audience": audience});
        let sources = json!([{"serviceAccountToken": token}]);
        self.mount("audience", json!({"projected": {"sources": sources}}));
        let path = format!("{MOUNTS}/audience/token");
        self.sees.push(Sight::Token(path));
    }

    /// Whether all of it is there.
    pub(super) fn check(&self, container: &Container) -> Result<()> {
        for sight in &self.sees {
            sight
                .check(container)
                .with_context(|| format!("pod {}", self.name))?;
        }
        Ok(())
    }
}

impl Sight {
    fn check(&self, container: &Container) -> Result<()> {
        match self {
            Self::File(path, text) => {
                let now = container.read(path)?;
                ensure!(now == *text, "{path} has {now:?} instead of {text:?}");
            }
            Self::Variable(name, text) => {
                let now = container.variable(name)?;
                ensure!(now == *text, "{name} is {now:?} instead of {text:?}");
            }
            Self::Token(path) => {
                let parts = container.read(path)?.split('.').count();
                ensure!(parts == 3, "{path} is no JWT");
            }
        }
        Ok(())
    }
}

/// A volume for the claim of this name.
fn existing_volume(name: &str, folder: &str, plugin: &str) -> Value {
    let terms = json!([{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    ]}]);
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": {"hub": "volumes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": SHOP, "name": name, "kind": "PersistentVolumeClaim", "apiVersion": "v1"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}
        }
    });
    volume["spec"][plugin] = json!({"path": folder});
    volume
}

/// A pod of the node that does nothing.
pub(super) fn sleeping_pod(name: &str) -> Value {
    let mut pod = object("Pod", name);
    pod["metadata"]["labels"] = json!({"app": name, "hub": "volumes"});
    pod["spec"] = json!({
        "nodeName": NODE, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
        "volumes": [],
        "containers": [{
            "name": MAIN, "image": "local/busybox:1", "imagePullPolicy": "Never",
            "command": ["sleep", "1000000"], "volumeMounts": []
        }]
    });
    pod
}

/// A folder of the node with a file that says where it is.
fn host_folder(world: &World, number: usize) -> Result<String> {
    let folder = world.file(&format!("hub-host/{number}"));
    let text = folder.display().to_string();
    std::fs::create_dir_all(&folder).with_context(|| format!("create {text}"))?;
    write(&folder.join("kept"), &text)?;
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
