//! Any text is a selector or an error that points into it, and what is a selector prints as itself.

#![no_main]

use downbeat_core::select::{Scope, Selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Selector::parse(text) {
        Ok(selector) => {
            let printed = selector.to_string();
            assert_eq!(Selector::parse(&printed).expect("what is printed is a selector"), selector);
            assert_eq!(printed, text.trim());
        }
        Err(error) => {
            assert!(error.column as usize <= text.chars().count() + 1, "{error} is outside of {text:?}");
            assert!(!error.message.contains(|c: char| c.is_control()), "{error:?}");
        }
    }
    for scope in [Scope::Group, Scope::Node] {
        if let Ok(selector) = Selector::of_scope(scope, Some(text)) {
            let json = serde_json::to_value(&selector).expect("a selector is JSON");
            assert_eq!(serde_json::from_value::<Selector>(json).expect("what is stored can be read"), selector);
        }
    }
});
