//! The problem of something that is tried repeatedly. It is logged once when it begins and when it
//! changes.

/// The last reported problem.
#[derive(Debug, Default)]
pub struct Problem(Option<String>);

impl Problem {
    /// Records the present problem; `None` if there is none. Returns it if it differs from the
    /// previous one.
    pub fn record(&mut self, now: Option<String>) -> Option<&str> {
        if self.0 == now {
            return None;
        }
        self.0 = now;
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_news_when_it_begins_when_it_changes_and_when_it_comes_back() {
        let mut problem = Problem::default();
        let mut news =
            |now: Option<&str>| problem.record(now.map(str::to_owned)).map(str::to_owned);
        assert_eq!(news(None), None);
        assert_eq!(news(Some("away")), Some("away".to_owned()));
        assert_eq!(news(Some("away")), None);
        assert_eq!(news(Some("full")), Some("full".to_owned()));
        assert_eq!(news(None), None, "its end is another's to tell");
        assert_eq!(news(Some("full")), Some("full".to_owned()));
    }
}
