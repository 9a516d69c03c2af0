//! Commands of which all but the client's key is known beforehand.

use super::{By, Check, Scripts, Sign, number};

/// The end of a line.
const END: &[u8] = b"\r\n";

/// The command that charges any client of one limit. What is the same each time is encoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// All before the length of the key.
    before_length: Vec<u8>,
    /// The end of that line, and the head of the key.
    head: Vec<u8>,
    after_key: Vec<u8>,
}

impl Prepared {
    /// The command for `check`, whatever its key is.
    pub fn new(scripts: &Scripts, check: &Check<'_>) -> Self {
        let head = [END, &check.head[..]].concat();
        let mut prepared = Self { before_length: Vec::new(), head, after_key: END.to_vec() };
        let (arguments, kept) = check.arguments(Sign::Spent, 1);
        if let Some(script) = scripts.single(check.quota) {
            script.head(&mut prepared.before_length, By::Sha, 1, kept);
        }
        prepared.before_length.push(b'$');
        for argument in arguments.into_iter().take(kept) {
            number(&mut prepared.after_key, argument);
        }
        prepared
    }

    /// Appends the command that charges the client of this key to `out`: the same that
    /// [`Scripts::encode_charges`] makes.
    pub fn encode(&self, out: &mut Vec<u8>, key: &[u8]) {
        let length = self.head.len().saturating_sub(END.len()).saturating_add(key.len());
        out.extend_from_slice(&self.before_length);
        number::push(out, length as u64);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.after_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Head;
    use crate::limit::{Algorithm, Quota};

    #[test]
    fn as_it_is_encoded_each_time() {
        let (scripts, head) = (Scripts::new(), Head::new("rl:", "a").unwrap());
        for (algorithm, rate, cost) in [
            (Algorithm::TokenBucket, "100r/m", 1),
            (Algorithm::Gcra, "3r/s", 7),
            (Algorithm::SlidingLog, "1r/d", 0),
        ] {
            let quota = Quota::new(algorithm, rate.parse().unwrap(), 100).unwrap();
            let check = Check::new(&head, b"any", &quota, cost);
            let prepared = Prepared::new(&scripts, &check);
            for key in [&b"k"[..], b"", b"a\r\nb", &[b'x'; 300]] {
                let (mut expected, mut found) = (b"before".to_vec(), b"before".to_vec());
                let check = Check { key, ..check };
                scripts.encode_charges(&mut expected, By::Sha, std::iter::once(check));
                prepared.encode(&mut found, key);
                assert_eq!(found, expected);
            }
        }
    }
}
