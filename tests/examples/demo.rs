//! Films the demo, from a real run of `scripts/run`: its page while traffic comes, and while Redis is away.
//!
//! `cargo run -p rate-limit-tests --example demo > docs/demo.png`, or `scripts/plot`. The film is an animated PNG.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Browser, ScriptRun};

/// Between two pictures.
const STEP: Duration = Duration::from_millis(1200);

/// An event at a picture.
enum Event {
    /// So many requests a second.
    Rate(u32),
    /// A key in the terminal.
    Key(&'static str),
}

const STORY: [(usize, Event); 4] =
    [(0, Event::Rate(30)), (4, Event::Rate(60)), (7, Event::Key("k")), (11, Event::Key("s"))];
const PICTURES: usize = 16;

fn main() {
    let (mut run, mut keys) = ScriptRun::demo_in_terminal("");
    let page = format!("http://{}/", run.machines()[0]);
    let browser = Browser::start();
    browser.resize(960);
    browser.open(&page);
    browser.wait_for("document.querySelectorAll('#machines .state.up').length === 3");
    // The buttons are not what happens; and all pictures have one size.
    browser.run("controls.hidden = true; fleet.style.height = `${fleet.offsetHeight}px`");
    browser.run("start.click()");
    let start = Instant::now();
    let mut pictures = Vec::new();
    for number in 0..PICTURES {
        let due = STEP * number as u32;
        thread::sleep(due.saturating_sub(start.elapsed()));
        for (_, event) in STORY.iter().filter(|(at, _)| *at == number) {
            match event {
                Event::Rate(rate) => {
                    drop(browser.run(&format!(
                        "rate.value = {rate}; rate.dispatchEvent(new Event('input'))"
                    )))
                }
                Event::Key(key) => keys.write_all(key.as_bytes()).expect("press a key"),
            }
        }
        pictures.push(browser.picture("#fleet"));
    }
    std::io::stdout().write_all(&film(&pictures)).expect("write the film");
}

/// Joins pictures of one size.
fn film(pictures: &[Vec<u8>]) -> Vec<u8> {
    let first = chunks(&pictures[0]);
    let header = first.iter().find(|(kind, _)| kind == b"IHDR").expect("a header").1;
    let mut film = pictures[0][..8].to_vec();
    append(&mut film, b"IHDR", header);
    // It begins again at its end.
    append(&mut film, b"acTL", &[(pictures.len() as u32).to_be_bytes(), [0; 4]].concat());
    let mut sequence = 0_u32;
    let mut next = || {
        sequence += 1;
        (sequence - 1).to_be_bytes()
    };
    for (number, picture) in pictures.iter().enumerate() {
        let chunks = chunks(picture);
        assert_eq!(chunks[0].1, header, "a picture of another size");
        let mut control = [&next()[..], &header[..8], &[0; 8]].concat();
        let milliseconds =
            if number + 1 == pictures.len() { 3000 } else { STEP.as_millis() as u16 };
        control.extend([milliseconds.to_be_bytes(), 1000_u16.to_be_bytes(), [0, 0]].concat());
        append(&mut film, b"fcTL", &control);
        for (_, data) in chunks.iter().filter(|(kind, _)| kind == b"IDAT") {
            match number {
                0 => append(&mut film, b"IDAT", data),
                _ => append(&mut film, b"fdAT", &[&next()[..], data].concat()),
            }
        }
    }
    append(&mut film, b"IEND", &[]);
    film
}

/// The chunks of a PNG: what kind each is, and what it holds.
fn chunks(picture: &[u8]) -> Vec<([u8; 4], &[u8])> {
    let mut found = Vec::new();
    let mut rest = &picture[8..];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (kind, after) = after.split_first_chunk::<4>().expect("a kind");
        let (data, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        found.push((*kind, data));
        rest = &after[4..];
    }
    found
}

fn append(film: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    film.extend((data.len() as u32).to_be_bytes());
    let begin = film.len();
    film.extend(kind);
    film.extend(data);
    let sum = checksum(&film[begin..]);
    film.extend(sum.to_be_bytes());
}

/// CRC-32, as PNG has it.
fn checksum(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 }
        })
    })
}
