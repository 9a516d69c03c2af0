//! The Lua sources of scripts: templates, which name the parts they are made of, without comments and indentation.

use super::{Script, Variant};
use crate::algorithm::{Hold, Minima};
use crate::limit::{Algorithm, MAX_DEBT};
use crate::overrides::Override;

/// The bytes of the longest state: ten numbers, two for each step, and a byte.
const LONGEST_STATE: usize = (10 + 2 * Minima::MOST) * size_of::<u64>() + 1;

/// Whether what is stored has steps behind three numbers, or behind ten.
const HAS_STEPS: &str = "#stored > 40 and #stored <= $longest_state \
    and (#stored % 16 == 9 or #stored % 16 == 1 and #stored > 96)";

/// The parts of templates, each before those that it names.
const PARTS: [(&str, &str); 6] = [
    ("$as_function\n", include_str!("function.lua")),
    ("$lease\n", include_str!("lease.lua")),
    ("$override\n", include_str!("override.lua")),
    ("$own_log\n", include_str!("own_log.lua")),
    ("$own_record\n", include_str!("record.lua")),
    ("$write\n", include_str!("write.lua")),
];

/// The script for one limit of this variant.
pub(super) fn single(variant: Variant) -> Script {
    let template = match (variant.algorithm().stores_itself(), variant.has_override()) {
        (true, _) => include_str!("single_own.lua"),
        (false, false) => include_str!("single.lua"),
        (false, true) => include_str!("single_override.lua"),
    };
    Script::new(fill(template, variant))
}

/// The script that changes what a client of this variant has.
pub(super) fn manage(variant: Variant) -> Script {
    let template = match variant.algorithm().stores_itself() {
        true => include_str!("manage_own.lua"),
        false => include_str!("manage.lua"),
    };
    let template = template.replace("$is_own", &variant.has_override().to_string());
    Script::new(fill(&template, variant.with_override()))
}

/// The script for several limits of these variants.
pub(super) fn several(variants: impl Iterator<Item = Variant> + Clone) -> Script {
    let has_override = variants.clone().any(Variant::has_override);
    let (mut names, mut functions): (Vec<_>, Vec<_>) = variants
        .map(|variant| {
            let own = variant.algorithm().stores_itself();
            let function = fill(if own { "$algorithm\n" } else { "$as_function\n" }, variant);
            (variant.function().concat(), function)
        })
        .unzip();
    names.dedup();
    functions.dedup();
    let table: Vec<_> = names.iter().map(|name| format!("{name} = {name}")).collect();
    let algorithms = format!("local algorithms = {{{}}}\n", table.join(", "));
    let template = with_own(&with_parts(include_str!("several.lua")), has_override);
    Script::new(
        template.replace("$algorithms\n", &(functions.concat() + &algorithms + &of_states())),
    )
}

/// The Lua tables of what the algorithms say of their states: which store them themselves, and the functions of which units
/// are held.
fn of_states() -> String {
    let mut source = "local stores_itself, held = {}, {}\n".to_owned();
    for algorithm in Algorithm::ALL {
        let name = algorithm.function();
        if algorithm.stores_itself() {
            source += &format!("stores_itself.{name} = true\n");
        }
        if let Some([computed, has_more]) = algorithm.held_sources() {
            source += &format!("held.{name} = {{computed = {computed}, has_more = {has_more}}}\n");
        }
    }
    source
}

/// Puts an algorithm in its place.
pub(super) fn fill(template: &str, variant: Variant) -> String {
    let algorithm = variant.algorithm();
    let filled = with_parts(template)
        .replace("$decide\n", &variant.decide())
        .replace("$function", &variant.function().concat())
        .replace("$state", &algorithm.state().join(", "))
        .replace("$algorithm\n", &algorithm.source());
    with_own(&filled, variant.has_override())
}

fn with_parts(template: &str) -> String {
    PARTS.iter().fold(template.to_owned(), |text, (name, part)| text.replace(name, part))
}

/// A template with what it has for `override`, or without that: it stands between the lines `--@if override` and `--@end`,
/// and what is there instead of it behind a line `--@else`.
fn with_own(template: &str, has_override: bool) -> String {
    let mut is_kept = true;
    let mut text = String::with_capacity(template.len());
    for line in template.split_inclusive('\n') {
        match line {
            "--@if override\n" => is_kept = has_override,
            "--@else\n" => is_kept = !has_override,
            "--@end\n" => is_kept = true,
            _ if is_kept => text += line,
            _ => {}
        }
    }
    text.replace("$unless_own", if has_override { " and not is_own" } else { "" })
}

/// Puts the numbers in their places, the longer ones of two names that begin alike first.
pub(super) fn with_numbers(source: &str) -> String {
    source
        .replace("$has_steps", HAS_STEPS)
        .replace("$longest_state", &LONGEST_STATE.to_string())
        .replace("$longest_value", &(LONGEST_STATE + Override::LEN).to_string())
        .replace("$longest", &longest_hold())
        .replace("$long", &Hold::LONG.to_string())
        .replace("$record", &Override::LEN.to_string())
        .replace("$max_debt", &MAX_DEBT.to_string())
        .replace("$max_spent", &(1 + MAX_DEBT).to_string())
}

/// How long a hold of a quota lasts at most, in µs, and 1 more: that of one that has lost its name is odd.
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
