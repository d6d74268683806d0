//! `culvert token`: at the first host that answers. All proxies of one site have the same tokens.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::join_command;
use culvert_api::proto::control as proto;
use serde::Serialize;

use super::print_error;
use crate::args::{TokenCommand, TokenCreate};
use crate::control::Control;
use crate::places::{Host, NoAnswer};
use crate::screen::{Screen, span};
use crate::session::{Session, now_seconds};
use crate::table::Table;
use crate::verdict::Verdict;

/// The answer of `list`.
#[derive(Debug, Serialize)]
struct Tokens {
    tokens: Vec<Token>,
}

/// The answer of `create`.
#[derive(Debug, Serialize)]
struct Created {
    node: String,
    /// The command for the node's shell.
    join: String,
    /// Seconds since 1970.
    expires: u64,
}

#[derive(Debug, Serialize)]
struct Token {
    id: String,
    node: String,
    /// `usable`, `used`, `revoked` or `expired`.
    state: String,
    /// Seconds since 1970.
    expires: u64,
}

/// Runs one of the commands.
///
/// # Errors
/// No host has answered, or the proxy refuses.
pub(super) async fn run(session: &Session, command: &TokenCommand) -> Result<()> {
    let answers = session.ask(Duration::ZERO, answering).await;
    let mut first = None;
    for answered in answers {
        match answered.answer {
            Ok(control) => {
                first = Some(control);
                break;
            }
            Err(unanswered) => print_error(&answered.place, &unanswered),
        }
    }
    let Some(control) = first else {
        bail!("no proxy has answered");
    };
    match command {
        TokenCommand::List => list(session, control).await,
        TokenCommand::Create(arguments) => create(session, control, arguments).await,
        TokenCommand::Revoke { id } => revoke(control, id).await,
    }
}

/// A connection with a proxy that answers.
async fn answering(place: &Host) -> Result<Control, NoAnswer> {
    let mut control = Control::connect(place).await?;
    control.list_proxies(proto::ListProxiesRequest {}).await?;
    Ok(control)
}

async fn list(session: &Session, mut control: Control) -> Result<()> {
    let listed = control.list_tokens(proto::ListTokensRequest {}).await;
    let listed = listed.map_err(into_error)?;
    let mut tokens = Vec::new();
    for token in listed.tokens {
        tokens.push(Token {
            id: token.id,
            node: token.node,
            state: token.state,
            expires: token.expires,
        });
    }
    session.print(&Tokens { tokens }, text)
}

fn text(answer: &Tokens, screen: &Screen) -> String {
    let now = now_seconds();
    let mut table = Table::new(&["ID", "NODE", "STATE", "EXPIRES IN"]);
    for token in &answer.tokens {
        let left = match token.expires.saturating_sub(now) {
            0 => "-".to_owned(),
            left => span(left),
        };
        let cells = [
            token.id.clone(),
            token.node.clone(),
            token.state.clone(),
            left,
        ];
        table.row(Verdict::Ok, cells);
    }
    table.text(screen)
}

async fn create(session: &Session, mut control: Control, arguments: &TokenCreate) -> Result<()> {
    let request = proto::CreateTokenRequest {
        node: arguments.node.to_string(),
        addresses: arguments.address.iter().map(IpAddr::to_string).collect(),
        ports: arguments.port.iter().copied().map(u32::from).collect(),
        // Zero asks for the default: a token without lifetime would be of no use.
        lifetime_seconds: arguments
            .lifetime
            .map_or(0, |lifetime| lifetime.as_secs().max(1)),
        token: String::new(),
    };
    let created = control.create_token(request).await.map_err(into_error)?;
    for note in &created.notes {
        eprintln!("# note: {note}");
    }
    let made = Created {
        node: arguments.node.to_string(),
        join: join_command(&created)?,
        expires: created.expires,
    };
    session.print(&made, created_text)
}

fn created_text(made: &Created, _: &Screen) -> String {
    eprintln!(
        "# run this as root on {}, once its user culvert is made (docs/install.md); it works once, \
         for {}:",
        made.node,
        span(made.expires.saturating_sub(now_seconds()))
    );
    format!("{}\n", made.join)
}

async fn revoke(mut control: Control, id: &str) -> Result<()> {
    let request = proto::RevokeTokenRequest { id: id.to_owned() };
    control.revoke_token(request).await.map_err(into_error)?;
    println!("token {id} is revoked");
    Ok(())
}

fn into_error(unanswered: NoAnswer) -> anyhow::Error {
    anyhow::anyhow!(unanswered.text)
}
