//! Commands of which all but the client's key is known beforehand.

use std::rc::Rc;

use super::{By, Scripts, Sign, number};
use crate::charge::{Charge, Prepared, Template};
use crate::key::Head;
use crate::limit::Quota;

impl Scripts {
    /// The part that the commands of the limit whose Redis keys start with `head` have in common. `known` are its quota and its
    /// cost, if they are the same for all requests: then its command is prepared.
    pub fn template(&self, head: Head, known: Option<(&Quota, u64)>) -> Template {
        let prepared = known.and_then(|(quota, cost)| self.prepare(&head, quota, cost));
        Template::new(head, prepared)
    }

    fn prepare(&self, head: &Head, quota: &Quota, cost: u64) -> Option<Prepared> {
        let unprepared = Rc::new(Template::new(head.clone(), None));
        let charge = Charge::new(&unprepared, b"", quota, cost);
        let (arguments, kept) = charge.arguments(Sign::Spent, 1, 0);
        let (mut before_key, mut after_key) = (Vec::new(), Vec::new());
        self.single(quota)?.head(&mut before_key, By::Sha, 1, kept);
        arguments.into_iter().take(kept).for_each(|argument| number(&mut after_key, argument));
        Some(Prepared::new(&before_key, head, &after_key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    #[test]
    fn as_it_is_encoded_each_time() {
        let (scripts, head) = (Scripts::new(), Head::new("rl:", "a").unwrap());
        for (algorithm, rate, cost) in [
            (Algorithm::TokenBucket, "100r/m", 1),
            (Algorithm::Gcra, "3r/s", 7),
            (Algorithm::SlidingLog, "1r/d", 0),
        ] {
            let quota = Quota::new(algorithm, rate.parse().unwrap(), 100).unwrap();
            let template = Rc::new(scripts.template(head.clone(), Some((&quota, cost))));
            for key in [&b"k"[..], b"", b"a\r\nb", &[b'x'; 300]] {
                let (mut expected, mut found) = (b"before".to_vec(), b"before".to_vec());
                let charge = Charge::new(&template, key, &quota, cost);
                scripts.encode_charges(&mut expected, By::Sha, std::iter::once(charge));
                template.prepared().unwrap().encode(&mut found, key);
                assert_eq!(found, expected);
            }
        }
    }
}
