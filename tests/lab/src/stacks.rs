//! The stacks of running processes, to log where they are before they are stopped.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::workspace;

/// The debugger. It is killed after 30 s: it may hang with the process that it looks at.
const DEBUGGER: [&str; 4] = ["timeout", "--signal=KILL", "30", "gdb"];

/// A process in `/proc`.
#[derive(Clone, Copy)]
struct Process {
    parent: i32,
    group: i32,
}

/// A process, which is the first, all that it started, and the rest of its process group. Empty if it
/// has ended.
pub fn with_descendants(pid: i32) -> Vec<i32> {
    let all = processes();
    if !all.contains_key(&pid) {
        return Vec::new();
    }
    let mut found = vec![pid];
    // Each round finds the children of those that were found before.
    loop {
        let before = found.len();
        for (id, process) in &all {
            let is_new = !found.contains(id);
            if is_new && (process.group == pid || found.contains(&process.parent)) {
                found.push(*id);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The stacks of the threads of these processes: in the kernel, which only root may read, and of
/// the first process in the program too, where gdb is installed.
pub fn of(pids: &[i32]) -> String {
    let mut text = String::new();
    for pid in pids {
        let folder = Path::new("/proc").join(pid.to_string());
        let command = read(&folder.join("cmdline")).replace('\0', " ");
        writeln!(text, "process {pid}: {}", command.trim()).ok();
        for thread in numbers(&folder.join("task")) {
            let thread = folder.join("task").join(thread.to_string());
            let name = read(&thread.join("comm"));
            writeln!(text, "  thread {}", name.trim()).ok();
            for frame in read(&thread.join("stack")).lines() {
                writeln!(text, "    {frame}").ok();
            }
        }
    }
    if let Some(first) = pids.first() {
        text.push_str(&in_program(*first));
    }
    text
}

/// What gdb says about the threads of a process; empty without it, and for this program itself.
fn in_program(pid: i32) -> String {
    // It would stop this program while it reads what the debugger prints.
    let is_own = pid.cast_unsigned() == std::process::id();
    if is_own || workspace::find_program("gdb").is_none() {
        return String::new();
    }
    let mut command = Command::new(DEBUGGER[0]);
    command.args(&DEBUGGER[1..]);
    command.args(["--batch", "--nx", "--pid", &pid.to_string()]);
    command.args([
        "-ex",
        "set print frame-arguments none",
        "-ex",
        "thread apply all backtrace 30",
    ]);
    match command.output() {
        Ok(done) => String::from_utf8_lossy(&done.stdout).into_owned(),
        Err(error) => format!("gdb: {error}\n"),
    }
}

fn processes() -> BTreeMap<i32, Process> {
    let mut all = BTreeMap::new();
    for pid in numbers(Path::new("/proc")) {
        let stat = read(&Path::new("/proc").join(pid.to_string()).join("stat"));
        // The name in parentheses may contain anything.
        let Some((_, fields)) = stat.rsplit_once(')') else {
            continue;
        };
        let mut fields = fields.split_whitespace().skip(1).map(str::parse);
        if let (Some(Ok(parent)), Some(Ok(group))) = (fields.next(), fields.next()) {
            all.insert(pid, Process { parent, group });
        }
    }
    all
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<i32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// A file of `/proc`; empty if its process has ended.
fn read(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    fn started(script: &str) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::null());
        shell.spawn().unwrap()
    }

    #[test]
    fn the_stacks_are_those_of_a_process_and_of_what_it_started() {
        let mut shell = started("sleep 86397 & wait");
        let pid = i32::try_from(shell.id()).unwrap();
        let text = crate::wait::until("the child", std::time::Duration::from_secs(30), || {
            let text = of(&with_descendants(pid));
            anyhow::ensure!(text.contains("sleep 86397 "), "{text}");
            Ok(text)
        });
        for process in with_descendants(pid).into_iter().rev() {
            let process = nix::unistd::Pid::from_raw(process);
            nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        let text = text.unwrap();
        assert!(text.contains(&format!("process {pid}: sh -c")), "{text}");
        assert_eq!(with_descendants(pid), Vec::<i32>::new());
    }
}
