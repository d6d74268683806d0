//! The report of a connectivity test as JUnit has it, for continuous integration. Pure.

use std::fmt::Write;

use crate::connectivity::{Connectivity, Trial};

/// A test case for each pair of a host and a node.
pub(super) fn report(answer: &Connectivity) -> String {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"culvert connectivity-test\" tests=\"{}\" failures=\"{}\">\n",
        answer.tried, answer.failed
    );
    for reach in &answer.nodes {
        for trial in &reach.from {
            text += &case(&format!("{}:{}", reach.node, answer.port), trial);
        }
    }
    text + "</testsuite>\n"
}

fn case(name: &str, trial: &Trial) -> String {
    let mut text = format!(
        "  <testcase classname=\"{}\" name=\"{}\"",
        escaped(&trial.host),
        escaped(name)
    );
    if trial.reachable {
        return text + "/>\n";
    }
    // A String takes everything.
    _ = writeln!(
        text,
        "><failure message=\"{}\">{}</failure></testcase>",
        escaped(&trial.broken),
        escaped(&trial.fix)
    );
    text
}

/// A text within XML, which has no place for most control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectivity::NodeReach;

    #[test]
    fn what_others_say_is_text_in_the_report() {
        let trial = |host: &str, broken: &str| Trial {
            host: host.to_owned(),
            reachable: broken.is_empty(),
            broken: broken.to_owned(),
            fix: String::new(),
        };
        let answer = Connectivity {
            port: 10250,
            tried: 2,
            failed: 1,
            nodes: vec![NodeReach {
                node: "edge-1".to_owned(),
                from: vec![
                    trial("cloud-1", ""),
                    trial("<cloud>", "dial: \"a\" & b\u{1b}"),
                ],
            }],
        };
        let report = report(&answer);
        for part in [
            "tests=\"2\" failures=\"1\"",
            "<testcase classname=\"cloud-1\" name=\"edge-1:10250\"/>",
            "classname=\"&lt;cloud&gt;\"",
            "message=\"dial: &quot;a&quot; &amp; b\u{fffd}\"",
        ] {
            assert!(report.contains(part), "no {part}: {report}");
        }
    }
}
