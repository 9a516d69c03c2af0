//! The committed corpora: each input once, without libFuzzer.

use std::fs;
use std::path::Path;

use targets::{TARGETS, Target};

/// The longest input, in bytes.
const LONGEST: u64 = 1_024;

/// The most inputs of a target.
const MOST: usize = 64;

/// The targets that `RATE_LIMIT_FUZZ_TARGET` names, or all.
fn chosen() -> impl Iterator<Item = &'static Target> {
    let name = std::env::var("RATE_LIMIT_FUZZ_TARGET").ok().filter(|name| !name.is_empty());
    TARGETS.iter().filter(move |target| name.as_ref().is_none_or(|name| name == target.name))
}

#[test]
fn every_input_holds() {
    for target in chosen() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let files = fs::read_dir(&directory).expect("a corpus").map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        assert!((1..=MOST).contains(&files.len()), "{}: {} inputs", target.name, files.len());
        for file in files {
            assert!(file.metadata().unwrap().len() <= LONGEST, "{} is too long", file.display());
            println!("{}", file.display());
            target.run(&fs::read(file).unwrap());
        }
    }
}
