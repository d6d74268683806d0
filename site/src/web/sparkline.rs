//! A line of the last values, as a small picture beside a number.

use maud::{Markup, html};

use crate::samples::Samples;

const WIDTH: f32 = 96.0;
const HEIGHT: f32 = 22.0;
/// Above and below the line, for its own width.
const MARGIN: f32 = 2.0;

/// The line, from 0 to the largest value. Nothing without two values.
pub(super) fn sparkline(samples: &Samples) -> Markup {
    let path = path(samples);
    html! {
        svg .spark viewBox="0 0 96 22" preserveAspectRatio="none" aria-hidden="true" {
            @if !path.is_empty() { path d=(path) {} }
        }
    }
}

/// The line ends where a value is missing, and begins again after it.
#[expect(clippy::cast_precision_loss, reason = "there are some dozens")]
fn path(samples: &Samples) -> String {
    let count = samples.values().len();
    if samples.values().flatten().count() < 2 {
        return String::new();
    }
    let most = samples.most().max(f32::MIN_POSITIVE);
    let step = (WIDTH - 2.0 * MARGIN) / (count.max(2) - 1) as f32;
    let mut path = String::new();
    let mut verb = 'M';
    for (index, value) in samples.values().enumerate() {
        let Some(value) = value else {
            verb = 'M';
            continue;
        };
        let x = MARGIN + step * index as f32;
        let y = HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * (value / most);
        path += &format!("{verb}{x:.0} {y:.1}");
        verb = 'L';
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_values_is_a_gap_in_the_line() {
        let mut samples = Samples::default();
        for value in [Some(1.0), Some(2.0), None, Some(2.0), Some(1.0)] {
            samples.push(value);
        }
        let path = path(&samples);
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path.matches('L').count(), 2, "{path}");
    }

    #[test]
    fn one_value_is_no_line() {
        let mut samples = Samples::default();
        samples.push(Some(1.0));
        assert_eq!(path(&samples), "");
    }
}
