//! What each setting of another tunnel means for Culvert, as tables; and what was found.

use culvert_daemon::counted;

use super::kubernetes::Flag;
use super::meaning::{Meaning, Problem};
use super::plan::Plan;

/// What a setting means for Culvert.
pub(super) enum Rule {
    /// Culvert does the same.
    Equal(&'static str),
    /// Culvert has nothing equal, and why.
    NoEqual(&'static str),
    /// The value decides, or becomes part of the plan.
    Apply(fn(Option<&str>, &mut Plan) -> Result<Meaning, String>),
}

/// The rules for the settings of one program or file, by the name of the setting.
pub(super) type Table = &'static [(&'static str, Rule)];

/// What was found, in the order of the input.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) places: Vec<(String, Vec<Line>)>,
}

/// A setting and its meaning.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) setting: String,
    pub(super) meaning: Meaning,
}

impl Report {
    pub(super) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a setting, below the other ones of its place.
    pub(super) fn add(&mut self, place: &str, setting: &str, meaning: Meaning) {
        let line = Line {
            setting: setting.to_owned(),
            meaning,
        };
        match self.places.iter_mut().find(|(known, _)| known == place) {
            Some((_, lines)) => lines.push(line),
            None => self.places.push((place.to_owned(), vec![line])),
        }
    }

    /// Looks a setting up in a table, applies its rule, and adds it. `shown` is its name for
    /// people.
    pub(super) fn look_up(
        &mut self,
        (place, shown): (&str, &str),
        table: Table,
        (name, value): (&str, Option<&str>),
        plan: &mut Plan,
    ) -> Result<(), Problem> {
        let meaning = match table.iter().find(|(known, _)| *known == name) {
            None => Meaning::Unknown,
            Some((_, Rule::Equal(text))) => Meaning::equal(*text),
            Some((_, Rule::NoEqual(text))) => Meaning::no_equal(*text),
            Some((_, Rule::Apply(apply))) => apply(value, plan)
                .map_err(|problem| Problem::new(place, format!("{shown}: {problem}")))?,
        };
        self.add(place, shown, meaning);
        Ok(())
    }

    /// Looks up all flags of a program.
    pub(super) fn look_up_flags(
        &mut self,
        place: &str,
        table: Table,
        flags: &[Flag],
        plan: &mut Plan,
    ) -> Result<(), Problem> {
        for flag in flags {
            let shown = format!("--{}", flag.name);
            let setting = (flag.name.as_str(), flag.value.as_deref());
            self.look_up((place, &shown), table, setting, plan)?;
        }
        Ok(())
    }

    /// How many settings have an equal.
    pub(super) fn summary(&self) -> String {
        let mut equal = 0_u32;
        let mut none = 0_u32;
        let mut unknown = 0_u32;
        for line in self.places.iter().flat_map(|(_, lines)| lines) {
            match line.meaning {
                Meaning::Equal(_) => equal += 1,
                Meaning::NoEqual(_) => none += 1,
                Meaning::Unknown => unknown += 1,
            }
        }
        format!(
            "{}: {equal} with an equal, {none} without, {unknown} unknown",
            counted(equal + none + unknown, "setting", "settings")
        )
    }
}

/// The ports of a list with commas. An entry `A=B` is port A.
pub(super) fn ports(text: &str) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for entry in text.split([',', '\n']) {
        let entry = entry.trim();
        if !entry.is_empty() {
            ports.push(port(entry.split_once('=').map_or(entry, |(left, _)| left))?);
        }
    }
    Ok(ports)
}

/// One port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(port) if port != 0 => Ok(port),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(format!(
                "{shown:?} is not a port: write 1 to 65535, with commas between them"
            ))
        }
    }
}
