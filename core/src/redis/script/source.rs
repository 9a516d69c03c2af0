//! The Lua sources of scripts: an algorithm, and the parts around it.

use super::{Script, Variant};
use crate::algorithm::{Hold, Minima};

/// The bytes of the longest state: ten numbers, two for each step, and a byte.
const LONGEST_STATE: usize = (10 + 2 * Minima::MOST) * size_of::<u64>() + 1;

/// Whether what is stored has steps behind three numbers, or behind ten.
const HAS_STEPS: &str = "#stored > 40 and #stored <= $longest_state \
    and (#stored % 16 == 9 or #stored % 16 == 1 and #stored > 96)";

/// The script for one limit of this variant.
pub(super) fn single(variant: Variant) -> Script {
    let template = match variant.algorithm().stores_itself() {
        true => include_str!("single_own.lua"),
        false => include_str!("single.lua"),
    };
    Script::new(fill(template, variant))
}

/// The script for several limits of these variants.
pub(super) fn several(variants: impl Iterator<Item = Variant>) -> Script {
    let (mut names, mut functions): (Vec<_>, Vec<_>) =
        variants.map(|variant| (variant.function(), function(variant))).unzip();
    names.dedup();
    functions.dedup();
    let table: Vec<_> = names.iter().map(|name| format!("{name} = {name}")).collect();
    let table = format!("local algorithms = {{{}}}\n", table.join(", "));
    let several = include_str!("several.lua")
        .replace("$lease\n", include_str!("lease.lua"))
        .replace("$longest_state", &LONGEST_STATE.to_string())
        .replace("$longest", &longest_hold())
        .replace("$long", &Hold::LONG.to_string());
    Script::new(functions.concat() + &table + &several)
}

/// The Lua source that defines the function of an algorithm.
fn function(variant: Variant) -> String {
    match variant.algorithm().stores_itself() {
        true => variant.algorithm().source(),
        false => fill(include_str!("function.lua"), variant),
    }
}

/// Puts an algorithm in its place.
pub(super) fn fill(template: &str, variant: Variant) -> String {
    let algorithm = variant.algorithm();
    template
        .replace("$decide\n", &variant.decide())
        .replace("$has_steps", HAS_STEPS)
        .replace("$longest_state", &LONGEST_STATE.to_string())
        .replace("$longest", &longest_hold())
        .replace("$function", &variant.function())
        .replace("$state", &algorithm.state().join(", "))
        .replace("$algorithm\n", &algorithm.source())
}

/// How long a hold of a quota lasts at most, in µs, with the mark of one that several machines share.
fn longest_hold() -> String {
    let all = "((limit - 1) - (limit - 1) % count) / count + 1";
    format!("math.max({}, 2 * math.min({}, ({all}) * period) + 3)", Hold::SHORT + 1, Hold::LONG)
}
