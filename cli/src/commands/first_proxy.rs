//! The proxy that carries out a change. All proxies of one site have the same tokens and nodes, so
//! any of them can.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::proto::control as proto;

use super::print_error;
use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::session::Session;

/// The first host that answers, in the order in which they were named.
///
/// # Errors
/// None does.
pub(super) async fn first_proxy(session: &Session) -> Result<Control> {
    let answers = session.ask(Duration::ZERO, answering).await;
    for answered in answers {
        match answered.answer {
            Ok(control) => return Ok(control),
            Err(unanswered) => print_error(&answered.host, &unanswered),
        }
    }
    bail!("no proxy has answered");
}

/// A connection with a proxy that answers.
async fn answering(host: &Host) -> Result<Control, NoAnswer> {
    let mut control = Control::connect(host).await?;
    control.list_proxies(proto::ListProxiesRequest {}).await?;
    Ok(control)
}

/// What the proxy refuses, in its own words.
pub(super) fn into_error(unanswered: NoAnswer) -> anyhow::Error {
    anyhow::anyhow!(unanswered.text)
}
