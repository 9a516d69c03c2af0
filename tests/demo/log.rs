//! The logs of requests, shown as they grow.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// How much of each file has been shown.
pub struct Log(Vec<(u64, PathBuf)>);

impl Log {
    /// Shows what comes from now on.
    pub fn from_now(files: Vec<PathBuf>) -> Self {
        let with_length = |file: PathBuf| (fs::metadata(&file).map_or(0, |it| it.len()), file);
        Self(files.into_iter().map(with_length).collect())
    }

    /// Shows the lines that have come.
    pub fn show(&mut self) {
        for (shown, file) in &mut self.0 {
            let lines = lines_after(file, shown).unwrap_or_default();
            // The end of the output does not end the demo.
            let _ = io::stdout().write_all(&lines);
        }
    }
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
