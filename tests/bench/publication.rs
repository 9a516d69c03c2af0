//! Puts the report of a run to where readers find it.

use std::path::Path;
use std::{fs, io};

const PLACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance");

/// The comments of the page around the goals.
const MARKS: [&str; 2] = ["<!-- bench:goals -->", "<!-- /bench:goals -->"];

/// Puts the whole report into `docs/performance/report`, in the place of the one before, and its goals into the page
/// above.
pub fn publish(report: &Path, goals: &str) -> Result<(), String> {
    let place = Path::new(PLACE);
    let page = place.join("README.md");
    let failed = |error| format!("docs/performance: {error}");
    let text = with_goals(&fs::read_to_string(&page).map_err(failed)?, goals)?;
    replace(&place.join("report"), report).map_err(failed)?;
    fs::write(page, text).map_err(failed)
}

/// The page with these goals between the two marks.
fn with_goals(page: &str, goals: &str) -> Result<String, String> {
    let [first, last] = MARKS;
    let parts = page.split_once(first).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(last)?;
        Some(format!("{before}{first}\n\n{goals}\n\n{last}{after}"))
    });
    parts.ok_or_else(|| {
        format!("docs/performance/README.md does not have {first} and, behind it, {last}")
    })
}

/// Makes the files of a directory those of another.
fn replace(directory: &Path, other: &Path) -> io::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir(directory)?;
    for entry in fs::read_dir(other)? {
        let entry = entry?;
        fs::copy(entry.path(), directory.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_take_the_place_of_those_before() {
        let [first, last] = MARKS;
        let page = with_goals(&format!("a\n{first}\n\nold\n\n{last}\nb\n"), "new");
        assert_eq!(page, Ok(format!("a\n{first}\n\nnew\n\n{last}\nb\n")));
    }

    #[test]
    fn marks_in_the_wrong_order_are_an_error() {
        let [first, last] = MARKS;
        assert!(with_goals(&format!("{last} {first}"), "new").is_err());
        assert!(with_goals(first, "new").is_err());
    }
}
