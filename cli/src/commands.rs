//! The commands, a file each. Each makes a value that is the answer in JSON, and a text of it.

mod bundle;
mod check;
mod client;
mod connect;
mod connectivity_test;
mod dashboard;
mod first_proxy;
mod forward;
mod junit;
mod migrate;
mod node;
mod node_list;
mod node_page;
mod nodes;
mod observe;
mod ping;
mod ssh_config;
mod status;
mod streams;
mod token;
mod top;
mod version;
mod why;

use anyhow::{Result, bail};
use culvert_site::answered::Answered;

use crate::args::{Arguments, Command, Question};
use crate::completion;
use crate::hosts::NoAnswer;
use crate::screen::clean;
use crate::session::Session;

/// Runs a command line.
///
/// # Errors
/// Something is wrong, or no host has answered.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments {
        command,
        whom,
        output,
    } = arguments;
    match command {
        Command::Completion { shell } => {
            print!("{}", completion::script(&shell.to_string())?);
            Ok(())
        }
        Command::Migrate(command) => migrate::run(&whom, &command).await,
        Command::Client(command) => client::run(&command, output),
        Command::Version { all: false } => {
            println!("culvert {}", culvert_daemon::BUILD);
            Ok(())
        }
        Command::Version { all: true } => version::run(&Session::start(&whom, output).await?).await,
        Command::Dashboard(dashboard) => {
            let session = Session::start(&whom, output).await?;
            dashboard::run(session, &dashboard).await
        }
        Command::Forward(forward) => {
            forward::run(Session::start(&whom, output).await?, &forward).await
        }
        Command::SshConfig => ssh_config::run(&Session::start(&whom, output).await?, &whom).await,
        Command::Top(top) => top::run(Session::start(&whom, output).await?, &top).await,
        Command::Ask(question) => ask(&Session::start(&whom, output).await?, question).await,
    }
}

async fn ask(session: &Session, question: Question) -> Result<()> {
    match question {
        Question::Status(status) => status::run(session, &status).await,
        Question::Nodes(nodes) => nodes::run(session, &nodes).await,
        Question::Node(node) => node::run(session, &node).await,
        Question::Streams(streams) => streams::run(session, &streams).await,
        Question::Observe(observe) => observe::run(session, &observe).await,
        Question::Bundle(bundle) => bundle::run(session, &bundle).await,
        Question::Connect { destination } => connect::run(session, &destination).await,
        Question::Check(check) => check::run(session, &check).await,
        Question::Why { destination } => why::run(session, &destination).await,
        Question::ConnectivityTest(test) => connectivity_test::run(session, &test).await,
        Question::Ping(ping) => ping::run(session, &ping).await,
        Question::Token(token) => token::run(session, &token).await,
    }
}

/// Says on standard error which hosts have not answered.
///
/// # Errors
/// None has.
fn report_unanswered<T>(answers: &[Answered<T>]) -> Result<()> {
    let mut answered = false;
    for Answered { host, answer } in answers {
        match answer {
            Ok(_) => answered = true,
            Err(unanswered) => print_error(host, unanswered),
        }
    }
    if !answered {
        bail!("no host has answered");
    }
    Ok(())
}

/// Says on standard error that a host has not answered.
fn print_error(host: &str, unanswered: &NoAnswer) {
    eprintln!("# {}: {}", clean(host), clean(&unanswered.text));
    eprintln!("#   fix: {}", unanswered.fix);
}

/// A host that has not answered, as every answer in JSON lists it.
#[derive(Debug, serde::Serialize)]
struct Unheard {
    host: String,
    error: String,
    fix: &'static str,
}

/// All that have not answered.
fn unheard<T>(answers: &[Answered<T>]) -> Vec<Unheard> {
    let mut unheard = Vec::new();
    for Answered { host, answer } in answers {
        if let Err(unanswered) = answer {
            unheard.push(Unheard {
                host: host.clone(),
                error: unanswered.text.clone(),
                fix: unanswered.fix,
            });
        }
    }
    unheard
}
