//! Commands other than scripts. They are rare.

use redis::Cmd;

/// Appends a command of these words to `out`.
pub fn pack(out: &mut Vec<u8>, words: &[&str]) {
    let mut command = Cmd::new();
    command.arg(words).write_packed_command(out);
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_packed() {
        let mut out = b"x".to_vec();
        super::pack(&mut out, &["CLUSTER", "SLOTS"]);
        assert_eq!(out, b"x*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n");
    }
}
