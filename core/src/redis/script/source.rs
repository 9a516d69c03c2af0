//! The Lua sources of scripts: an algorithm, and the parts around it, without comments and indentation.

use super::{Script, Variant};
use crate::algorithm::{Hold, Minima};
use crate::overrides::Override;

/// The bytes of the longest state: ten numbers, two for each step, and a byte.
const LONGEST_STATE: usize = (10 + 2 * Minima::MOST) * size_of::<u64>() + 1;

/// Whether what is stored has steps behind three numbers, or behind ten.
const HAS_STEPS: &str = "#stored > 40 and #stored <= $longest_state \
    and (#stored % 16 == 9 or #stored % 16 == 1 and #stored > 96)";

/// The parts of scripts for which `override` makes a difference: the name of their place, and what is there without it and
/// with it.
const OWN: [(&str, &str, &str); 11] = [
    ("--@line_begin\n", "", "local line\n"),
    ("$unless_own", "", " and not is_own"),
    ("--@own_begin\n", "", "found = nil\n"),
    ("--@own_read\n", "", include_str!("own_log_read.lua")),
    ("--@expire\n", include_str!("log_expire.lua"), include_str!("own_log_expire.lua")),
    (
        "--@override\n",
        "",
        concat!(include_str!("override.lua"), include_str!("several_override.lua")),
    ),
    ("--@is_own\n", "", "is_own = owned[i]\n"),
    ("--@individual\n", include_str!("several_record.lua"), include_str!("several_individual.lua")),
    ("--@own_answer\n", "", "answer_own(answers[i + 1])\n"),
    ("--@keep\n", include_str!("several_write.lua"), include_str!("several_keep.lua")),
    ("$first_limit", "limit", "(first[5] or limit)"),
];

/// The parts of all scripts that read or write a state.
const SHARED: [(&str, &str); 2] =
    [("$own_record\n", include_str!("record.lua")), ("$write\n", include_str!("write.lua"))];

/// The script for one limit of this variant.
pub(super) fn single(variant: Variant) -> Script {
    let (own, has_override) = (variant.algorithm().stores_itself(), variant.has_override());
    let template = match (own, has_override) {
        (true, false) => include_str!("single_own.lua"),
        (false, false) => include_str!("single.lua"),
        (true, true) => include_str!("single_own_override.lua"),
        (false, true) => include_str!("single_override.lua"),
    };
    let script = if has_override { around(variant, template) } else { template.to_owned() };
    Script::new(fill(&script, variant))
}

/// The script that changes what a client of this variant has.
pub(super) fn manage(variant: Variant) -> Script {
    let template = match variant.algorithm().stores_itself() {
        true => include_str!("manage_own.lua"),
        false => include_str!("manage.lua"),
    };
    let is_own = variant.has_override();
    let script = around(variant.with_override(), template);
    let script = script.replace("local is_own = true", &format!("local is_own = {is_own}"));
    Script::new(fill(&script, variant.with_override()))
}

/// A template behind the function of an algorithm, and what reads a quota of a client's own.
fn around(variant: Variant, template: &str) -> String {
    let (before, after) = match variant.algorithm().stores_itself() {
        true => (include_str!("own_log.lua"), ""),
        false => ("", include_str!("override.lua")),
    };
    ["local is_own = true\n", before, &function(variant), after, template].concat()
}

/// The script for several limits of these variants.
pub(super) fn several(variants: impl Iterator<Item = Variant> + Clone) -> Script {
    let has_override = variants.clone().any(Variant::has_override);
    let (mut names, mut functions): (Vec<_>, Vec<_>) =
        variants.map(|variant| (variant.function().concat(), function(variant))).unzip();
    names.dedup();
    functions.dedup();
    let table: Vec<_> = names.iter().map(|name| format!("{name} = {name}")).collect();
    let table = format!("local algorithms = {{{}}}\n", table.join(", "));
    let several = with_own(include_str!("several.lua"), has_override)
        .replace("$lease\n", include_str!("lease.lua"))
        .replace("$longest_value", &(LONGEST_STATE + Override::LEN).to_string())
        .replace("$longest", &longest_hold())
        .replace("$long", &Hold::LONG.to_string());
    let head = if has_override {
        ["local is_own\n", include_str!("own_log.lua")].concat()
    } else {
        String::new()
    };
    Script::new(
        (head + &functions.concat() + &table + &several)
            .replace("$record", &Override::LEN.to_string()),
    )
}

/// The Lua source that defines the function of an algorithm.
fn function(variant: Variant) -> String {
    match variant.algorithm().stores_itself() {
        true => with_own(&variant.algorithm().source(), variant.has_override()),
        false => fill(include_str!("function.lua"), variant),
    }
}

/// Fills the places of the parts for which `override` makes a difference.
fn with_own(template: &str, has_override: bool) -> String {
    let text = OWN.iter().fold(template.to_owned(), |text, (place, without, with)| {
        text.replace(place, if has_override { with } else { without })
    });
    SHARED.iter().fold(text, |text, (place, part)| text.replace(place, part))
}

/// Puts an algorithm in its place.
pub(super) fn fill(template: &str, variant: Variant) -> String {
    let algorithm = variant.algorithm();
    let filled = template
        .replace("$decide\n", &variant.decide())
        .replace("$has_steps", HAS_STEPS)
        .replace("$longest_state", &LONGEST_STATE.to_string())
        .replace("$longest", &longest_hold())
        .replace("$function", &variant.function().concat())
        .replace("$state", &algorithm.state().join(", "))
        .replace("$algorithm\n", &algorithm.source());
    with_own(&filled, variant.has_override()).replace("$record", &Override::LEN.to_string())
}

/// How long a hold of a quota lasts at most, in µs, with the mark of one that several machines share.
fn longest_hold() -> String {
    let all = "((limit - 1) - (limit - 1) % count) / count + 1";
    format!("math.max({}, 2 * math.min({}, ({all}) * period) + 3)", Hold::SHORT + 1, Hold::LONG)
}

/// A program with fewer bytes. Comments go to the end of a line: no script has others, nor `--` in a string.
pub(super) fn minify(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("--").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::minify;

    #[test]
    fn comments_and_indentation_go() {
        let source = "-- a comment\n\nlocal a = 1 -- one\n  if a then\t-- yes\n\tb()\n  end\n\n";
        assert_eq!(minify(source), "local a = 1\nif a then\nb()\nend\n");
        assert_eq!(minify("a = b - -c"), "a = b - -c\n");
        assert_eq!(minify("-- nothing"), "");
    }
}
