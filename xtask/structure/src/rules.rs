//! The rules: what each counts, its limit, and the reason for it.

use std::collections::BTreeMap;
use std::fmt;

use crate::idioms::{Idioms, Location};
use crate::imports;
use crate::source::{Crate, File, Target};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Modules of one parent in a circle.
    Circle,
    /// Tokens of one function.
    Function,
    /// Tokens that 95 of 100 functions of a crate do not exceed.
    Functions,
    /// Combinators in 1,000 lines of a crate.
    Combinators,
    /// Closures with a name in 1,000 lines of a crate.
    Closures,
    /// Tuples taken apart by `let` in a file.
    Tuples,
    /// Parameters of type `bool` in a file, of functions that other modules can call.
    Bools,
    /// Names of functions and types in a file.
    Names,
    /// Flags read in a file that is not the place of their checks.
    Flags,
}

impl Rule {
    /// All rules.
    pub(crate) const ALL: [Self; 9] = [
        Self::Circle,
        Self::Function,
        Self::Functions,
        Self::Combinators,
        Self::Closures,
        Self::Tuples,
        Self::Bools,
        Self::Names,
        Self::Flags,
    ];

    /// The most that needs no exception.
    pub(crate) fn limit(self) -> f64 {
        match self {
            Self::Circle | Self::Tuples | Self::Bools | Self::Names | Self::Flags => 0.0,
            Self::Function => 450.0,
            Self::Functions => 250.0,
            Self::Combinators => 9.0,
            Self::Closures => 1.0,
        }
    }

    /// Why there is a limit, and what to write instead.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Circle => {
                "modules that use each other cannot be read one after the other; move what both need below them"
            }
            Self::Function => {
                "a reader holds some 450 tokens at once; divide it where its comments would stand"
            }
            Self::Functions => "95 of 100 functions of a crate have at most 250 tokens",
            Self::Combinators => {
                "a chain of three or more hides its branches; write `if let`, `let else` or a loop"
            }
            Self::Closures => {
                "a closure that gets a name is a function, or is written where it is used"
            }
            Self::Tuples => "two values are two statements",
            Self::Bools => "at the call no reader sees what `true` means; make it an enum",
            Self::Names => "a function is a verb of the field or a noun, a type says what it is",
            Self::Flags => "rules between flags stand in one place, which gives out checked values",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Circle => "circle",
            Self::Function => "function",
            Self::Functions => "functions",
            Self::Combinators => "combinators",
            Self::Closures => "closures",
            Self::Tuples => "tuples",
            Self::Bools => "bools",
            Self::Names => "names",
            Self::Flags => "flags",
        })
    }
}

/// What a rule has counted.
pub(crate) struct Finding {
    /// The rule.
    pub(crate) rule: Rule,
    /// What was counted in: a crate, a module, a file, or a function of a file.
    pub(crate) subject: String,
    /// How much there is.
    pub(crate) amount: f64,
    /// Where, each with file and line.
    pub(crate) places: Vec<String>,
}

impl Finding {
    fn new(rule: Rule, subject: &str, amount: f64, places: Vec<String>) -> Self {
        Self {
            rule,
            subject: subject.to_owned(),
            amount,
            places,
        }
    }
}

/// All that the rules count in one crate, whether above the limit or not.
pub(crate) fn count(sources: &Crate) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in &sources.targets {
        findings.extend(count_circles(target));
    }
    let mut totals = Totals::default();
    for file in sources.files() {
        count_in(file, &mut findings, &mut totals);
    }
    findings.extend(totals.findings(&sources.folder));
    findings
}

/// What is counted in the files of a crate together.
#[derive(Default)]
struct Totals {
    lengths: Vec<usize>,
    lines: usize,
    combinators: usize,
    closures: Vec<String>,
}

impl Totals {
    fn findings(mut self, folder: &str) -> [Finding; 3] {
        self.lengths.sort_unstable();
        let at = self.lengths.len() * 95 / 100;
        let p95 = self.lengths.get(at).copied().unwrap_or(0);
        let combinators = density(self.combinators, self.lines);
        let closures = density(self.closures.len(), self.lines);
        [
            Finding::new(Rule::Functions, folder, count_of(p95), Vec::new()),
            Finding::new(Rule::Combinators, folder, combinators, Vec::new()),
            Finding::new(Rule::Closures, folder, closures, self.closures),
        ]
    }
}

fn count_in(file: &File, findings: &mut Vec<Finding>, totals: &mut Totals) {
    let idioms = Idioms::of(file);
    let in_file = [
        (Rule::Tuples, idioms.tuples),
        (Rule::Bools, idioms.bools),
        (Rule::Names, idioms.names),
        (Rule::Flags, idioms.flags),
    ];
    for (rule, places) in in_file {
        let places = described(&file.path, &places);
        let amount = count_of(places.len());
        findings.push(Finding::new(rule, &file.path, amount, places));
    }
    for function in idioms.functions {
        totals.lengths.push(function.tokens);
        let subject = format!("{}::{}", file.path, function.place.what);
        let places = described(&file.path, &[function.place]);
        let amount = count_of(function.tokens);
        findings.push(Finding::new(Rule::Function, &subject, amount, places));
    }
    totals.lines += file.lines;
    totals.combinators += idioms.combinators;
    totals
        .closures
        .extend(described(&file.path, &idioms.closures));
}

/// The modules in circles, for each parent.
fn count_circles(target: &Target) -> Vec<Finding> {
    let mut parents: BTreeMap<String, Finding> = BTreeMap::new();
    for circle in imports::circles(target) {
        let mut module = vec![target.root.clone()];
        module.extend(circle.parent);
        let subject = module.join("::");
        let none = Finding::new(Rule::Circle, &subject, 0.0, Vec::new());
        let finding = parents.entry(subject).or_insert(none);
        finding.amount += count_of(circle.members.len());
        finding.places.push(circle.members.join(", "));
        for arrow in &circle.arrows {
            let place = format!("{}:{}: {}", arrow.path, arrow.line, arrow.describe());
            finding.places.push(place);
        }
    }
    parents.into_values().collect()
}

fn described(path: &str, places: &[Location]) -> Vec<String> {
    let mut described = Vec::new();
    for place in places {
        described.push(format!("{path}:{}: {}", place.line, place.what));
    }
    described
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn count_of(number: usize) -> f64 {
    number as f64
}

/// How many there are in 1,000 lines, with one digit after the point, rounded up.
fn density(number: usize, lines: usize) -> f64 {
    (count_of(number) * 10_000.0 / count_of(lines.max(1))).ceil() / 10.0
}
