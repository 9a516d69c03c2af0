//! The table of local decisions in memory of any words, which change between operations: every walk ends, and no value
//! is longer than the memory. As long as nobody else changes a word, what was stored is there.

use rate_limit_core::table::Table;

use crate::input::Input;

/// The most words of a run.
const WORDS: usize = 512;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut memory = vec![0; (8 * input.below(64) + input.below(8)).min(WORDS)];
    if input.flag() {
        // With the header of a table: other words are not taken for one.
        Table::open(&mut memory);
    }
    let mut is_sound = true;
    while !input.is_empty() {
        if input.below(4) == 0 {
            corrupt(&mut input, &mut memory);
            is_sound = false;
        }
        use_table(&mut input, &mut Table::open(&mut memory), is_sound);
    }
}

/// Changes a word, or one half of it: a link.
fn corrupt(input: &mut Input<'_>, memory: &mut [u64]) {
    let at = usize::from(input.byte()) << 1 | usize::from(input.flag());
    let (is_half, word) = (input.flag(), input.number());
    if let Some(place) = memory.get_mut(at) {
        *place = if is_half { *place & !0xffff_ffff | word & 0xffff_ffff } else { word };
    }
}

fn use_table(input: &mut Input<'_>, table: &mut Table<'_>, is_sound: bool) {
    let key = input.digest();
    match input.below(8) {
        0 => {
            let value = table.get(key).map(Iterator::count);
            assert!(value.is_none_or(|words| words <= WORDS), "{value:?} words");
        }
        1 => table.clear(),
        _ => {
            let words: Vec<_> = (0..input.below(40)).map(|_| input.number()).collect();
            let is_stored = table.set(key, &words);
            let value = table.get(key).map(Iterator::collect::<Vec<_>>);
            if is_sound && is_stored {
                assert_eq!(value, Some(words), "what was stored is there");
                let usage = table.usage();
                assert!((1..=usage.used).contains(&usage.entries), "{usage:?}");
                assert!(usage.used <= usage.blocks, "{usage:?}");
            }
        }
    }
}
