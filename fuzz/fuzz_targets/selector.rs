//! A label selector, which is a field selector as well.
#![no_main]

use culvert_hub::fuzzing::{field_selector, label_selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for parse in [label_selector, field_selector] {
        if let Ok(written) = parse(text) {
            assert_eq!(
                parse(&written),
                Ok(written.clone()),
                "a selector is written one way"
            );
        }
    }
});
