//! Commands of which all but the client's key is known beforehand.

use super::{By, Question, Scripts, Sign, line, number};
use crate::key::Head;

/// The command that asks one limit about any client. What is the same each time is encoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    before_key: Vec<u8>,
    head: Head,
    after_key: Vec<u8>,
}

impl Prepared {
    /// The command that asks `question`, whatever its key is.
    pub fn new(scripts: &Scripts, question: &Question<'_>) -> Self {
        let mut prepared =
            Self { before_key: Vec::new(), head: question.head.clone(), after_key: Vec::new() };
        let (arguments, kept) = question.arguments(Sign::Spent, 1);
        if let Some(script) = scripts.single(question.quota.algorithm()) {
            script.head(&mut prepared.before_key, By::Sha, 1, kept);
        }
        prepared.after_key.extend_from_slice(b"\r\n");
        for argument in arguments.into_iter().take(kept) {
            number(&mut prepared.after_key, argument);
        }
        prepared
    }

    /// Appends the command that asks about the client of this key to `out`: the same that
    /// [`Scripts::encode_charges`] makes.
    pub fn encode(&self, out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(&self.before_key);
        line(out, b'$', self.head.len().saturating_add(key.len()));
        out.extend_from_slice(&self.head);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.after_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::limit::Quota;

    #[test]
    fn as_it_is_encoded_each_time() {
        let (scripts, head) = (Scripts::new(), Head::new("rl:", "a").unwrap());
        for (algorithm, rate, cost) in [
            (Algorithm::TokenBucket, "100r/m", 1),
            (Algorithm::Gcra, "3r/s", 7),
            (Algorithm::SlidingLog, "1r/d", 0),
        ] {
            let quota = Quota::new(algorithm, rate.parse().unwrap(), 100).unwrap();
            let question = Question::new(&head, b"any", quota, cost);
            let prepared = Prepared::new(&scripts, &question);
            for key in [&b"k"[..], b"", b"a\r\nb", &[b'x'; 300]] {
                let (mut expected, mut found) = (b"before".to_vec(), b"before".to_vec());
                let question = Question { key, ..question };
                scripts.encode_charges(&mut expected, By::Sha, std::iter::once(question));
                prepared.encode(&mut found, key);
                assert_eq!(found, expected);
            }
        }
    }
}
