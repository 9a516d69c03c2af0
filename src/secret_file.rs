//! Files with secrets: passwords, and the keys of HMACs.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::fs::OpenOptionsExt as _;

/// The longest file. A password stands in the first line, and a token takes some KB.
const MOST: u64 = 64 << 10;

/// The content of the file at `path`.
///
/// It is read on the only thread of a process. That is a few system calls for a page or two which lie in the page cache of
/// the kernel, some 20 µs. A pipe, from which one could wait for bytes, is no file here.
pub(crate) fn read(path: &str) -> Result<Vec<u8>> {
    // Without the flag a pipe that nobody writes to would be waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut content = Vec::new();
    match file.take(MOST.saturating_add(1)).read_to_end(&mut content)? as u64 {
        ..=MOST => Ok(content),
        _ => Err(Error::new(ErrorKind::FileTooLarge, "it is longer than 64 KB")),
    }
}

/// The content of a file of text.
pub(crate) fn read_text(path: &str) -> Result<String> {
    let no_text = |_| Error::new(ErrorKind::InvalidData, "it is not in UTF-8");
    String::from_utf8(read(path)?).map_err(no_text)
}
