//! What is wrong with something that is tried again and again: worth a line in the log when it
//! begins and when it changes, and no more.

/// The problem as last told.
#[derive(Debug, Default)]
pub struct Problem(Option<String>);

impl Problem {
    /// Takes note of what is wrong now, `None` if nothing is. Returns it if it is not the same as
    /// before.
    pub fn news(&mut self, now: Option<String>) -> Option<&str> {
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
        let mut news = |now: Option<&str>| problem.news(now.map(str::to_owned)).map(str::to_owned);
        assert_eq!(news(None), None);
        assert_eq!(news(Some("away")), Some("away".to_owned()));
        assert_eq!(news(Some("away")), None);
        assert_eq!(news(Some("full")), Some("full".to_owned()));
        assert_eq!(news(None), None, "its end is another's to tell");
        assert_eq!(news(Some("full")), Some("full".to_owned()));
    }
}
