//! `--flags-page`: the subcommands and flags of a program as a section of docs/flags.md. They come
//! from the command line itself, like its man pages.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// The only argument. It is not in `--help`: it is for `cargo xtask flags`.
const OPTION: &str = "--flags-page";

/// Whether a command line asks for the section, and for nothing else.
pub(crate) fn is_requested(arguments: &[OsString]) -> bool {
    arguments.len() == 2 && arguments[1] == OPTION
}

/// The section of a program.
pub(crate) fn section(program: &Command) -> String {
    let mut section = format!("## {}\n", program.get_name());
    let mut subcommands = Vec::new();
    collect(program, "", &mut subcommands);
    if !subcommands.is_empty() {
        section.push_str("\n| subcommand | what |\n|---|---|\n");
    }
    for (name, command) in &subcommands {
        let usage = usage(name, command);
        section.push_str(&format!("| `{usage}` | {} |\n", about(command)));
    }
    section.push_str("\n| flag | variable | default | what |\n|---|---|---|---|\n");
    for flag in flags(program) {
        section.push_str(&row(flag, ""));
    }
    for (name, command) in &subcommands {
        for flag in flags(command) {
            section.push_str(&row(flag, &format!(" of `{name}`")));
        }
    }
    section
}

/// The subcommands that have none of their own, each with all words of its name.
fn collect<'a>(command: &'a Command, before: &str, found: &mut Vec<(String, &'a Command)>) {
    for inner in command.get_subcommands() {
        if inner.is_hide_set() {
            continue;
        }
        let name = format!("{before}{}", inner.get_name());
        if inner.has_subcommands() {
            collect(inner, &format!("{name} "), found);
        } else {
            found.push((name, inner));
        }
    }
}

/// `token create NODE [--address IP]...`.
fn usage(name: &str, command: &Command) -> String {
    let mut usage = name.to_owned();
    for argument in command.get_positionals() {
        let value = value(argument);
        if argument.is_required_set() {
            usage.push_str(&format!(" {value}"));
        } else {
            usage.push_str(&format!(" [{value}]"));
        }
    }
    for flag in flags(command) {
        usage.push(' ');
        usage.push_str(&flag_usage(flag));
    }
    usage
}

/// `[--address IP]...`.
fn flag_usage(flag: &Arg) -> String {
    let mut usage = format!("--{}", flag.get_long().unwrap_or_default());
    if flag.get_action().takes_values() {
        usage.push_str(&format!(" {}", value(flag)));
    }
    if !flag.is_required_set() {
        usage = format!("[{usage}]");
    }
    if matches!(flag.get_action(), ArgAction::Append) {
        usage.push_str("...");
    }
    usage
}

/// The long flags that `--help` lists.
fn flags(command: &Command) -> Vec<&Arg> {
    let mut flags: Vec<&Arg> = command.get_opts().collect();
    flags.retain(|flag| !flag.is_hide_set() && flag.get_long().is_some());
    flags
}

/// The word that stands for a value.
fn value(argument: &Arg) -> String {
    match argument.get_value_names() {
        Some([name, ..]) => name.to_string(),
        _ => argument.get_id().as_str().to_uppercase(),
    }
}

fn row(flag: &Arg, of: &str) -> String {
    let long = flag.get_long().unwrap_or_default();
    let variable = match flag.get_env() {
        Some(name) => format!("`{}`", name.to_string_lossy()),
        None => String::new(),
    };
    let mut default = String::new();
    for value in flag.get_default_values() {
        let comma = if default.is_empty() { "" } else { ", " };
        default.push_str(&format!("{comma}`{}`", value.to_string_lossy()));
    }
    let help = match flag.get_long_help().or(flag.get_help()) {
        Some(help) => help.to_string(),
        None => String::new(),
    };
    format!(
        "| `--{long}`{of} | {variable} | {default} | {} |\n",
        cell(&help)
    )
}

fn about(command: &Command) -> String {
    match command.get_long_about().or(command.get_about()) {
        Some(about) => cell(&about.to_string()),
        None => String::new(),
    }
}

/// A text as one line of a table, in which Markdown finds no HTML and no further cell.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    let mut is_code = false;
    for word in text.split_whitespace() {
        if !cell.is_empty() {
            cell.push(' ');
        }
        for letter in word.chars() {
            is_code ^= letter == '`';
            let is_markup = letter == '|' || (!is_code && "<*_".contains(letter));
            if is_markup {
                cell.push('\\');
            }
            cell.push(letter);
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_the_subcommands_and_the_flags_of_each() {
        let address = Arg::new("address").long("address").value_name("IP");
        let address = address.action(ArgAction::Append).help("An address");
        let node = Arg::new("node").value_name("NODE").required(true);
        let create = Command::new("create").about("Makes a|b");
        let create = create.arg(node).arg(address);
        let token = Command::new("token").subcommand(create);
        let hidden = Command::new("inner").hide(true);
        let log = Arg::new("log").long("log").env("X_LOG");
        let log = log.default_value("info").help("What <it> logs, `<a>`");
        let switch = Arg::new("off").long("off").action(ArgAction::SetTrue);
        let program = Command::new("culvert-x").subcommand(token);
        let program = program.subcommand(hidden).arg(log).arg(switch);
        assert_eq!(
            section(&program),
            "## culvert-x

| subcommand | what |
|---|---|
| `token create NODE [--address IP]...` | Makes a\\|b |

| flag | variable | default | what |
|---|---|---|---|
| `--log` | `X_LOG` | `info` | What \\<it> logs, `<a>` |
| `--off` |  |  |  |
| `--address` of `token create` |  |  | An address |
"
        );
    }

    #[test]
    fn only_the_option_alone_asks_for_it() {
        let asks = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            is_requested(&words)
        };
        assert!(asks("culvert-x --flags-page"));
        assert!(!asks("culvert-x --flags-page x"));
        assert!(!asks("culvert-x run"));
    }
}
