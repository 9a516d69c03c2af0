//! The source of both crates keeps what `docs/architecture.md` and `docs/unsafe.md` say of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rate_limit_core::limit::Algorithm;

/// The most lines of a file, its tests excepted.
const MOST_LINES: usize = 500;

/// Its types stand in for others where NGINX is built without TLS.
const STAND_INS: &str = "no_tls.rs";

/// The Rust files below a folder, those of tests excepted.
fn files(folder: &Path) -> Vec<PathBuf> {
    files_of(folder, "rs")
}

/// The files below a folder whose names end so, those of tests excepted.
fn files_of(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let is_of_tests = |path: &PathBuf| {
        let below = path.strip_prefix(folder).expect("a path below it");
        below.iter().any(|part| part == "tests" || part == "tests.rs")
    };
    all_files_of(folder, kind).into_iter().filter(|path| !is_of_tests(path)).collect()
}

/// The files below a folder whose names end so.
fn all_files_of(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_of_kind = |path: &PathBuf| path.extension().is_some_and(|end| end == kind);
    let below = folders.iter().flat_map(|folder| all_files_of(folder, kind));
    files.into_iter().filter(is_of_kind).chain(below).collect()
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

/// Lines of scripts are cut at `--` before they are sent: so it begins a comment that ends with the line, wherever it is.
#[test]
fn scripts_have_comments_at_the_end_of_lines_alone() {
    let is_quote = |c: char| "\"'".contains(c);
    let scripts = files_of(&root().join("core/src"), "lua");
    assert!(scripts.len() > 20, "{scripts:?}");
    for script in scripts {
        for line in lines(&script) {
            let (code, comment) = line.split_once("--").unwrap_or((&line, ""));
            let is_whole = code.matches(is_quote).count().is_multiple_of(2);
            let is_long = comment.starts_with('[') || code.contains("[[") || code.contains("[=");
            assert!(is_whole && !is_long, "{}: {line}", script.display());
        }
    }
}

/// The way of a request leads through few files, and rarely back to one. Each step is called by one before it, or by NGINX.
#[test]
fn the_way_of_a_request_is_short() {
    const FROM_NGINX: [&str; 4] = ["access", "on_turn_end", "on_socket", "header_filter"];
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("the page");
    let steps: Vec<(&str, &str)> = page.lines().filter_map(step).collect();
    let mut way: Vec<(&str, String)> = Vec::new();
    let mut returns = 0;
    for (functions, file) in &steps {
        returns += usize::from(way.iter().any(|(other, _)| other == file));
        let source = lines(&root().join(file)).join("\n");
        for function in functions.split('`').skip(1).step_by(2) {
            let is_defined = source.contains(&format!("fn {function}("))
                || source.contains(&format!("fn {function}<"));
            assert!(is_defined, "{file} has no function {function}");
        }
        let first = functions.split('`').nth(1).expect("a function");
        let calls = |(_, source): &(&str, String)| {
            let calls = source.matches(&format!("{first}(")).count();
            calls > source.matches(&format!("fn {first}(")).count()
        };
        let is_called = FROM_NGINX.contains(&first) || way.iter().any(calls);
        assert!(is_called, "{first} of {file} is called by no step before it");
        way.push((file, source));
    }
    way.sort_unstable();
    way.dedup_by_key(|(file, _)| *file);
    assert!(steps.len() > 20, "{steps:?}");
    assert!(way.len() <= 20 && returns <= 8, "{} files, {returns} returns", way.len());
}

/// A step of the way of a request: its functions, and their file.
fn step(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let ["", _, functions, file, ""] = cells[..] else { return None };
    let file = file.strip_prefix('`')?.strip_suffix('`')?;
    file.ends_with(".rs").then_some((functions, file))
}

/// The files and folders that these pages name are there, and the layout names each file of both crates.
#[test]
fn files_that_are_named_exist() {
    let mut named = BTreeSet::new();
    for page in ["docs/architecture.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root().join(page)).expect("the page");
        for paragraph in text.split("\n\n") {
            // Names that do not begin at the root are below the folder of the last one that does.
            let mut folder = root();
            for path in paragraph.split('`').skip(1).step_by(2).filter_map(path) {
                let mut file = root().join(path);
                if file.exists() {
                    folder = root().join(path.rsplit_once('/').map_or("", |(folder, _)| folder));
                } else {
                    file = folder.join(path);
                    assert!(file.exists(), "{path} of {page}");
                }
                named.insert(file);
            }
        }
    }
    for file in crates().iter().flatten() {
        let name = file.strip_prefix(root()).expect("a file of this project").display();
        assert!(named.contains(file), "{name} has no row in Layout of docs/architecture.md");
    }
}

/// The groups of the system tests, and their modules, as `main.rs` has them.
fn groups() -> BTreeMap<String, BTreeSet<String>> {
    let main = root().join("tests/system/main.rs");
    let main = fs::read_to_string(main).expect("the file");
    let group = |text: &str| {
        let (name, block) = text.split_once(" {\n")?;
        let (modules, _) = block.split_once("\n}")?;
        let module = |line: &str| line.split_once("mod ")?.1.strip_suffix(';').map(str::to_owned);
        Some((name.to_owned(), modules.lines().filter_map(module).collect()))
    };
    main.split("\nmod ").filter_map(group).collect()
}

/// A file that has no line in its group is not compiled, and none of its tests runs.
#[test]
fn all_files_of_system_tests_have_their_line() {
    let groups = groups();
    assert!(groups.len() > 5, "{groups:?}");
    for (group, modules) in groups {
        let files = files(&root().join("tests/system").join(&group));
        let name = |file: &PathBuf| file.file_stem()?.to_str().map(str::to_owned);
        assert_eq!(files.iter().filter_map(name).collect::<BTreeSet<_>>(), modules, "{group}");
    }
}

/// The filters of scripts name groups of the system tests, or modules of one in braces.
#[test]
fn tests_that_scripts_run_exist() {
    let groups = groups();
    for script in ["scripts/soak", "scripts/test", "scripts/valgrind"] {
        let text = fs::read_to_string(root().join(script)).expect("the script");
        let filters: Vec<_> = text.split_whitespace().filter_map(filter).collect();
        for (group, modules) in &filters {
            let known = groups.get(*group).unwrap_or_else(|| panic!("{group} in {script}"));
            let is_known = |module: &str| known.contains(module);
            assert!(modules.iter().all(|it| is_known(it)), "{group}::{modules:?} in {script}");
        }
        assert!(filters.len() > 3, "{filters:?}");
    }
}

/// The group of a filter, and the modules that it names.
fn filter(word: &str) -> Option<(&str, Vec<&str>)> {
    let word = word.rsplit('(').find(|part| !part.is_empty())?.trim_end_matches(')');
    let filter = word.strip_suffix("::")?;
    let (group, modules) = filter.split_once("::").unwrap_or((filter, ""));
    let modules = modules.trim_start_matches('{').trim_end_matches('}').split(',');
    Some((group, modules.filter(|it| !it.is_empty()).collect()))
}

/// The path that a code span begins with, if it does: up to `NAME`, which stands for something new.
fn path(code: &str) -> Option<&str> {
    let word = code.split_whitespace().next()?;
    let is_path =
        word.contains('/') || [".rs", ".lua", ".md"].iter().any(|end| word.ends_with(end));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    (is_path && word.chars().all(is_plain)).then(|| word.split("NAME").next())?
}

/// The tests that these pages name are there: groups, modules, or tests of a module.
#[test]
fn tests_that_are_named_exist() {
    for (page, least) in [("SECURITY.md", 20), ("docs/reliability.md", 20)] {
        let text = fs::read_to_string(root().join(page)).expect("the page");
        let marked = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
        let named: Vec<_> = marked.filter(|text| text.contains("::")).collect();
        for name in &named {
            assert!(is_test(name), "{name} of {page}");
        }
        assert!(named.len() > least, "{page} names {}", named.len());
    }
}

/// Whether there is such a group, module or test of the system tests, or several whose names begin so.
fn is_test(name: &str) -> bool {
    let mut parts = name.split("::");
    let (group, module) = (parts.next().expect("a group"), parts.next().expect("a module"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("system").join(group);
    if module.is_empty() {
        return folder.is_dir();
    }
    let text = fs::read_to_string(folder.join(module).with_extension("rs"));
    let test = parts.next().unwrap_or_default();
    text.is_ok_and(|text| text.contains(&format!("#[test]\nfn {test}")))
}

/// The names of the tests in a file.
fn tests_in(path: &PathBuf) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a file");
    let name = |after: &str| {
        let function = after.lines().find_map(|line| line.trim_start().strip_prefix("fn "))?;
        Some(function.split('(').next()?.to_owned())
    };
    text.split("#[test]\n").skip(1).filter_map(name).collect()
}

/// Two words can say what a test is about, but not what happens.
#[test]
fn names_of_tests_have_three_words() {
    let crates = ["core/src", "tests"].map(|folder| all_files_of(&root().join(folder), "rs"));
    let tests: Vec<_> = crates.iter().flatten().flat_map(tests_in).collect();
    assert!(tests.len() > 1_600, "{}", tests.len());
    let short: Vec<_> = tests.iter().filter(|name| name.split('_').count() < 3).collect();
    assert_eq!(short, [""; 0]);
}

/// The defects of `scripts/simulate --defects` fit the source as it is, and the page names them.
#[test]
fn known_defects_apply() {
    let page = fs::read_to_string(root().join("docs/simulation.md")).expect("the page");
    let folder = fs::read_dir(root().join("tests/simulation/defects")).expect("the defects");
    let patches: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    assert!(patches.len() >= 39, "{}", patches.len());
    for patch in patches {
        let name = patch.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in the page");
        let mut command = Command::new("patch");
        command.args(["--dry-run", "--strip=1", "--directory"]).arg(root());
        let input = fs::File::open(&patch).expect("a patch");
        let output = command.stdin(input).output().expect("patch");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// A new algorithm that lacks something does not compile: what is around the algorithms asks their rows and knows none of
/// them, but for the words of a line, and where they are matched none is matched by a wildcard.
#[test]
fn no_algorithm_is_named_or_matched_by_a_wildcard() {
    let [core, _] = crates();
    let is_wildcard = |line: &str| ["_ => ", "(_, "].iter().any(|it| line.starts_with(it));
    let mut searched = [0; 2];
    for file in core.iter().filter(|file| !file.ends_with("conf/limit/words.rs")) {
        let is_of_algorithms = file.to_string_lossy().contains("/algorithm");
        searched[usize::from(is_of_algorithms)] += 1;
        for line in lines(file) {
            let is_wrong =
                names_algorithm(&line) || is_of_algorithms && is_wildcard(line.trim_start());
            assert!(!is_wrong, "{}: {line}", file.display());
        }
    }
    assert!(searched.iter().all(|files| *files > 10), "{searched:?}");
    for script in files_of(&root().join("core/src/redis"), "lua") {
        let named = |line: &String| Algorithm::ALL.iter().any(|it| line.contains(it.function()));
        assert_eq!(lines(&script).into_iter().find(named), None, "{}", script.display());
    }
}

/// Whether a line names one algorithm, and not what all of them have.
fn names_algorithm(line: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(char::is_uppercase) && name[1..].starts_with(char::is_lowercase)
    };
    let is_itself = |it: &Algorithm| line.contains(&format!("Self::{it:?}"));
    !line.trim_start().starts_with("//")
        && (line.split("Algorithm::").skip(1).any(is_name) || Algorithm::ALL.iter().any(is_itself))
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
