//! The logs of requests, shown as they grow.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How often new lines are looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Shows the lines that come from now on, on a thread of its own: a reader that takes no more holds up nothing else.
pub fn show_from_now(files: Vec<PathBuf>) {
    let with_length = |file: PathBuf| (fs::metadata(&file).map_or(0, |it| it.len()), file);
    let mut files: Vec<_> = files.into_iter().map(with_length).collect();
    thread::spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            for (shown, file) in &mut files {
                let lines = lines_after(file, shown).unwrap_or_default();
                // The end of the output does not end the demo.
                let _ = io::stdout().write_all(&lines);
            }
        }
    });
}

/// The lines after this place, which moves behind them. A line that nginx has not finished is for the next time.
fn lines_after(path: &Path, place: &mut u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    // Another file may have taken its place.
    if file.metadata()?.len() < *place {
        *place = 0;
    }
    file.seek(SeekFrom::Start(*place))?;
    let mut lines = Vec::new();
    file.read_to_end(&mut lines)?;
    let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    lines.truncate(whole);
    *place += whole as u64;
    Ok(lines)
}
