//! The source of both crates keeps what `docs/architecture.md` and `docs/unsafe.md` say of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The most lines of a file, its tests excepted.
const MOST_LINES: usize = 500;

/// Its types stand in for others where NGINX is built without TLS.
const STAND_INS: &str = "no_tls.rs";

/// The Rust files below a folder, those of tests excepted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_test = |path: &PathBuf| path.file_stem().is_some_and(|name| name == "tests");
    let (folders, files): (Vec<_>, Vec<_>) =
        entries.filter(|path| !is_test(path)).partition(|path| path.is_dir());
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|end| end == "rs");
    let below = folders.iter().flat_map(|folder| self::files(folder));
    files.into_iter().filter(is_rust).chain(below).collect()
}

/// The lines of a file before its tests.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a file");
    let product = text.split("\n#[cfg(test)]\nmod tests {").next().expect("a part");
    product.lines().map(str::to_owned).collect()
}

fn crates() -> [Vec<PathBuf>; 2] {
    ["core/src", "src"].map(|folder| files(&root().join(folder)))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The type that a line of a module defines.
fn defined(line: &str) -> Option<&str> {
    let item = match line.split_once(") ") {
        Some((visibility, item)) if visibility.starts_with("pub(") => item,
        _ => line.strip_prefix("pub ").unwrap_or(line),
    };
    let kinds = ["struct ", "enum ", "union ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

#[test]
fn no_type_name_stands_for_two_things() {
    for files in crates() {
        let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for file in files.into_iter().filter(|file| !file.ends_with(STAND_INS)) {
            for name in lines(&file).iter().filter_map(|line| defined(line)) {
                places.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
        assert!(places.len() > 50, "{places:?}");
        places.retain(|_, places| places.len() > 1);
        assert_eq!(places, BTreeMap::new());
    }
}

#[test]
fn no_file_is_long() {
    let long = |file: &PathBuf| (lines(file).len() > MOST_LINES).then(|| file.clone());
    let long: Vec<_> = crates().iter().flatten().filter_map(long).collect();
    assert_eq!(long, [""; 0].map(PathBuf::from));
}

/// The tests that SECURITY.md names are there: groups, modules, or tests of a module.
#[test]
fn tests_that_are_named_exist() {
    let system = Path::new(env!("CARGO_MANIFEST_DIR")).join("system");
    let page = system.join("../../SECURITY.md");
    let page = fs::read_to_string(page).expect("the page");
    let named = page.split('`').skip(1).step_by(2).filter(|text| text.contains("::"));
    let mut count = 0;
    for name in named {
        let mut parts = name.split("::");
        let (group, module) = (parts.next().expect("a group"), parts.next().expect("a module"));
        let file = system.join(group).join(module).with_extension("rs");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_there = parts.next().is_none_or(|test| text.contains(&format!("fn {test}()")));
        assert!(is_there, "{name}");
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// A new algorithm that lacks something does not compile.
#[test]
fn no_algorithm_is_matched_by_a_wildcard() {
    let [core, _] = crates();
    let of_algorithms: Vec<_> =
        core.into_iter().filter(|file| file.to_string_lossy().contains("/algorithm")).collect();
    assert!(of_algorithms.len() > 10, "{of_algorithms:?}");
    for file in of_algorithms {
        let is_wildcard = |line: &&String| line.trim_start().starts_with("_ => ");
        assert_eq!(lines(&file).iter().find(is_wildcard), None, "{}", file.display());
    }
}

/// The blocks of unsafe code in a line: blocks, implementations, and declarations of functions in C.
fn unsafe_blocks(line: &str) -> usize {
    let starts = ["unsafe {", "unsafe impl ", "unsafe extern \"C\" {"];
    match line.trim_start().starts_with("//") {
        true => 0,
        false => starts.iter().map(|start| line.matches(start).count()).sum(),
    }
}

/// The numbers of blocks by file, as `docs/unsafe.md` has them: in the heading of a file, and in its rows.
fn described_blocks() -> BTreeMap<String, (usize, usize)> {
    let page = fs::read_to_string(root().join("docs/unsafe.md")).expect("a page");
    let sections = page.split("\n### ").skip(1);
    let described = |section: &str| {
        let (heading, rows) = section.split_once('\n').expect("a table");
        let (file, number) = heading.split_once(": ").expect("a number");
        let blocks = |row: &str| row.split(" | ").nth(1)?.parse::<usize>().ok();
        let sum = rows.lines().filter_map(blocks).sum();
        (file.to_owned(), (number.parse().expect("a number"), sum))
    };
    sections.map(described).collect()
}

#[test]
fn every_unsafe_block_is_described() {
    let [core, src] = crates();
    let blocks = |file: &PathBuf| lines(file).iter().map(|line| unsafe_blocks(line)).sum::<usize>();
    assert_eq!(core.iter().map(blocks).sum::<usize>(), 0);
    let with_blocks = src.iter().map(|file| (file, blocks(file))).filter(|(_, number)| *number > 0);
    let found: BTreeMap<_, _> = with_blocks
        .map(|(file, number)| {
            let file = file.strip_prefix(root()).expect("a file of this project");
            (file.display().to_string(), (number, number))
        })
        .collect();
    assert_eq!(described_blocks(), found);
}
