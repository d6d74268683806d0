//! A hub whose clock is wrong: it trusts no certificate of the API server then, and its own ones are
//! good on any date.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use culvert_lab::{wait, workspace};

use super::{Answer, Hub, with_hub};
use crate::cluster::DEADLINE;

const NAMESPACES: &str = "/api/v1/namespaces";
const YEAR: i64 = 365 * 24 * 3600;

#[test]
fn a_hub_whose_clock_is_wrong_by_decades_serves_what_it_remembers() {
    with_hub(&[], |_, hub| clocks(hub));
}

fn clocks(hub: &Hub) -> Result<()> {
    let mut running = hub.start(0)?;
    wait::until("the API server answers by the hub", DEADLINE, || {
        let answer = hub.ask(NAMESPACES)?;
        ensure!(!answer.is_local, "it is local");
        Ok(())
    })?;
    let names = hub.ask(NAMESPACES)?.names;
    ensure!(!names.is_empty(), "the list is empty");
    running.terminate(DEADLINE)?;

    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let since_1970 = i64::try_from(now)?;
    for skew in [YEAR / 12 - since_1970, 50 * YEAR] {
        let mut running = hub.start(skew)?;
        let expected = Answer {
            is_local: true,
            names: names.clone(),
        };
        wait::until("the hub answers", DEADLINE, || {
            let answer = hub.ask(NAMESPACES)?;
            ensure!(answer == expected, "{answer:?}");
            Ok(())
        })?;
        wait::until("status names the certificate", DEADLINE, || {
            let said = workspace::output(&mut hub.command("status"))?;
            ensure!(
                said.contains("link: down") && said.contains("certificate"),
                "{said}"
            );
            Ok(())
        })?;
        running.terminate(DEADLINE)?;
    }
    let mut running = hub.start(0)?;
    wait::until("the link is up again", DEADLINE, || {
        let answer = hub.ask(NAMESPACES)?;
        ensure!(!answer.is_local && answer.names == names, "{answer:?}");
        Ok(())
    })?;
    running.terminate(DEADLINE)
}
