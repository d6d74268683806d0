//! One run of the program: whom it asks, and how it prints. Every host is asked at the same time and
//! has a deadline of its own, so that one that is dead or slow is a row and not a wait.

use std::time::Duration;

use anyhow::Result;
use culvert_site::answered::Answered;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout;

use crate::args::{Output, Whom};
use crate::hosts::{Host, Hosts, NoAnswer};
use crate::screen::Screen;

/// The hosts that are asked, and where their answers go.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) hosts: Hosts,
    pub(crate) timeout: Duration,
    pub(crate) output: Output,
    pub(crate) screen: Screen,
}

impl Session {
    /// Finds whom to ask.
    ///
    /// # Errors
    /// There is no host to ask.
    pub(crate) async fn start(whom: &Whom, output: Output) -> Result<Self> {
        Ok(Self {
            hosts: Hosts::find(whom).await?,
            timeout: whom.timeout,
            output,
            screen: Screen::of_output(),
        })
    }

    /// Asks every host with a proxy, for `longer` than the usual time. The answers are in the order
    /// of the hosts.
    pub(crate) async fn ask<'a, T, F>(
        &'a self,
        longer: Duration,
        question: impl Fn(&'a Host) -> F,
    ) -> Vec<Answered<T>>
    where
        F: Future<Output = Result<T, NoAnswer>> + 'a,
    {
        let deadline = self.timeout.saturating_add(longer);
        let mut questions = Vec::new();
        for host in &self.hosts.cloud {
            questions.push(timeout(deadline, question(host)));
        }
        let mut answers = Vec::new();
        for (host, answer) in self.hosts.cloud.iter().zip(join_all(questions).await) {
            answers.push(Answered {
                host: host.name().to_owned(),
                answer: answer.unwrap_or_else(|_| Err(NoAnswer::late(deadline))),
            });
        }
        answers
    }

    /// Prints an answer as JSON, or the text that is made of it.
    pub(crate) fn print<T: Serialize>(
        &self,
        answer: &T,
        text: impl FnOnce(&T, &Screen) -> String,
    ) -> Result<()> {
        match self.output {
            Output::Json => self
                .screen
                .print(&format!("{}\n", serde_json::to_string_pretty(answer)?)),
            Output::Text => self.screen.print(&text(answer, &self.screen)),
        }
    }
}
