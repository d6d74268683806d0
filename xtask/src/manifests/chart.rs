//! The Helm chart `deploy/chart/culvert`. Most of its templates are written by hand. Those that
//! would be a copy of another file of `deploy` are made of it here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use culvert_lab::go_program::GoProgram;
use culvert_lab::monitoring::DASHBOARDS;
use culvert_lab::workspace;

use super::{alerts, read};

/// A template that has the objects of files of `deploy`.
struct Template {
    name: &'static str,
    sources: &'static [&'static str],
    /// The value without which the release has none of them.
    value: Option<&'static str>,
}

const TEMPLATES: [Template; 3] = [
    Template {
        name: "rbac.yaml",
        sources: &["cloud/rbac.yaml"],
        value: None,
    },
    Template {
        name: "agent-service-rbac.yaml",
        sources: &["components/nodeport/rbac.yaml"],
        value: Some(".Values.agentService.type"),
    },
    Template {
        name: "name-service.yaml",
        sources: &[
            "components/name-service/service.yaml",
            "components/name-service/rbac.yaml",
        ],
        value: Some(".Values.nameService"),
    },
];

/// The labels of an object, and what the chart gives it instead.
const LABELS: &str = "  labels:
    app.kubernetes.io/name: culvert-proxy
    app.kubernetes.io/part-of: culvert
";
const RELEASE_LABELS: &str = "  labels: {{- include \"culvert.labels\" (dict \"root\" $ \"name\" \"culvert-proxy\") | nindent 4 }}
";

/// The folder of the chart.
pub fn folder() -> PathBuf {
    workspace::root().join("deploy/chart/culvert")
}

/// Helm, which keeps its own files below `home`.
pub fn helm(home: &Path) -> Command {
    let mut helm = Command::new(GoProgram::Helm.path());
    helm.env("HOME", home);
    for (key, _) in std::env::vars_os() {
        // Settings of the user, such as plug-ins or another namespace.
        if ["HELM_", "XDG_"]
            .iter()
            .any(|prefix| key.to_string_lossy().starts_with(prefix))
        {
            helm.env_remove(key);
        }
    }
    helm
}

/// Files of the chart that are made of others, each with its text.
///
/// # Errors
/// A file that one is made of cannot be read.
pub fn made() -> Result<Vec<(PathBuf, String)>> {
    let mut made = vec![(folder().join("rules.yaml"), alerts()?)];
    for name in DASHBOARDS {
        let copy = folder().join("dashboards").join(name);
        made.push((copy, read(&format!("monitoring/{name}"))?));
    }
    for template in TEMPLATES {
        let path = folder().join("templates").join(template.name);
        made.push((path, template.text()?));
    }
    Ok(made)
}

impl Template {
    fn text(&self) -> Result<String> {
        let objects = self
            .sources
            .iter()
            .map(|source| read(source))
            .collect::<Result<Vec<_>>>()?;
        let objects = objects
            .join("---\n")
            .replace(
                "namespace: culvert-system\n",
                "namespace: {{ .Release.Namespace }}\n",
            )
            .replace(LABELS, RELEASE_LABELS);
        let sources = self.sources.join(" and ");
        let head = format!("{{{{- /* Made of {sources} by `cargo xtask manifests`. */ -}}}}\n");
        Ok(match self.value {
            Some(value) => format!("{head}{{{{- if {value} }}}}\n{objects}{{{{- end }}}}\n"),
            None => head + &objects,
        })
    }
}
