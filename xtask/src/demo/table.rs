//! The table of targets that the demo prints.

/// A target, as reported by Prometheus' API.
pub(super) struct Target {
    pub(super) address: String,
    pub(super) expected: String,
    pub(super) is_up: bool,
    pub(super) milliseconds: f64,
    /// `nodename` of `node_uname_info`: the host name of the machine that answered.
    pub(super) node: String,
    pub(super) error: String,
}

/// One line for each target.
pub(super) fn render(targets: &[Target]) -> String {
    let mut text = format!(
        "  {:<16} {:<5} {:>9}  {}\n",
        "target", "up", "scrape ms", "node_uname_info{nodename}, or why not"
    );
    for target in targets {
        let (up, last) = if target.is_up {
            ("yes", &target.node)
        } else {
            ("no", &target.error)
        };
        text += &format!(
            "  {:<16} {up:<5} {:>9.1}  {last}\n",
            target.address, target.milliseconds
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_down_shows_why() {
        let down = Target {
            address: "edge-1:9100".into(),
            expected: "edge-1".into(),
            is_up: false,
            milliseconds: 1000.0,
            node: String::new(),
            error: "no such host".into(),
        };
        assert!(render(&[down]).contains("edge-1:9100      no       1000.0  no such host"));
    }
}
