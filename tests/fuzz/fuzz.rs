//! Runs the target that `RATE_LIMIT_FUZZ_TARGET` names under libFuzzer, whose `main` reads the arguments.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use targets::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("RATE_LIMIT_FUZZ_TARGET").expect("the name of a target");
    Target::find(&name).expect("a target of this name")
});

fuzz_target!(|data: &[u8]| TARGET.run(data));
