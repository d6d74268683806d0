//! `culvert migrate`: reads the settings of another tunnel, and prints what of Culvert is equal.
//!
//! The output is a kustomization. Its comments have each setting that was found: its equal, or why
//! it has none. Nothing that might be a secret is printed: no value of a setting without an equal.
#![forbid(unsafe_code)]

mod api_server;
mod dry_run;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod konnectivity;
mod kubernetes;
mod meaning;
mod objects;
mod page;
mod plan;
mod rules;
mod source;
mod superedge;
mod workload;
mod yurttunnel;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

pub use api_server::ApiServer;
use meaning::Problem;
use objects::Lookup;
use plan::Plan;
use rules::Report;
use source::{PlacedPiece, read_file};

/// Reads the manifests of another tunnel, or its objects in the cluster, and prints the equal
/// kustomization of Culvert. Comments name each setting with its equal, or the reason why it has
/// none. Changes nothing.
#[derive(Args, Clone, Debug)]
pub struct MigrateCommand {
    /// The tunnel that there was before.
    #[arg(long, value_enum, value_name = "TUNNEL")]
    from: Tunnel,

    /// Its files: manifests (YAML or JSON), SuperEdge's TOML and token files, an egress-selector
    /// file. Without any, the objects are read from the cluster.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The folder deploy/ of Culvert's source, as seen from the folder of the kustomization.
    #[arg(long, value_name = "DIR", default_value = "../deploy")]
    deploy: String,

    /// Send the printed manifests to the API server, which checks them and changes nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A tunnel whose settings can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    #[value(name = "yurttunnel")]
    Yurt,
    #[value(name = "superedge")]
    SuperEdge,
    Konnectivity,
}

impl MigrateCommand {
    /// Whether it needs the API server: without files to read the objects, or for a dry run.
    #[must_use]
    pub fn asks_cluster(&self) -> bool {
        self.files.is_empty() || self.dry_run
    }

    /// Prints the kustomization, and how many settings have an equal.
    ///
    /// # Errors
    /// Something cannot be read, or has no meaning; or the API server refuses it.
    pub async fn run(&self, cluster: Option<&ApiServer>) -> Result<()> {
        let found = match cluster {
            Some(cluster) if self.files.is_empty() => self.from.read_cluster(cluster).await?,
            Some(_) | None => self.read_files()?,
        };
        let (plan, report) = self.from.translate(&found)?;
        print!("{}", page::page(self.from, &plan, &report, &self.deploy));
        eprintln!("# {}", report.summary());
        match cluster {
            Some(cluster) if self.dry_run => dry_run::send(cluster, &plan).await,
            Some(_) | None => Ok(()),
        }
    }

    fn read_files(&self) -> Result<Vec<PlacedPiece>, Problem> {
        let mut found = Vec::new();
        for file in &self.files {
            found.extend(read_file(file)?);
        }
        Ok(found)
    }
}

impl Tunnel {
    const fn name(self) -> &'static str {
        match self {
            Self::Yurt => "YurtTunnel",
            Self::SuperEdge => "SuperEdge",
            Self::Konnectivity => "konnectivity",
        }
    }

    /// As in `--from`.
    const fn flag_value(self) -> &'static str {
        match self {
            Self::Yurt => "yurttunnel",
            Self::SuperEdge => "superedge",
            Self::Konnectivity => "konnectivity",
        }
    }

    const fn objects(self) -> &'static [Lookup] {
        match self {
            Self::Yurt => yurttunnel::OBJECTS,
            Self::SuperEdge => superedge::OBJECTS,
            Self::Konnectivity => konnectivity::OBJECTS,
        }
    }

    async fn read_cluster(self, cluster: &ApiServer) -> Result<Vec<PlacedPiece>> {
        let objects = objects::read(cluster, self.objects())
            .await
            .with_context(|| format!("read the objects of {}", self.name()))?;
        let looked: Vec<String> = self.objects().iter().map(ToString::to_string).collect();
        ensure!(
            !objects.is_empty(),
            "the cluster has nothing of {}: there is none of {}. If they have other names, give \
             their manifests as files",
            self.name(),
            looked.join(", ")
        );
        Ok(objects.into_iter().map(PlacedPiece::object).collect())
    }

    /// What is equal to all that was found.
    fn translate(self, found: &[PlacedPiece]) -> Result<(Plan, Report), Problem> {
        let mut plan = Plan::default();
        let mut report = Report::default();
        let translate = match self {
            Self::Yurt => yurttunnel::translate,
            Self::SuperEdge => superedge::translate,
            Self::Konnectivity => konnectivity::translate,
        };
        for found in found {
            translate(found, &mut plan, &mut report)?;
        }
        if report.is_empty() {
            return Err(Problem::new(
                "the given files",
                format!(
                    "nothing of {} is in them: give the manifests of its server and agent, or \
                     another --from",
                    self.name()
                ),
            ));
        }
        plan.check()?;
        Ok((plan, report))
    }
}

#[cfg(test)]
mod tests;
