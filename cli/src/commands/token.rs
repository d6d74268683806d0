//! `culvert token`: at the first host that answers. All proxies of one site have the same tokens.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use culvert_api::proto::control as proto;
use culvert_api::{NodeName, join_command};
use culvert_site::units::now_seconds;
use culvert_site::units::span;
use culvert_site::verdict::Verdict;
use serde::Serialize;

use super::first_proxy::{first_proxy, into_error};
use super::node_list::{self, Listed};
use crate::args::{TokenCommand, TokenCreate};
use crate::control::Control;
use crate::screen::Screen;
use crate::session::Session;
use crate::table::Table;

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

/// The answer of `create --nodes`.
#[derive(Debug, Serialize)]
struct AllCreated {
    tokens: Vec<Created>,
}

/// The answer of `create --nodes --group`.
#[derive(Debug, Serialize)]
struct GroupCreated {
    nodes: usize,
    /// The command for each node's shell.
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
    let control = first_proxy(session).await?;
    match command {
        TokenCommand::List => list(session, control).await,
        TokenCommand::Create(arguments) => create(session, control, arguments).await,
        TokenCommand::Revoke { id } => revoke(control, id).await,
    }
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
    if let Some(node) = &arguments.node {
        create_one(session, &mut control, node, arguments).await?;
    }
    if let Some(file) = &arguments.nodes {
        let nodes = node_list::read(file)?;
        if arguments.group {
            create_group(session, &mut control, &nodes, arguments).await?;
        } else {
            create_each(session, &mut control, &nodes, arguments).await?;
        }
    }
    Ok(())
}

async fn create_one(
    session: &Session,
    control: &mut Control,
    node: &NodeName,
    arguments: &TokenCreate,
) -> Result<()> {
    let request = request(node, &arguments.address, arguments);
    let created = control.create_token(request).await.map_err(into_error)?;
    print_notes(&created, &mut BTreeSet::new());
    let made = Created {
        node: node.to_string(),
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

/// One token for each node of a file. Those that were made before an error are printed too.
async fn create_each(
    session: &Session,
    control: &mut Control,
    nodes: &[Listed],
    arguments: &TokenCreate,
) -> Result<()> {
    let mut noted = BTreeSet::new();
    let mut all = AllCreated { tokens: Vec::new() };
    let mut refused = Ok(());
    for (node, addresses) in nodes {
        let created = control
            .create_token(request(node, addresses, arguments))
            .await;
        let created = match created {
            Ok(created) => created,
            Err(unanswered) => {
                let error = into_error(unanswered);
                refused =
                    Err(error.context(format!("{node}: it and the nodes below it have no token")));
                break;
            }
        };
        print_notes(&created, &mut noted);
        all.tokens.push(Created {
            node: node.to_string(),
            join: join_command(&created)?,
            expires: created.expires,
        });
    }
    session.print(&all, all_created_text)?;
    refused
}

fn all_created_text(all: &AllCreated, _: &Screen) -> String {
    let mut text = String::new();
    for made in &all.tokens {
        text += &format!("{}\t{}\n", made.node, made.join);
    }
    text
}

/// One token for all nodes of a file.
async fn create_group(
    session: &Session,
    control: &mut Control,
    nodes: &[Listed],
    arguments: &TokenCreate,
) -> Result<()> {
    let mut noted = BTreeSet::new();
    let mut token = String::new();
    let mut group = GroupCreated {
        nodes: nodes.len(),
        join: String::new(),
        expires: 0,
    };
    for (node, addresses) in nodes {
        let mut request = request(node, addresses, arguments);
        request.token.clone_from(&token);
        let created = control.create_token(request).await.map_err(into_error);
        let created =
            created.with_context(|| format!("{node}: it and the nodes below it have no token"))?;
        print_notes(&created, &mut noted);
        if token.is_empty() {
            token.clone_from(&created.token);
            group.join = format!("{} --node \"$(hostname)\"", join_command(&created)?);
        }
        group.expires = created.expires;
    }
    session.print(&group, group_text)
}

fn group_text(group: &GroupCreated, _: &Screen) -> String {
    eprintln!(
        "# run this as root on each of the {} nodes, once its user culvert is made \
         (docs/install.md); it works once on each, for {}. In place of \"$(hostname)\" write the \
         node's name where the two differ:",
        group.nodes,
        span(group.expires.saturating_sub(now_seconds()))
    );
    format!("{}\n", group.join)
}

fn request(
    node: &NodeName,
    addresses: &[IpAddr],
    arguments: &TokenCreate,
) -> proto::CreateTokenRequest {
    let lifetime = arguments.lifetime;
    proto::CreateTokenRequest {
        node: node.to_string(),
        addresses: addresses.iter().map(IpAddr::to_string).collect(),
        ports: arguments.port.iter().copied().map(u32::from).collect(),
        // Zero asks for the default: a token without lifetime would be of no use.
        lifetime_seconds: lifetime.map_or(0, |lifetime| lifetime.as_secs().max(1)),
        token: String::new(),
    }
}

/// Each note once.
fn print_notes(created: &proto::CreateTokenResponse, noted: &mut BTreeSet<String>) {
    for note in &created.notes {
        if noted.insert(note.clone()) {
            eprintln!("# note: {note}");
        }
    }
}

async fn revoke(mut control: Control, id: &str) -> Result<()> {
    let request = proto::RevokeTokenRequest { id: id.to_owned() };
    control.revoke_token(request).await.map_err(into_error)?;
    println!("token {id} is revoked");
    Ok(())
}
