//! Output to a reader that has gone, as in `culvert-hub status | head -1`. Rust ignores SIGPIPE, so
//! `println!` panics there. A command has nothing left to do then, and that is no failure.

/// Ends the process quietly if its standard output has no reader any more. Other panics are
/// reported as before.
pub(crate) fn exit_when_reader_is_gone() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_of_closed_pipe) {
            std::process::exit(0);
        }
        report(panic);
    }));
}

/// The panic of `println!`, as the standard library words it.
fn is_of_closed_pipe(message: &str) -> bool {
    message.starts_with("failed printing to stdout") && message.contains("Broken pipe")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    use super::*;

    const CHILD: &str = "CULVERT_TEST_OF_CLOSED_PIPE";
    const READY: &str = "child is ready";

    /// This test starts itself again as the program whose reader goes.
    #[test]
    fn a_command_whose_reader_has_gone_ends_without_a_word() {
        if std::env::var_os(CHILD).is_some() {
            exit_when_reader_is_gone();
            println!("\n{READY}");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            for _ in 0..2 {
                println!("nobody reads this");
            }
            std::process::exit(1);
        }
        let name = "closed_pipe::tests::a_command_whose_reader_has_gone_ends_without_a_word";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let ready = |line: std::io::Result<String>| line.unwrap() == READY;
        assert!(output.lines().any(ready), "its output is closed after this");
        let ended = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
        assert!(ended.status.success(), "{}", ended.status);
    }
}
